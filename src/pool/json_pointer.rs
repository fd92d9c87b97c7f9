//! Finds one member of a JSON text by a pointer (RFC 6901), without a tree and without recursion: a walk over the
//! bytes up to the member, so what lies behind it costs nothing.
//!
//! It is no validator. Of a text that is not JSON it finds something or nothing, always the same of the same bytes,
//! and never reads outside of it. Of a name that an object has twice, the first counts.

use std::borrow::Cow;

/// A pointer, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    tokens: Vec<Vec<u8>>,
}

impl Pointer {
    /// `/a/0/b`; `~1` stands for `/` and `~0` for `~`. What the command line refuses is
    /// taken as it stands.
    pub(super) fn new(text: &str) -> Pointer {
        let tokens =
            text.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~").into_bytes());
        Pointer { tokens: tokens.collect() }
    }

    /// The member: a string without its quotes and escapes, anything else as it is written. None where it is missing or
    /// null.
    pub(super) fn find<'a>(&self, json: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        let mut walk = Walk { bytes: json, at: 0 };
        for token in &self.tokens {
            match walk.next()? {
                b'{' => walk.enter_member(token)?,
                b'[' => walk.enter_element(token)?,
                _ => return None,
            }
        }
        match walk.next()? {
            b'"' => unescape(walk.string()?),
            b'n' => None,
            _ => walk.value().map(Cow::Borrowed),
        }
    }
}

/// A place in a JSON text.
struct Walk<'a> {
    bytes: &'a [u8],
    /// ≤ bytes.len()
    at: usize,
}

impl<'a> Walk<'a> {
    /// The next byte that is not white space; it is not taken.
    fn next(&mut self) -> Option<u8> {
        while let Some(byte) = self.bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    fn take(&mut self, expected: u8) -> Option<()> {
        (self.next()? == expected).then(|| self.at += 1)
    }

    /// From an object's brace to the value of the member with this name.
    fn enter_member(&mut self, name: &[u8]) -> Option<()> {
        self.take(b'{')?;
        loop {
            self.next()?;
            let found = unescape(self.string()?);
            self.take(b':')?;
            self.next()?;
            if found.is_some_and(|found| *found == *name) {
                return Some(());
            }
            self.value()?;
            self.take(b',')?;
        }
    }

    /// From an array's bracket to the element with this number, in decimal digits without leading zeros.
    fn enter_element(&mut self, number: &[u8]) -> Option<()> {
        self.take(b'[')?;
        let plain = number == b"0" || (number.first()? != &b'0' && number.iter().all(u8::is_ascii_digit));
        let number: usize = std::str::from_utf8(number).ok().filter(|_| plain)?.parse().ok()?;
        for _ in 0..number {
            self.next()?;
            self.value()?;
            self.take(b',')?;
        }
        (self.next()? != b']').then_some(())
    }

    /// The value that begins here, as it is written; nothing is taken where none does.
    fn value(&mut self) -> Option<&'a [u8]> {
        let begin = self.at;
        let mut depth = 0u32;
        loop {
            match *self.bytes.get(self.at)? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                // Between the parts of something nested.
                b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' if depth > 0 => self.at += 1,
                b',' | b':' => return None,
                _ => self.word(),
            }
            if depth == 0 {
                return Some(&self.bytes[begin..self.at]);
            }
        }
    }

    /// A number, or true, false, null.
    fn word(&mut self) {
        let ends = |byte: &u8| {
            matches!(byte, b',' | b':' | b'}' | b']' | b'{' | b'[' | b'"' | b' ' | b'\t' | b'\n' | b'\r')
        };
        self.at =
            self.bytes[self.at..].iter().position(ends).map_or(self.bytes.len(), |length| self.at + length);
    }

    /// A string, without its quotes but with its escapes.
    fn string(&mut self) -> Option<&'a [u8]> {
        let begin = self.at + 1;
        if self.bytes.get(self.at) != Some(&b'"') {
            return None;
        }
        let mut at = begin;
        loop {
            match *self.bytes.get(at)? {
                b'"' => break,
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
        self.at = at + 1;
        Some(&self.bytes[begin..at])
    }
}

/// None where an escape is none of JSON's.
fn unescape(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    if !text.contains(&b'\\') {
        return Some(Cow::Borrowed(text));
    }
    let quoted = [b"\"", text, b"\""].concat();
    serde_json::from_slice::<String>(&quoted).ok().map(|text| Cow::Owned(text.into_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn find(pointer: &str, json: &str) -> Option<String> {
        let found = Pointer::new(pointer).find(json.as_bytes())?;
        Some(String::from_utf8(found.into_owned()).unwrap())
    }

    #[test]
    fn members_of_the_rfcs_own_example() {
        let json =
            r#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8}"#;
        for (pointer, expected) in [
            ("/foo", r#"["bar","baz"]"#),
            ("/foo/0", "bar"),
            ("/foo/1", "baz"),
            ("/", "0"),
            ("/a~1b", "1"),
            ("/c%d", "2"),
            ("/e^f", "3"),
            ("/g|h", "4"),
            ("/i\\j", "5"),
            ("/k\"l", "6"),
            ("/ ", "7"),
            ("/m~0n", "8"),
        ] {
            assert_eq!(find(pointer, json).as_deref(), Some(expected), "{pointer}");
        }
        for pointer in ["/foo/2", "/foo/-", "/foo/00", "/foo/+1", "/foo/", "/bar", "/foo/0/x", "/a/b", "//"] {
            assert_eq!(find(pointer, json), None, "{pointer}");
        }
    }

    #[test]
    fn null_is_missing_and_the_empty_string_is_not() {
        assert_eq!(find("/a", r#"{"a":null}"#), None);
        assert_eq!(find("/a", r#"{"a":""}"#).as_deref(), Some(""));
        assert_eq!(find("/a", r#"{"a":false}"#).as_deref(), Some("false"));
        assert_eq!(
            find("/a", " { \"b\" : [ { } , \"}\" ] ,\n\"a\" : \"\\u00e9\\n\" } ").as_deref(),
            Some("é\n")
        );
        assert_eq!(find("/a", r#"{"\u0061":1,"a":2}"#).as_deref(), Some("1"), "the first of two");
    }

    #[test]
    fn what_is_no_json_ends_the_walk() {
        let deep = "[".repeat(1 << 20);
        for text in
            ["", "{", "{\"a", "{\"a\"", "{\"a\":", "{\"a\\", "{,}", "{\"a\":}", "x", "{\"b\":1", "[1,", &deep]
        {
            assert_eq!(find("/a", text), None);
            assert_eq!(find("/3", text), None);
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a~/\"\\\\é\u{1}]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(("[ab~/\"]{0,2}", inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// serde_json's own pointers over its trees are the oracle.
        #[test]
        fn finds_what_a_tree_has(value in json(), pointer in "(/(a|b|ab|~0|~1|0|1|2|\"|)){1,3}") {
            let expected = value.pointer(&pointer).and_then(|found| match found {
                Value::Null => None,
                Value::String(text) => Some(text.clone()),
                other => Some(other.to_string()),
            });
            prop_assert_eq!(find(&pointer, &value.to_string()), expected.clone());
            // Written widely, what is nested looks otherwise, but is found all the same.
            let wide = format!("{value:#}");
            prop_assert_eq!(find(&pointer, &wide).is_some(), expected.is_some());
        }

        #[test]
        fn any_bytes_end_the_walk(
            bytes in prop::collection::vec(prop::sample::select(&b"{}[]\",:\\ a01n"[..]), 0..60)
        ) {
            for pointer in ["/a", "/0/a", "/a/1", "//"] {
                let _ = Pointer::new(pointer).find(&bytes);
            }
        }
    }
}
