//! `--print FORMAT|json`: a record as bytes on stdout.
//!
//! FORMAT is kcat's `-f`, parsed once when the command line is resolved. Rendering is pure and binary safe: what the
//! record holds is copied as it is, and nothing is added (no newline but the one that FORMAT asks for).

use std::io::Write;

use super::base64;

/// How a record is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object and a newline.
    Json,
    /// Pieces in order.
    Pieces(Vec<Piece>),
}

/// A piece of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// These bytes.
    Text(Vec<u8>),
    /// `%t`.
    Topic,
    /// `%p`.
    Partition,
    /// `%o`.
    Offset,
    /// `%T`: ms since 1970, −1 where the record has none.
    Timestamp,
    /// `%k`: nothing for a null key.
    Key,
    /// `%K`: the key's bytes, −1 for null.
    KeyBytes,
    /// `%s`: nothing for a null value.
    Value,
    /// `%S`: the value's bytes, −1 for null.
    ValueBytes,
    /// `%R`: `%S` as a big-endian 32-bit integer.
    ValueBytesBinary,
    /// `%h`: `name=value,…`; a null value is `NULL`.
    Headers,
}

/// What is written of a record. `headers` may be walked more than once.
#[derive(Clone, Debug)]
pub struct RecordView<'a, H> {
    /// The topic.
    pub topic: &'a str,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: i64,
    /// ms since 1970; −1 = none.
    pub timestamp_ms: i64,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    /// Name and value of each header, in order, repetitions kept.
    pub headers: H,
}

impl Format {
    /// Reads `json` or kcat's letters.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "json" {
            return Ok(Format::Json);
        }
        let mut pieces = Vec::new();
        let mut plain = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let after = &rest[c.len_utf8()..];
            rest = match c {
                '%' => {
                    let (piece, after) = letter(after)?;
                    match piece {
                        Piece::Text(percent) => plain.extend(percent),
                        piece => {
                            push_text(&mut pieces, &mut plain);
                            pieces.push(piece);
                        }
                    }
                    after
                }
                // As kcat has it, a backslash before a `%` or at the end is itself.
                '\\' if !after.is_empty() && !after.starts_with('%') => escape(after, &mut plain)?,
                _ => {
                    plain.extend(&rest.as_bytes()[..c.len_utf8()]);
                    after
                }
            };
        }
        push_text(&mut pieces, &mut plain);
        Ok(Format::Pieces(pieces))
    }

    /// Appends the record.
    pub fn render<'a, H>(&self, record: &RecordView<'a, H>, out: &mut Vec<u8>)
    where
        H: Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
    {
        match self {
            Format::Json => {
                json(record, None, out);
                out.push(b'\n');
            }
            Format::Pieces(pieces) => pieces.iter().for_each(|piece| render_piece(piece, record, out)),
        }
    }
}

/// Appends the record as the pipe format's object, without a newline; `id` stands first in it.
pub fn json<'a, H>(record: &RecordView<'a, H>, id: Option<u64>, out: &mut Vec<u8>)
where
    H: Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
{
    out.push(b'{');
    if let Some(id) = id {
        out.extend(b"\"id\":\"");
        append_digits(out, id);
        out.extend(b"\",");
    }
    out.extend(b"\"topic\":");
    json_string(out, record.topic);
    out.extend(b",\"partition\":");
    append_integer(out, record.partition.into());
    out.extend(b",\"offset\":");
    append_integer(out, record.offset);
    out.extend(b",\"timestamp\":");
    append_integer(out, record.timestamp_ms);
    json_member(out, "key", record.key);
    out.extend(b",\"headers\":[");
    for (index, (name, value)) in record.headers.clone().enumerate() {
        out.extend(if index == 0 { &b"["[..] } else { b",[" });
        json_string(out, &String::from_utf8_lossy(name));
        out.push(b',');
        match value.map(|value| (value, std::str::from_utf8(value))) {
            None => out.extend(b"null"),
            Some((_, Ok(text))) => json_string(out, text),
            // A header's place in the list has no name that could say `_b64`, so the value is an object instead.
            Some((bytes, Err(_))) => {
                out.extend(b"{\"b64\":\"");
                base64::append(out, bytes);
                out.extend(b"\"}");
            }
        }
        out.push(b']');
    }
    out.push(b']');
    json_member(out, "value", record.value);
    out.push(b'}');
}

fn push_text(pieces: &mut Vec<Piece>, plain: &mut Vec<u8>) {
    if !plain.is_empty() {
        pieces.push(Piece::Text(std::mem::take(plain)));
    }
}

/// The piece that the letter after a `%` stands for, and what follows it.
fn letter(after: &str) -> Result<(Piece, &str), String> {
    const LETTERS: &str = "write %t %p %o %k %s %K %S %R %T %h, %% for a percent sign, or json";
    let Some(letter) = after.chars().next() else {
        return Err(format!("nothing after the last '%': {LETTERS}"));
    };
    let piece = match letter {
        't' => Piece::Topic,
        'p' => Piece::Partition,
        'o' => Piece::Offset,
        'T' => Piece::Timestamp,
        'k' => Piece::Key,
        'K' => Piece::KeyBytes,
        's' => Piece::Value,
        'S' => Piece::ValueBytes,
        'R' => Piece::ValueBytesBinary,
        'h' => Piece::Headers,
        '%' => Piece::Text(b"%".to_vec()),
        _ => return Err(format!("unknown '%{letter}': {LETTERS}")),
    };
    Ok((piece, &after[letter.len_utf8()..]))
}

/// Undoes the escape after a backslash; returns what follows it.
fn escape<'t>(after: &'t str, plain: &mut Vec<u8>) -> Result<&'t str, String> {
    let Some(c) = after.chars().next() else { return Ok(after) };
    let rest = &after[c.len_utf8()..];
    let (digits, base, max) = match c {
        'n' | 't' | 'r' => {
            plain.push(match c {
                'n' => b'\n',
                't' => b'\t',
                _ => b'\r',
            });
            return Ok(rest);
        }
        'x' => (rest, 16, 2),
        // As C reads numbers: octal with a leading 0, else decimal.
        '0' => (after, 8, 4),
        '1'..='9' => (after, 10, 3),
        _ => {
            plain.extend(&after.as_bytes()[..c.len_utf8()]);
            return Ok(rest);
        }
    };
    let end = digits.chars().take(max).take_while(|digit| digit.is_digit(base)).count();
    let byte = u8::from_str_radix(&digits[..end], base)
        .map_err(|_| format!("'\\{c}' is not followed by a byte's number: write \\x0a, \\012 or \\10"))?;
    plain.push(byte);
    Ok(&digits[end..])
}

fn render_piece<'a, H>(piece: &Piece, record: &RecordView<'a, H>, out: &mut Vec<u8>)
where
    H: Iterator<Item = (&'a [u8], Option<&'a [u8]>)> + Clone,
{
    match piece {
        Piece::Text(text) => out.extend(text),
        Piece::Topic => out.extend(record.topic.as_bytes()),
        Piece::Partition => append(out, format_args!("{}", record.partition)),
        Piece::Offset => append(out, format_args!("{}", record.offset)),
        Piece::Timestamp => append(out, format_args!("{}", record.timestamp_ms)),
        Piece::Key => out.extend(record.key.unwrap_or_default()),
        Piece::KeyBytes => append(out, format_args!("{}", length(record.key))),
        Piece::Value => out.extend(record.value.unwrap_or_default()),
        Piece::ValueBytes => append(out, format_args!("{}", length(record.value))),
        Piece::ValueBytesBinary => out.extend(length(record.value).to_be_bytes()),
        Piece::Headers => {
            for (index, (name, value)) in record.headers.clone().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                out.extend(name);
                out.push(b'=');
                out.extend(value.unwrap_or(b"NULL"));
            }
        }
    }
}

fn length(bytes: Option<&[u8]>) -> i32 {
    // A record's fields carry their lengths as 32 bits with a sign.
    bytes.map_or(-1, |bytes| i32::try_from(bytes.len()).unwrap_or(i32::MAX))
}

fn json_member(out: &mut Vec<u8>, name: &str, bytes: Option<&[u8]>) {
    out.extend(b",\"");
    out.extend(name.as_bytes());
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => out.extend(b"\":null"),
        Some((_, Ok(text))) => {
            out.extend(b"\":");
            json_string(out, text);
        }
        Some((bytes, Err(_))) => {
            out.extend(b"_b64\":\"");
            base64::append(out, bytes);
            out.push(b'"');
        }
    }
}

fn json_string(out: &mut Vec<u8>, text: &str) {
    // Most need no escape, and many bytes are looked at as fast as one.
    let is_plain = |bytes: &[u8]| bytes.iter().fold(true, |all, byte| all & is_plain(*byte));
    if text.as_bytes().chunks(32).all(is_plain) {
        out.reserve(text.len() + 2);
        out.push(b'"');
        out.extend(text.as_bytes());
        return out.push(b'"');
    }
    serde_json::to_writer(out, text).expect("a Vec takes every write, and a str is always JSON");
}

/// Whether a byte of a text stands for itself in JSON.
fn is_plain(byte: u8) -> bool {
    byte >= b' ' && byte != b'"' && byte != b'\\'
}

fn append_integer(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    append_digits(out, number.unsigned_abs());
}

/// As `write!` would, in a third of its time: a record of the pipe format has four numbers, and each key of `seed` one.
#[inline]
pub(crate) fn append_digits(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend(&digits[at..]);
}

fn append(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a Vec takes every write");
}

#[cfg(test)]
mod tests {
    use super::*;

    type Headers<'a> = std::iter::Copied<std::slice::Iter<'a, (&'a [u8], Option<&'a [u8]>)>>;

    fn record<'a>(headers: &'a [(&'a [u8], Option<&'a [u8]>)]) -> RecordView<'a, Headers<'a>> {
        RecordView {
            topic: "orders",
            partition: 2,
            offset: 8500,
            timestamp_ms: 1_700_000_000_000,
            key: Some(b"k1"),
            value: Some(b"v\xff\0"),
            headers: headers.iter().copied(),
        }
    }

    fn rendered<'a>(format: &str, record: &RecordView<'a, Headers<'a>>) -> Vec<u8> {
        let mut out = Vec::new();
        Format::parse(format).unwrap().render(record, &mut out);
        out
    }

    #[test]
    fn every_letter() {
        let headers: [(&[u8], Option<&[u8]>); 4] =
            [(b"a", Some(b"1")), (b"a", Some(b"\xfe")), (b"n", None), (b"e", Some(b""))];
        let record = record(&headers);
        let cases: [(&str, &[u8]); 14] = [
            ("", b""),
            ("%t/%p@%o %T", b"orders/2@8500 1700000000000"),
            ("%k=%s", b"k1=v\xff\0"),
            ("%K %S", b"2 3"),
            ("%R", b"\0\0\0\x03"),
            ("%h", b"a=1,a=\xfe,n=NULL,e="),
            ("100%%", b"100%"),
            ("%%t", b"%t"),
            (r"%k\n\t\r\\", b"k1\n\t\r\\"),
            (r"\x00\x1e\xa\xFFf", b"\0\x1e\n\xfff"),
            (r"\0\010\65", b"\0\x08A"),
            (r#"\"\é"#, "\"é".as_bytes()),
            (r"\%t\", br"\orders\"),
            ("é%p", "é2".as_bytes()),
        ];
        for (format, expected) in cases {
            assert_eq!(rendered(format, &record), expected, "{format}");
        }
    }

    #[test]
    fn nulls_are_empty_and_their_lengths_minus_one() {
        let record = RecordView { key: None, value: None, timestamp_ms: -1, ..record(&[]) };
        assert_eq!(rendered("[%k|%s|%h] %K %S %T", &record), b"[||] -1 -1 -1");
        assert_eq!(rendered("%R", &record), [0xff; 4]);
        let empty = RecordView { key: Some(b""), value: Some(b""), ..record };
        assert_eq!(rendered("[%k|%s] %K %S", &empty), b"[|] 0 0");
    }

    #[test]
    fn formats_that_are_wrong() {
        for text in ["%", "%z", "a%", "%é", r"\x", r"\xg", r"\256", r"\0777", "%J"] {
            assert!(Format::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn json_is_one_object_a_line() {
        let headers: [(&[u8], Option<&[u8]>); 3] = [(b"a", Some(b"1")), (b"a", Some(b"\xfe")), (b"n", None)];
        let record = record(&headers);
        assert_eq!(
            String::from_utf8(rendered("json", &record)).unwrap(),
            "{\"topic\":\"orders\",\"partition\":2,\"offset\":8500,\"timestamp\":1700000000000,\"key\":\"k1\",\
             \"headers\":[[\"a\",\"1\"],[\"a\",{\"b64\":\"/g==\"}],[\"n\",null]],\"value_b64\":\"dv8A\"}\n"
        );
        let text = RecordView { key: None, value: Some(b"a\"\n\x01"), headers: [].iter().copied(), ..record };
        let mut out = Vec::new();
        json(&text, Some(7), &mut out);
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert!(out.starts_with(b"{\"id\":\"7\","));
        assert_eq!(value["value"], "a\"\n\u{1}");
        assert!(value["key"].is_null());
    }

    proptest::proptest! {
        #[test]
        fn integers_are_written_as_by_the_library(number: i64) {
            let mut out = Vec::new();
            append_integer(&mut out, number);
            append_integer(&mut out, number / 1_000_000_007);
            append_integer(&mut out, i64::MIN);
            let expected = format!("{number}{}{}", number / 1_000_000_007, i64::MIN);
            proptest::prop_assert_eq!(out, expected.into_bytes());
        }

        #[test]
        fn strings_are_written_as_by_the_library(text in "([ -~]{0,40}|[\\x00-\\x7f]{0,40}|\\PC{0,40}|.{0,40})") {
            let mut out = Vec::new();
            json_string(&mut out, &text);
            proptest::prop_assert_eq!(out, serde_json::to_vec(&text).unwrap());
        }

        #[test]
        fn text_without_signs_is_itself(text in "[^%\\\\]{0,40}") {
            proptest::prop_assume!(text != "json");
            proptest::prop_assert_eq!(rendered(&text, &record(&[])), text.as_bytes());
        }

        #[test]
        fn any_format_is_read_or_refused(text in ".{0,40}") {
            let _ = Format::parse(&text);
        }
    }
}
