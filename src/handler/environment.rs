//! The environment of a child: that of keylane, and what it is told about its record.
//!
//! What does not fit is left out and never an error: the system takes 128 KiB for one string, and for all of them
//! together with the arguments what its limit of the stack leaves. The exact headers are on a descriptor of their own,
//! see [`append_headers`].

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsString};
use std::io::Write;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;

use keylane_protocol::records::{Header, Record};
use nix::sys::resource::{Resource, getrlimit};

use super::base64;
use super::child::HEADERS_FD;

/// The longest single string with its NUL: MAX_ARG_STRLEN of the kernel, 32 pages.
pub const STRING_BYTES_MAX: usize = 128 << 10;
/// The kernel's upper limit for all strings and the pointers to them, three quarters of 8 MiB.
const TOTAL_BYTES_MAX: u64 = 6 << 20;
/// Its lower one.
const TOTAL_BYTES_MIN: u64 = 128 << 10;
/// Left free: the path, which the kernel puts beside them, and an interpreter that a `#!` puts in front.
const SPARE_BYTES: usize = 8 << 10;
const POINTER_BYTES: usize = size_of::<usize>();

/// Variables about a record. One that keylane itself has, as the child of another, is of another record.
const NAMES: [&str; 12] = [
    "TOPIC",
    "PARTITION",
    "OFFSET",
    "KEY",
    "KEY_B64",
    "VALUE_NULL",
    "TIMESTAMP",
    "GROUP",
    "ATTEMPT",
    "BATCH",
    "WORKER",
    "HEADERS_FD",
];
const PREFIX: &[u8] = b"KEYLANE_";
const HEADER_PREFIX: &[u8] = b"HEADER_";

/// What is the same for every record of a worker.
#[derive(Clone, Debug)]
pub struct Base {
    strings: Vec<CString>,
    /// What the arguments and the variables of a record may take.
    left_bytes: usize,
}

impl Base {
    /// From the process's own environment; workers count from 0.
    pub fn of_process(group: &str, worker: u32) -> Base {
        let stack_bytes = getrlimit(Resource::RLIMIT_STACK).map_or(8 << 20, |(soft, _)| soft);
        let total = (stack_bytes / 4).clamp(TOTAL_BYTES_MIN, TOTAL_BYTES_MAX);
        Base::new(std::env::vars_os(), group, worker, total as usize)
    }

    fn new(
        own: impl Iterator<Item = (OsString, OsString)>,
        group: &str,
        worker: u32,
        total_bytes: usize,
    ) -> Base {
        let inherited = own.map(|(name, value)| (name.into_vec(), value.into_vec()));
        let mut strings: Vec<CString> = inherited
            .filter(|(name, _)| !is_of_record(name))
            .filter_map(|(mut name, value)| {
                name.push(b'=');
                name.extend(value);
                CString::new(name).ok()
            })
            .collect();
        let own = [
            format!("KEYLANE_GROUP={group}"),
            format!("KEYLANE_WORKER={worker}"),
            format!("KEYLANE_HEADERS_FD={HEADERS_FD}"),
        ];
        // A group's name may hold anything; one with a NUL no variable can hold.
        strings.extend(own.into_iter().filter_map(|text| CString::new(text).ok()));
        let used: usize = strings.iter().map(|string| cost(string.count_bytes())).sum();
        Base { strings, left_bytes: total_bytes.saturating_sub(used + SPARE_BYTES) }
    }

    /// All of it, for a child that has no record of its own. `KEYLANE_HEADERS_FD` is not for such a one.
    pub fn without_record(&self) -> Vec<&CStr> {
        let is_for_record = |string: &CStr| string.to_bytes().starts_with(b"KEYLANE_HEADERS_FD=");
        self.strings.iter().map(CString::as_c_str).filter(|string| !is_for_record(string)).collect()
    }
}

fn is_of_record(name: &[u8]) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|rest| {
        NAMES.iter().any(|name| name.as_bytes() == rest) || rest.starts_with(HEADER_PREFIX)
    })
}

/// What a string of so many bytes takes of the system's limit.
pub fn cost(bytes: usize) -> usize {
    bytes + 1 + POINTER_BYTES
}

/// What the environment says of a record besides what the record holds.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition.
    pub partition: i32,
    /// Number of the try, from 1.
    pub attempt: u32,
    /// With `--batch`: how many records there are, of which this is the first.
    pub batch_records: Option<usize>,
}

/// A buffer for the variables of one record after the other.
#[derive(Debug, Default)]
pub struct Environment {
    bytes: Vec<u8>,
    strings: Vec<Range<usize>>,
}

impl Environment {
    /// The whole environment for a record, beside arguments that take `argument_bytes`.
    pub fn build<'a>(
        &'a mut self,
        base: &'a Base,
        about: About<'_>,
        record: &Record<'_>,
        argument_bytes: usize,
    ) -> Vec<&'a CStr> {
        self.bytes.clear();
        self.strings.clear();
        let mut left = base.left_bytes.saturating_sub(argument_bytes);
        self.push(&mut left, b"TOPIC", |out| out.extend(about.topic.as_bytes()));
        self.push_number(&mut left, b"PARTITION", about.partition.into());
        self.push_number(&mut left, b"OFFSET", record.offset);
        self.push_number(&mut left, b"TIMESTAMP", record.timestamp_ms);
        self.push_number(&mut left, b"ATTEMPT", about.attempt.into());
        if let Some(records) = about.batch_records {
            self.push_number(&mut left, b"BATCH", records as i64);
        }
        // Of a batch the values are in its lines.
        if record.value.is_none() && about.batch_records.is_none() {
            self.push_number(&mut left, b"VALUE_NULL", 1);
        }
        if let Some(key) = record.key {
            if is_text(key) {
                self.push(&mut left, b"KEY", |out| out.extend(key));
            }
            // Not even made where it cannot fit.
            if key.len() / 3 * 4 < STRING_BYTES_MAX.min(left) {
                self.push(&mut left, b"KEY_B64", |out| base64::append(out, key));
            }
        }
        self.push_headers(&mut left, record.headers());
        let own = self
            .strings
            .iter()
            .filter_map(|range| CStr::from_bytes_with_nul(&self.bytes[range.clone()]).ok());
        base.strings.iter().map(CString::as_c_str).chain(own).collect()
    }

    fn push_headers<'r>(&mut self, left: &mut usize, headers: impl Iterator<Item = Header<'r>>) {
        let mut last: BTreeMap<Vec<u8>, Option<&[u8]>> = BTreeMap::new();
        for (name, value) in headers {
            let shown =
                |byte: &u8| if byte.is_ascii_alphanumeric() { byte.to_ascii_uppercase() } else { b'_' };
            last.insert(HEADER_PREFIX.iter().copied().chain(name.iter().map(shown)).collect(), value);
        }
        for (name, value) in last {
            if let Some(value) = value.filter(|value| is_text(value)) {
                self.push(left, &name, |out| out.extend(value));
            }
        }
    }

    fn push_number(&mut self, left: &mut usize, name: &[u8], number: i64) {
        self.push(left, name, |out| write!(out, "{number}").expect("a Vec takes every write"));
    }

    /// Adds a variable, if it fits.
    fn push(&mut self, left: &mut usize, name: &[u8], value: impl FnOnce(&mut Vec<u8>)) {
        let begin = self.bytes.len();
        self.bytes.extend(PREFIX);
        self.bytes.extend(name);
        self.bytes.push(b'=');
        value(&mut self.bytes);
        self.bytes.push(0);
        let bytes = self.bytes.len() - begin;
        if bytes > STRING_BYTES_MAX || bytes + POINTER_BYTES > *left {
            self.bytes.truncate(begin);
        } else {
            *left -= bytes + POINTER_BYTES;
            self.strings.push(begin..self.bytes.len());
        }
    }
}

fn is_text(bytes: &[u8]) -> bool {
    !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok()
}

/// Appends the headers as they are, in order and with repetitions: a JSON list of pairs, name and value in base64, a
/// null value as null. `[]` where there is none.
pub fn append_headers<'a>(out: &mut Vec<u8>, headers: impl Iterator<Item = Header<'a>>) {
    out.push(b'[');
    for (index, (name, value)) in headers.enumerate() {
        out.extend(if index == 0 { &b"[\""[..] } else { b",[\"" });
        base64::append(out, name);
        match value {
            None => out.extend(b"\",null]"),
            Some(value) => {
                out.extend(b"\",\"");
                base64::append(out, value);
                out.extend(b"\"]");
            }
        }
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use keylane_protocol::records::BatchHeader;

    use super::*;
    use crate::handler::tests::batch_of;

    fn base(total_bytes: usize) -> Base {
        let own =
            [("HOME", "/root"), ("KEYLANE_KEY", "old"), ("KEYLANE_HEADER_A", "old"), ("KEYLANE_CONFIG", "c")];
        let own = own.into_iter().map(|(name, value)| (name.into(), value.into()));
        Base::new(own, "kitchen", 3, total_bytes)
    }

    fn built(base: &Base, record: &Record<'_>) -> Vec<String> {
        let about = About { topic: "orders", partition: 2, attempt: 1, batch_records: None };
        let mut environment = Environment::default();
        let strings = environment.build(base, about, record, 0);
        strings.iter().map(|string| String::from_utf8_lossy(string.to_bytes()).into_owned()).collect()
    }

    /// What is built for a record with this key, value and headers.
    fn of(base: &Base, key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header<'_>]) -> Vec<String> {
        let (header, payload): (BatchHeader, _) = batch_of(key, value, headers);
        built(base, &Record::parse(&header, &payload, 0).unwrap())
    }

    #[test]
    fn a_child_is_told_what_the_contract_says() {
        let headers: [Header<'_>; 5] = [
            (b"trace-id", Some(b"1")),
            (b"Trace.Id", Some(b"2 x")),
            (b"bin", Some(b"\xff")),
            (b"nul", Some(b"a\0b")),
            (b"none", None),
        ];
        assert_eq!(
            of(&base(1 << 20), Some(b"k1"), None, &headers),
            [
                "HOME=/root",
                "KEYLANE_CONFIG=c",
                "KEYLANE_GROUP=kitchen",
                "KEYLANE_WORKER=3",
                "KEYLANE_HEADERS_FD=3",
                "KEYLANE_TOPIC=orders",
                "KEYLANE_PARTITION=2",
                "KEYLANE_OFFSET=0",
                "KEYLANE_TIMESTAMP=1700000000000",
                "KEYLANE_ATTEMPT=1",
                "KEYLANE_VALUE_NULL=1",
                "KEYLANE_KEY=k1",
                "KEYLANE_KEY_B64=azE=",
                "KEYLANE_HEADER_TRACE_ID=2 x",
            ]
        );
        let null = of(&base(1 << 20), None, Some(b""), &[]);
        assert!(!null.iter().any(|text| text.contains("_KEY") || text.contains("VALUE_NULL")), "{null:?}");
        let binary = of(&base(1 << 20), Some(b"\xff"), Some(b""), &[]);
        assert!(
            binary.contains(&"KEYLANE_KEY_B64=/w==".to_owned()) && !binary.join(" ").contains("KEYLANE_KEY=")
        );
        assert!(of(&base(1 << 20), Some(b""), None, &[]).contains(&"KEYLANE_KEY=".to_owned()));
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let long = vec![b'k'; STRING_BYTES_MAX - "KEYLANE_KEY=".len() - 1];
        let total = 4 << 20;
        assert!(
            of(&base(total), Some(&long), None, &[]).iter().any(|text| text.len() == STRING_BYTES_MAX - 1)
        );
        let longer = [&long[..], b"k"].concat();
        assert!(!of(&base(total), Some(&longer), None, &[]).iter().any(|text| text.contains("_KEY")));

        let small = base(SPARE_BYTES + 1000);
        let value = [b'v'; 100];
        let headers: Vec<Header<'_>> = [&b"a"[..], b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"i"]
            .map(|name| (name, Some(&value[..])))
            .to_vec();
        let built = of(&small, None, Some(b"v"), &headers);
        let fit = built.iter().filter(|text| text.contains("HEADER_") && text.len() > 100).count();
        assert!((2..9).contains(&fit), "{built:?}");
        let taken: usize = built.iter().map(|text| cost(text.len())).sum();
        assert!(taken <= 1000, "{taken}");
    }

    #[test]
    fn headers_are_exact() {
        let shown = |headers: &[Header<'_>]| {
            let mut out = Vec::new();
            append_headers(&mut out, headers.iter().copied());
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown(&[]), "[]");
        let headers: [Header<'_>; 3] = [(b"a", Some(b"\0\xff")), (b"a", None), (b"", Some(b""))];
        assert_eq!(shown(&headers), r#"[["YQ==","AP8="],["YQ==",null],["",""]]"#);
    }
}
