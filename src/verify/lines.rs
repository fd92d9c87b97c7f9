//! Reads joblogs back: see [`crate::handler::joblog`] for what a line promises.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use crate::handler::joblog::HEADER;

/// A line is longer only in a file that is no joblog: a command has 128 KiB an argument at most.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// One try of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) offset: i64,
    /// When it began and ended, µs since 1970; both are right to a millisecond.
    pub(super) began_us: i64,
    pub(super) ended_us: i64,
    /// Whether the handler was content.
    pub(super) done: bool,
}

/// Calls `each` for every try of a file, in its order. Returns how many lines are neither that nor a header: a process
/// that was killed while it wrote, or a full disk, leaves one.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(path: &Path, mut each: impl FnMut(Tried)) -> io::Result<u64> {
    let mut reader = BufReader::new(File::open(path)?);
    let (mut line, mut bad) = (Vec::new(), 0);
    loop {
        line.clear();
        if io::Read::take(&mut reader, LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(bad);
        }
        let Some(whole) = line.strip_suffix(b"\n") else {
            bad += 1;
            continue;
        };
        if whole.is_empty() || whole == HEADER.trim_end().as_bytes() {
            continue;
        }
        match parse(whole) {
            Some(tried) => each(tried),
            None => bad += 1,
        }
    }
}

fn parse(line: &[u8]) -> Option<Tried> {
    let mut columns = line.splitn(9, |byte| *byte == b'\t');
    let mut next = || columns.next().and_then(|column| std::str::from_utf8(column).ok());
    next()?.parse::<u64>().ok()?;
    let (topic, place) = next()?.rsplit_once('/')?;
    let (partition, offset) = place.split_once('@')?;
    let began_us = micros(next()?)?;
    let ran_us = micros(next()?.trim_start())?;
    next()?.parse::<u64>().ok()?;
    next()?.parse::<u64>().ok()?;
    let exit: i32 = next()?.parse().ok()?;
    let signal: i32 = next()?.parse().ok()?;
    columns.next()?;
    Some(Tried {
        topic: topic.to_owned(),
        partition: partition.parse().ok()?,
        offset: offset.parse().ok()?,
        began_us,
        ended_us: began_us.checked_add(ran_us)?,
        done: exit == 0 && signal == 0,
    })
}

/// Seconds with three decimals.
fn micros(text: &str) -> Option<i64> {
    let (seconds, decimals) = text.split_once('.')?;
    let (seconds, ms): (i64, i64) = (seconds.parse().ok()?, decimals.parse().ok()?);
    if decimals.len() != 3 || seconds < 0 || ms < 0 {
        return None;
    }
    seconds.checked_mul(1_000_000)?.checked_add(ms * 1000)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::handler::joblog::{Entry, Joblog};

    #[test]
    fn what_is_written_is_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let entry = Entry {
            place: ("a/b", 3, 17),
            began: UNIX_EPOCH + Duration::from_millis(1_700_000_000_250),
            ran: Duration::from_millis(1500),
            sent_bytes: 1,
            received_bytes: 2,
            exit: 0,
            signal: 0,
            command: b"sh -c '\t\xff\n'",
        };
        let log = Joblog::open(&path).expect("opened");
        log.write(&entry).expect("written");
        log.write(&Entry { exit: 65, ..entry }).expect("written");
        let mut all = Vec::new();
        assert_eq!(read(&path, |tried| all.push(tried)).expect("read"), 0);
        let first = Tried {
            topic: "a/b".to_owned(),
            partition: 3,
            offset: 17,
            began_us: 1_700_000_000_250_000,
            ended_us: 1_700_000_001_750_000,
            done: true,
        };
        assert_eq!(all, [first.clone(), Tried { done: false, ..first }]);
    }

    #[test]
    fn a_cut_line_is_counted() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        std::fs::write(&path, format!("{HEADER}1\tt/0@5\t1.0\n\n2\tt/0@6\t1.000\t     0.0"))
            .expect("written");
        let mut all = 0;
        assert_eq!(read(&path, |_| all += 1).expect("read"), 2);
        assert_eq!(all, 0);
    }
}
