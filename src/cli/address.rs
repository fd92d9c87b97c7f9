//! `HOST:PORT,…`: where brokers are.
//!
//! Pure: names are not looked up here.

use std::net::Ipv6Addr;

/// Kafka's port.
const PORT_DEFAULT: u16 = 9092;

/// A host (a name, or an IP address without brackets) and a port.
pub type Address = (String, u16);

/// A list of addresses as one value of the command line; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddressList(pub(super) Vec<Address>);

/// `HOST:PORT,HOST,[::1]:9092`: without repetition, never empty.
pub(super) fn list(text: &str) -> Result<AddressList, String> {
    let addresses: Result<Vec<Address>, String> = text.split(',').map(|part| one(part.trim())).collect();
    addresses.map(|addresses| AddressList(super::value::without_repetition(addresses)))
}

fn one(text: &str) -> Result<Address, String> {
    let wrong = |why: &str| format!("'{text}' {why}: write HOST, HOST:PORT or [::1]:PORT");
    // The listener's protocol, as in `PLAINTEXT://host:9092`, is what a broker's own configuration shows.
    let bare = text.strip_prefix("PLAINTEXT://").unwrap_or(text);
    if bare.contains("://") {
        return Err(wrong("has a protocol that this version does not speak"));
    }
    let (host, port) = match bare.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(|| wrong("has no closing bracket"))?;
            host.parse::<Ipv6Addr>().map_err(|_| wrong("has no IPv6 address in its brackets"))?;
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err(wrong("goes on after the bracket")),
            }
        }
        None if bare.matches(':').count() > 1 => return Err(wrong("is an IPv6 address without brackets")),
        None => bare.split_once(':').map_or((bare, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() || host.len() > 253 {
        return Err(wrong("has no host"));
    }
    if host.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '@')) {
        return Err(wrong("is not a host"));
    }
    let port = match port {
        None => PORT_DEFAULT,
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => match port.parse() {
            Ok(0) | Err(_) => return Err(wrong("has a port outside 1 to 65535")),
            Ok(port) => port,
        },
        Some(_) => return Err(wrong("has a port that is no number")),
    };
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_right() {
        let cases: [(&str, &[(&str, u16)]); 7] = [
            ("127.0.0.1:9092", &[("127.0.0.1", 9092)]),
            ("localhost", &[("localhost", 9092)]),
            ("[::1]:9093", &[("::1", 9093)]),
            ("[::1]", &[("::1", 9092)]),
            ("a:1,b, c:3", &[("a", 1), ("b", 9092), ("c", 3)]),
            ("a:1,a:1", &[("a", 1)]),
            ("PLAINTEXT://a:1", &[("a", 1)]),
        ];
        for (text, expected) in cases {
            let expected = expected.iter().map(|(host, port)| ((*host).to_owned(), *port)).collect();
            assert_eq!(list(text), Ok(AddressList(expected)), "{text}");
        }
    }

    #[test]
    fn addresses_that_are_wrong() {
        for text in [
            "",
            ",",
            "a,",
            ":9092",
            "a:",
            "a:0",
            "a:65536",
            "a:x",
            "a:+1",
            "::1",
            "::1:9092",
            "[::1",
            "[::1]9092",
            "[a]:1",
            "[]:1",
            "a b:1",
            "SSL://a:1",
            "http://a",
            "a/b:1",
        ] {
            assert!(list(text).is_err(), "{text}");
        }
    }
}
