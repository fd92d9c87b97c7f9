//! Arguments with `{}`, `{key}`, `{topic}`, `{partition}` and `{offset}` in them.
//!
//! Each argument stays one, whatever it comes to hold: no shell reads it, nothing is split, quoted or replaced twice.
//! Bytes pass as they are. What no argument can hold (a NUL, or more than 128 KiB) is a reason to reject the record.

use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::io::Write;

use super::environment::STRING_BYTES_MAX;

/// The words of a command, ready for records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    words: Vec<Word>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    /// The same for every record.
    Fixed(CString),
    Pieces(Vec<Piece>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Place(Place),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Value,
    Key,
    Topic,
    Partition,
    Offset,
}

const PLACES: [(&str, Place); 5] = [
    ("{}", Place::Value),
    ("{key}", Place::Key),
    ("{topic}", Place::Topic),
    ("{partition}", Place::Partition),
    ("{offset}", Place::Offset),
];

/// What is put into arguments. A null key or value is nothing.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    /// `{topic}`.
    pub topic: &'a str,
    /// `{partition}`.
    pub partition: i32,
    /// `{offset}`.
    pub offset: i64,
    /// `{key}`.
    pub key: Option<&'a [u8]>,
    /// `{}`.
    pub value: Option<&'a [u8]>,
}

impl Template {
    /// Reads the words of a command. The first, which is the program, is as it is; so are all unless `replace`.
    pub fn new(words: &[CString], replace: bool) -> Template {
        let words = words.iter().enumerate().map(|(index, word)| {
            let pieces = if replace && index > 0 { pieces(word.as_bytes()) } else { Vec::new() };
            let is_fixed = pieces.iter().all(|piece| matches!(piece, Piece::Text(_)));
            if is_fixed { Word::Fixed(word.clone()) } else { Word::Pieces(pieces) }
        });
        Template { words: words.collect() }
    }

    /// The arguments for a record.
    ///
    /// # Errors
    /// Why there are none for it.
    pub fn fill(&self, fields: &Fields<'_>) -> Result<Vec<Cow<'_, CStr>>, String> {
        self.words
            .iter()
            .map(|word| match word {
                Word::Fixed(word) => Ok(Cow::Borrowed(word.as_c_str())),
                Word::Pieces(pieces) => filled(pieces, fields).map(Cow::Owned),
            })
            .collect()
    }
}

/// The first of `{}`, `{key}` and so on that would be replaced in a word.
pub fn first_place(word: &[u8]) -> Option<&'static str> {
    let name = |piece| match piece {
        Piece::Text(_) => None,
        Piece::Place(place) => PLACES.iter().find(|(_, of)| *of == place).map(|(name, _)| *name),
    };
    pieces(word).into_iter().find_map(name)
}

fn pieces(word: &[u8]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut plain = Vec::new();
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        let found =
            PLACES.iter().find_map(|(name, place)| Some((*place, rest.strip_prefix(name.as_bytes())?)));
        match found {
            Some((place, after)) => {
                if !plain.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                }
                pieces.push(Piece::Place(place));
                rest = after;
            }
            None => {
                plain.push(first);
                rest = after;
            }
        }
    }
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    pieces
}

fn filled(pieces: &[Piece], fields: &Fields<'_>) -> Result<CString, String> {
    let mut out = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.extend(text),
            Piece::Place(Place::Value) => put(&mut out, "value", fields.value)?,
            Piece::Place(Place::Key) => put(&mut out, "key", fields.key)?,
            Piece::Place(Place::Topic) => out.extend(fields.topic.as_bytes()),
            Piece::Place(Place::Partition) => number(&mut out, fields.partition.into()),
            Piece::Place(Place::Offset) => number(&mut out, fields.offset),
        }
        if out.len() >= STRING_BYTES_MAX {
            return Err(format!("an argument would be longer than {} bytes", STRING_BYTES_MAX - 1));
        }
    }
    CString::new(out).map_err(|_| "an argument would hold a NUL byte".to_owned())
}

fn put(out: &mut Vec<u8>, name: &str, bytes: Option<&[u8]>) -> Result<(), String> {
    let bytes = bytes.unwrap_or_default();
    if bytes.len() >= STRING_BYTES_MAX {
        let len = bytes.len();
        return Err(format!(
            "its {name} has {len} bytes: an argument holds {} at most",
            STRING_BYTES_MAX - 1
        ));
    }
    if bytes.contains(&0) {
        return Err(format!("its {name} holds a NUL byte, which no argument can"));
    }
    out.extend(bytes);
    Ok(())
}

fn number(out: &mut Vec<u8>, number: i64) {
    write!(out, "{number}").expect("a Vec takes every write");
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: Fields<'_> = Fields {
        topic: "orders",
        partition: 2,
        offset: 8500,
        key: Some(b"k {} 1"),
        value: Some(b"-v\n'\xff $(x)"),
    };

    fn filled(words: &[&str], replace: bool, fields: &Fields<'_>) -> Result<Vec<Vec<u8>>, String> {
        let words: Vec<CString> = words.iter().map(|word| CString::new(*word).unwrap()).collect();
        let template = Template::new(&words, replace);
        Ok(template.fill(fields)?.iter().map(|word| word.to_bytes().to_vec()).collect())
    }

    #[test]
    fn each_argument_stays_one() {
        let words = ["{}", "{}", "a{key}b{key}", "{topic}/{partition}@{offset}", "", "{ }{Key}{{}}", "{"];
        let expected: [&[u8]; 7] = [
            b"{}",
            b"-v\n'\xff $(x)",
            b"ak {} 1bk {} 1",
            b"orders/2@8500",
            b"",
            b"{ }{Key}{-v\n'\xff $(x)}",
            b"{",
        ];
        assert_eq!(filled(&words, true, &FIELDS).unwrap(), expected);
        let same = filled(&words, false, &FIELDS).unwrap();
        assert!(same.iter().zip(words).all(|(word, typed)| word == typed.as_bytes()));
    }

    #[test]
    fn nulls_are_empty() {
        let fields = Fields { key: None, value: None, ..FIELDS };
        assert_eq!(filled(&["x", "{}", "<{key}>"], true, &fields).unwrap(), [&b"x"[..], b"", b"<>"]);
    }

    #[test]
    fn what_no_argument_can_hold_is_a_reason() {
        let with = |value| filled(&["x", "a{}"], true, &Fields { value: Some(value), ..FIELDS });
        assert!(with(b"a\0b").unwrap_err().contains("NUL"));
        let long = vec![b'x'; STRING_BYTES_MAX];
        assert!(with(&long).unwrap_err().contains("131072"));
        assert!(with(&long[1..]).is_err(), "one byte too many with the a");
        assert!(with(&long[2..]).is_ok());
        let fields = Fields { value: Some(&long), ..FIELDS };
        assert!(filled(&["x", "{key}"], true, &fields).is_ok(), "it is not used");
    }
}
