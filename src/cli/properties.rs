//! Configuration files: Java's `client.properties` and `kcat.conf`.
//!
//! Pure. Java's grammar is that of `java.util.Properties.load`: comments with `#` or `!`, `=`, `:` or white space
//! between name and value, lines continued by a backslash, and the escapes `\t \n \r \f \uXXXX`. kcat's is plain
//! `name=value` with `#` comments, where a backslash is itself.

use std::fmt;
use std::iter::Peekable;
use std::str::Chars;

/// One `name=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The line it begins on, from 1.
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) value: String,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    line: usize,
    why: &'static str,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// A `kcat.conf`.
pub(super) fn kcat(text: &str) -> Result<Vec<Entry>, Wrong> {
    let mut entries = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let raw = raw.trim();
        if raw.is_empty() || raw.starts_with('#') {
            continue;
        }
        let line = index + 1;
        let (name, value) = raw.split_once('=').ok_or(Wrong { line, why: "no '=': write NAME=VALUE" })?;
        entries.push(Entry { line, name: name.trim().to_owned(), value: value.trim().to_owned() });
    }
    Ok(entries)
}

/// A Java properties file.
pub(super) fn java(text: &str) -> Result<Vec<Entry>, Wrong> {
    let mut entries = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, first)) = lines.next() {
        let first = first.trim_start_matches(blank);
        if first.is_empty() || first.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = first.to_owned();
        while continues(&logical) {
            logical.pop();
            match lines.next() {
                Some((_, next)) => logical.push_str(next.trim_start_matches(blank)),
                None => break,
            }
        }
        let line = index + 1;
        let (name, value) = split(&logical).map_err(|why| Wrong { line, why })?;
        entries.push(Entry { line, name, value });
    }
    Ok(entries)
}

fn blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\u{c}')
}

/// An odd number of backslashes at the end continues the line.
fn continues(line: &str) -> bool {
    line.bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 1
}

fn split(logical: &str) -> Result<(String, String), &'static str> {
    let mut chars = logical.chars().peekable();
    let mut name = String::new();
    while let Some(&c) = chars.peek() {
        if blank(c) || matches!(c, '=' | ':') {
            break;
        }
        name.push(character(&mut chars)?);
    }
    while chars.next_if(|c| blank(*c)).is_some() {}
    if chars.next_if(|c| matches!(c, '=' | ':')).is_some() {
        while chars.next_if(|c| blank(*c)).is_some() {}
    }
    let mut value = String::new();
    while chars.peek().is_some() {
        value.push(character(&mut chars)?);
    }
    if name.is_empty() { Err("no name before the '='") } else { Ok((name, value)) }
}

/// The next character with its escape undone; the caller has peeked.
fn character(chars: &mut Peekable<Chars<'_>>) -> Result<char, &'static str> {
    match chars.next() {
        Some('\\') => match chars.next() {
            Some('t') => Ok('\t'),
            Some('n') => Ok('\n'),
            Some('r') => Ok('\r'),
            Some('f') => Ok('\u{c}'),
            Some('u') => unicode(chars),
            // Java drops the backslash before any other character.
            Some(c) => Ok(c),
            None => Err("a backslash at the end"),
        },
        Some(c) => Ok(c),
        None => Err("ends too early"),
    }
}

/// `XXXX` of `\uXXXX`; what is outside the basic plane is written as two of them.
fn unicode(chars: &mut Peekable<Chars<'_>>) -> Result<char, &'static str> {
    const WRONG: &str = "\\u needs four hexadecimal digits that make a character";
    let unit = four_digits(chars).ok_or(WRONG)?;
    if !(0xd800..0xdc00).contains(&unit) {
        return char::from_u32(unit).ok_or(WRONG);
    }
    if chars.next() != Some('\\') || chars.next() != Some('u') {
        return Err(WRONG);
    }
    let low = four_digits(chars).filter(|low| (0xdc00..0xe000).contains(low)).ok_or(WRONG)?;
    char::from_u32(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00)).ok_or(WRONG)
}

fn four_digits(chars: &mut Peekable<Chars<'_>>) -> Option<u32> {
    let mut unit = 0;
    for _ in 0..4 {
        unit = unit * 16 + chars.next()?.to_digit(16)?;
    }
    Some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(entries: Result<Vec<Entry>, Wrong>) -> Vec<(usize, String, String)> {
        entries.unwrap().into_iter().map(|e| (e.line, e.name, e.value)).collect()
    }

    fn expected(list: &[(usize, &str, &str)]) -> Vec<(usize, String, String)> {
        list.iter().map(|(line, name, value)| (*line, (*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn java_separators_and_comments() {
        let text = "# c\n! c\n\n  a=1\nb = 2\nc:3\nd : 4\ne 5\nf\ng==x\nh= y \r\n";
        let list = [
            (4, "a", "1"),
            (5, "b", "2"),
            (6, "c", "3"),
            (7, "d", "4"),
            (8, "e", "5"),
            (9, "f", ""),
            (10, "g", "=x"),
            (11, "h", "y "),
        ];
        assert_eq!(pairs(java(text)), expected(&list));
    }

    #[test]
    fn java_escapes_and_continuations() {
        let text = "sasl.jaas.config=org.X required \\\n    username=\"u\" \\\n\t# not a comment\nb\\=c=1\n\
                    p=a\\\\\nq=a\\tb\\n\\:\\u00e9\\uD83D\\uDE00\nlast=x\\";
        let list = [
            (1, "sasl.jaas.config", "org.X required username=\"u\" # not a comment"),
            (4, "b=c", "1"),
            (5, "p", "a\\"),
            (6, "q", "a\tb\n:é😀"),
            (7, "last", "x"),
        ];
        assert_eq!(pairs(java(text)), expected(&list));
    }

    #[test]
    fn java_files_that_are_wrong() {
        for text in ["a=\\u12", "a=\\uD83D", "a=\\uD83Dx", "a=\\uD83D\\u0041", "a=\\u+123", "=x", "a=\\uDE00"]
        {
            assert!(java(text).is_err(), "{text}");
        }
        assert_eq!(java("x=1\n:y").unwrap_err().to_string(), "line 2: no name before the '='");
    }

    #[test]
    fn kcat_keeps_backslashes() {
        let text = "# c\nbootstrap.servers=a:1\n sasl.password = p\\w=d \n";
        assert_eq!(
            pairs(kcat(text)),
            expected(&[(2, "bootstrap.servers", "a:1"), (3, "sasl.password", "p\\w=d")])
        );
        assert_eq!(kcat("\nx").unwrap_err().to_string(), "line 2: no '=': write NAME=VALUE");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,200}") {
            let _ = java(&text);
            let _ = kcat(&text);
        }
    }
}
