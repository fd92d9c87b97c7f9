//! The lines of children on their way to keylane's own stdout and stderr.
//!
//! Whole lines go out, each by one write with what came along, so lines of several children never mix. As GNU parallel
//! has it, a last line without an end is passed as it is, and `--tag` puts topic/partition@offset and a tab before each
//! line. A line of more than `LINE_BYTES_MAX` is passed in parts, between which others may stand.

use std::io;

use crate::report;

/// Of a line that does not end this much is held.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Where lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Our stdout: a write that fails is an error.
    Stdout,
    /// Our stderr: nobody is left to be told of an error.
    Stderr,
    /// Nowhere, for tests.
    #[cfg(test)]
    Nowhere,
}

impl Target {
    fn write(self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Target::Stdout => report::to_stdout(bytes),
            Target::Stderr => {
                report::pass_to_stderr(bytes);
                Ok(())
            }
            #[cfg(test)]
            Target::Nowhere => Ok(()),
        }
    }
}

/// One stream of one worker's children.
#[derive(Debug)]
pub struct Lines {
    target: Target,
    /// What came since the last end of a line, but for parts that are out.
    pending: Vec<u8>,
    /// A part of the line is out.
    is_begun: bool,
}

impl Lines {
    /// Nothing has come yet.
    pub fn to(target: Target) -> Lines {
        Lines { target, pending: Vec::new(), is_begun: false }
    }

    /// Takes what came, and writes what is whole with `tag` before each line.
    ///
    /// # Errors
    /// Our stdout takes no more.
    pub fn pass(&mut self, bytes: &[u8], tag: &[u8]) -> io::Result<()> {
        self.pass_with(bytes, tag, |bytes, target| target.write(bytes))
    }

    /// Writes what is left: the child has ended.
    ///
    /// # Errors
    /// Our stdout takes no more.
    pub fn end(&mut self, tag: &[u8]) -> io::Result<()> {
        self.end_with(tag, |bytes, target| target.write(bytes))
    }

    fn pass_with(
        &mut self,
        bytes: &[u8],
        tag: &[u8],
        mut write: impl FnMut(&[u8], Target) -> io::Result<()>,
    ) -> io::Result<()> {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (whole, rest) = bytes.split_at(whole);
        if !whole.is_empty() {
            let begun = std::mem::take(&mut self.is_begun);
            if self.pending.is_empty() && tag.is_empty() {
                write(whole, self.target)?;
            } else {
                self.pending.extend(whole);
                let lines = std::mem::take(&mut self.pending);
                write(&tagged(lines, tag, begun), self.target)?;
            }
        }
        self.pending.extend(rest);
        if self.pending.len() > LINE_BYTES_MAX { self.part(tag, write) } else { Ok(()) }
    }

    fn end_with(&mut self, tag: &[u8], write: impl FnMut(&[u8], Target) -> io::Result<()>) -> io::Result<()> {
        let ended = if self.pending.is_empty() { Ok(()) } else { self.part(tag, write) };
        self.is_begun = false;
        ended
    }

    fn part(&mut self, tag: &[u8], mut write: impl FnMut(&[u8], Target) -> io::Result<()>) -> io::Result<()> {
        let begun = std::mem::replace(&mut self.is_begun, true);
        let part = std::mem::take(&mut self.pending);
        write(&tagged(part, tag, begun), self.target)
    }
}

/// The lines with the tag before each, but for the first where that has begun.
fn tagged(lines: Vec<u8>, tag: &[u8], begun: bool) -> Vec<u8> {
    if tag.is_empty() {
        return lines;
    }
    let mut out = Vec::with_capacity(lines.len() + 4 * tag.len());
    for (index, line) in lines.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if index > 0 || !begun {
            out.extend(tag);
        }
        out.extend(line);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written for these parts of a stream.
    fn written(parts: &[&[u8]], tag: &[u8]) -> Vec<Vec<u8>> {
        let mut lines = Lines::to(Target::Stdout);
        let mut out = Vec::new();
        for part in parts {
            let write = |bytes: &[u8], _| {
                out.push(bytes.to_vec());
                Ok(())
            };
            lines.pass_with(part, tag, write).unwrap();
            assert!(lines.pending.len() <= LINE_BYTES_MAX);
        }
        let write = |bytes: &[u8], _| {
            out.push(bytes.to_vec());
            Ok(())
        };
        lines.end_with(tag, write).unwrap();
        out
    }

    #[test]
    fn lines_go_out_whole() {
        let parts: [&[u8]; 5] = [b"a", b"b\nc\nd", b"", b"\n\n", b"e"];
        assert_eq!(written(&parts, b""), [&b"ab\nc\n"[..], b"d\n\n", b"e"]);
        assert_eq!(
            written(&parts, b"t/0@1\t"),
            [&b"t/0@1\tab\nt/0@1\tc\n"[..], b"t/0@1\td\nt/0@1\t\n", b"t/0@1\te"]
        );
        assert!(written(&[b"", b""], b"t\t").is_empty());
    }

    #[test]
    fn a_line_without_end_is_passed_in_parts() {
        let long = vec![b'x'; LINE_BYTES_MAX];
        let out = written(&[&long, b"y", b"z\nnext", b"\n"], b"t\t");
        assert_eq!(out.len(), 3);
        assert_eq!(out[0].len(), LINE_BYTES_MAX + 3);
        assert_eq!(out[1..], [&b"z\n"[..], b"t\tnext\n"]);
    }

    proptest::proptest! {
        #[test]
        fn nothing_is_lost(parts in proptest::collection::vec("[ab\n]{0,9}", 0..9)) {
            let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
            proptest::prop_assert_eq!(written(&parts, b"").concat(), parts.concat());
            let tags = written(&parts, b"#").concat().iter().filter(|byte| **byte == b'#').count();
            let lines = parts.concat().split_inclusive(|byte| *byte == b'\n').count();
            proptest::prop_assert_eq!(tags, lines);
        }
    }
}
