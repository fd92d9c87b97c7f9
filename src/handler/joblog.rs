//! `--joblog`: a line per try and record in the columns of GNU parallel, for its users' scripts and for `verify`.
//!
//! Guarantees: a line goes out in one write to the file's end, so lines of several workers and processes never mix; the
//! file begins with one header line; a line of an earlier run that was cut (a full disk) is ended before ours; a tab or
//! newline inside a command does not break its line. What is in a [`Joblog`] when `write` returns survives `kill -9`
//! (not a power failure: it is not synced, as GNU parallel's is not).
//!
//! Seq counts the lines of one process from 1, tries included, as every line of GNU parallel has a Seq of its own.
//! Lines stand in the order in which tries ended, which for the records of a lane is their order.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::fcntl::{Flock, FlockArg};

use crate::driver::clock::Instant;

/// The first line.
pub const HEADER: &str = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n";

/// One try of one record.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Topic, partition, offset: the Host column.
    pub place: (&'a str, i32, i64),
    /// When it began.
    pub began: SystemTime,
    /// How long it took.
    pub ran: Duration,
    /// Bytes given to the child.
    pub sent_bytes: u64,
    /// Bytes that came from it.
    pub received_bytes: u64,
    /// The exit code; -1 where there was none.
    pub exit: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
    /// What was run, in words joined by spaces; it need not be UTF-8.
    pub command: &'a [u8],
}

/// A file that lines are appended to, by any number of threads.
#[derive(Debug)]
pub struct Joblog {
    file: File,
    seq: AtomicU64,
    /// Both when it was opened.
    opened: (SystemTime, Instant),
}

impl Joblog {
    /// Opens or makes the file; what is in it stays.
    ///
    /// # Errors
    /// It cannot be opened for appending, or the header cannot be written.
    pub fn open(path: &Path) -> io::Result<Joblog> {
        let mut file = OpenOptions::new().append(true).create(true).open(path)?;
        if file.metadata()?.is_file() {
            // Processes that begin together must not both find it empty.
            let mut locked = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
            begin(&mut locked, path)?;
            file = locked.unlock().map_err(|(_, error)| error)?;
        } else {
            file.write_all(HEADER.as_bytes())?;
        }
        Ok(Joblog { file, seq: AtomicU64::new(0), opened: (SystemTime::now(), Instant::now()) })
    }

    /// What time it is, in this file: a clock that is set back in the middle of a run would make its tries overlap.
    pub fn now(&self) -> SystemTime {
        let (wall, instant) = self.opened;
        wall + instant.elapsed()
    }

    /// Appends a line.
    ///
    /// # Errors
    /// It is not, or not wholly, written; the run must not go on, or a record would be committed without its line.
    pub fn write(&self, entry: &Entry<'_>) -> io::Result<()> {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed) + 1;
        // A line that fits goes out in one write; what is left after a short one meets the error that cut it.
        (&self.file).write_all(&line(seq, entry))
    }
}

/// Writes what must stand before our first line, under the file's lock.
fn begin(file: &mut File, path: &Path) -> io::Result<()> {
    if file.metadata()?.len() == 0 {
        return file.write_all(HEADER.as_bytes());
    }
    let mut last = [0];
    let mut reader = File::open(path)?;
    reader.seek(SeekFrom::End(-1))?;
    reader.read_exact(&mut last)?;
    if last != *b"\n" { file.write_all(b"\n") } else { Ok(()) }
}

fn line(seq: u64, entry: &Entry<'_>) -> Vec<u8> {
    let (topic, partition, offset) = entry.place;
    let began = entry.began.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let ran = entry.ran.as_secs_f64();
    let Entry { sent_bytes, received_bytes, exit, signal, .. } = entry;
    let mut line = format!(
        "{seq}\t{topic}/{partition}@{offset}\t{began:.3}\t{ran:10.3}\t{sent_bytes}\t{received_bytes}\t{exit}\t\
         {signal}\t"
    )
    .into_bytes();
    line.extend_from_slice(&escaped(entry.command));
    line.push(b'\n');
    line
}

/// `\t`, `\n`, `\r`, `\0` and `\\` for these bytes, so that it can be undone.
fn escaped(command: &[u8]) -> Cow<'_, [u8]> {
    let code = |byte: u8| match byte {
        b'\t' => Some(b't'),
        b'\n' => Some(b'n'),
        b'\r' => Some(b'r'),
        0 => Some(b'0'),
        b'\\' => Some(b'\\'),
        _ => None,
    };
    if command.iter().all(|byte| code(*byte).is_none()) {
        return Cow::Borrowed(command);
    }
    let mut text = Vec::with_capacity(command.len() + 16);
    for byte in command {
        match code(*byte) {
            Some(letter) => text.extend_from_slice(&[b'\\', letter]),
            None => text.push(*byte),
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;
    use std::thread;

    use super::*;

    fn entry(command: &[u8]) -> Entry<'_> {
        Entry {
            place: ("orders", 3, 17),
            began: UNIX_EPOCH + Duration::from_millis(1_700_000_000_250),
            ran: Duration::from_micros(12_345),
            sent_bytes: 100,
            received_bytes: 7,
            exit: 1,
            signal: 0,
            command,
        }
    }

    fn lines(path: &Path) -> Vec<String> {
        fs::read_to_string(path).expect("the joblog is there").lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_line_has_gnu_parallels_columns() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let log = Joblog::open(&path).expect("opened");
        log.write(&entry(b"./cook.sh a b")).expect("written");
        let lines = lines(&path);
        assert_eq!(lines[0], HEADER.trim_end());
        assert_eq!(lines[1], "1\torders/3@17\t1700000000.250\t     0.012\t100\t7\t1\t0\t./cook.sh a b");
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn what_is_there_stays_and_a_cut_line_is_ended() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        Joblog::open(&path).expect("opened").write(&entry(b"a")).expect("written");
        let whole = fs::read(&path).expect("read");
        fs::write(&path, &whole[..whole.len() - 3]).expect("cut");
        Joblog::open(&path).expect("opened again").write(&entry(b"b")).expect("written");
        let lines = lines(&path);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[2].starts_with("1\torders/3@17\t") && lines[2].ends_with("\tb"), "{lines:?}");
    }

    #[test]
    fn a_command_stays_on_its_line() {
        assert_eq!(escaped(b"sh -c 'a\tb\nc\\d\0\r'"), b"sh -c 'a\\tb\\nc\\\\d\\0\\r'".as_slice());
        assert_eq!(escaped(b"\xff plain"), b"\xff plain".as_slice());
    }

    #[test]
    fn lines_of_threads_do_not_mix() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        let log = Arc::new(Joblog::open(&path).expect("opened"));
        let command = vec![b'x'; 3000];
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (log, command) = (log.clone(), command.clone());
                thread::spawn(move || (0..50).for_each(|_| log.write(&entry(&command)).expect("written")))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let lines = lines(&path);
        let mut seqs: Vec<u64> = lines[1..]
            .iter()
            .map(|line| {
                let columns: Vec<&str> = line.split('\t').collect();
                assert_eq!((columns.len(), columns[8].len()), (9, 3000));
                columns[0].parse().expect("a number")
            })
            .collect();
        seqs.sort_unstable();
        assert_eq!(seqs, (1..=200).collect::<Vec<u64>>());
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let path = Path::new("/dev/full");
        if path.exists() {
            assert!(Joblog::open(path).is_err());
        }
    }
}
