//! What is between a worker and its `--pipe` child, without IO: which records are open, the bytes that are still to be
//! written, the answers that come back, and what becomes of open records when a child ends.
//!
//! Guarantees: each record that is opened gets exactly one outcome; only a record of which a byte has left can be
//! answered, only one that the child began to read is blamed for its end; at most `depth` are open and at most
//! [`OUT_BYTES_MAX`] and one record wait to be written; an answer costs no search and no allocation. A session
//! outlives its children: ids go on rising from one to the next, so that none is given twice.

use std::time::Duration;

use super::answer::{self, Answer};
use crate::handler::outcome::{End, ExitCodes, Failed, Kind, Outcome, reason};
use crate::pool::shared::Ends;

/// Beyond so many bytes that wait to be written no record is added to them.
pub(super) const OUT_BYTES_MAX: usize = 256 << 10;
/// A longer line is no answer.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;
/// Of what a child printed, so much is quoted.
const QUOTE_BYTES_MAX: usize = 200;
/// A larger buffer, which one large record made, is not kept.
const SPARE_BYTES_MAX: usize = 4 * OUT_BYTES_MAX;
/// What a record is thought to take before the first is known.
const RECORD_BYTES: usize = 1024;
/// No slot.
const NONE: u32 = u32::MAX;

/// How a child came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// By itself.
    Died(End),
    /// It was ended because it did not keep to the format, and this is what it did.
    Broken(String),
    /// It was ended because the oldest record took too long.
    TimedOut,
    /// It was ended for reasons that have nothing to do with its records.
    Ended,
}

/// A record that is over.
#[derive(Debug)]
pub(super) struct Settled<T> {
    /// The record.
    pub(super) item: T,
    /// What it came to.
    pub(super) outcome: Outcome,
    /// When it was opened.
    pub(super) began: Duration,
    /// Length of its line to the child.
    pub(super) sent_bytes: u64,
    /// Length of its answer.
    pub(super) received_bytes: u64,
}

#[derive(Debug)]
struct Open<T> {
    item: T,
    id: u64,
    began: Duration,
    ends: Option<Ends>,
    /// Where its line lies in the stream to the child; nothing is known before it is rendered.
    line: Option<(u64, u64)>,
    older: u32,
    newer: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Session<T> {
    depth: usize,
    timeout: Option<Duration>,
    /// A record's place is its id modulo their number, which is a power of two and at least twice `depth`: an id whose
    /// place is taken is left out.
    slots: Vec<Option<Open<T>>>,
    next_id: u64,
    open: usize,
    /// Open records are linked in the order they were opened in.
    oldest: u32,
    newest: u32,
    /// Since when the oldest is the oldest.
    oldest_since: Duration,
    /// The first that is not rendered; neither is any newer one.
    unrendered: u32,
    /// The open one wants no other beside it.
    alone: bool,
    /// Its time is over.
    late: Option<u64>,
    /// Some open record has ends.
    has_ends: bool,
    out: Vec<u8>,
    /// How much of `out` is written.
    out_at: usize,
    /// Bytes ever rendered and written for this child: `written` ≤ `rendered`, and they differ by what `out` holds.
    rendered: u64,
    written: u64,
    /// The child reads no more.
    closed: bool,
    /// The beginning of a line that is not complete.
    line: Vec<u8>,
    /// Answers of this child.
    answers: u64,
    /// What the next record may take: the largest lately.
    record_bytes: usize,
}

impl<T> Session<T> {
    /// `depth` records at once, not 0. A record's time begins when those opened before it are over: a child that works
    /// one by one must not lose the last of 64 because the 63 before it took their time.
    pub(super) fn new(depth: usize, timeout: Option<Duration>) -> Self {
        assert!(depth > 0, "a child that may have no record has nothing to do");
        let slots = (2 * depth).next_power_of_two();
        Session {
            depth,
            timeout,
            slots: (0..slots).map(|_| None).collect(),
            next_id: 1,
            open: 0,
            oldest: NONE,
            newest: NONE,
            oldest_since: Duration::ZERO,
            unrendered: NONE,
            alone: false,
            late: None,
            has_ends: false,
            out: Vec::new(),
            out_at: 0,
            rendered: 0,
            written: 0,
            closed: false,
            line: Vec::new(),
            answers: 0,
            record_bytes: RECORD_BYTES,
        }
    }

    // ---- Records in ----

    /// How many records may be opened now.
    pub(super) fn room(&self) -> usize {
        let waiting = self.out().len();
        if self.alone
            || self.closed
            || self.late.is_some()
            || self.unrendered != NONE
            || waiting >= OUT_BYTES_MAX
        {
            return 0;
        }
        let fit = ((OUT_BYTES_MAX - waiting) / self.record_bytes).max(1);
        fit.min(self.depth - self.open)
    }

    /// Number of open records.
    pub(super) fn open_records(&self) -> usize {
        self.open
    }

    /// The record that was opened first of those that are open, and when.
    pub(super) fn oldest(&self) -> Option<(&T, Duration)> {
        let record = self.slots.get(self.oldest as usize)?.as_ref()?;
        Some((&record.item, record.began))
    }

    /// Opens a record; `alone` = none is to be opened beside it.
    pub(super) fn open(&mut self, item: T, alone: bool, now: Duration) {
        assert!(self.open < self.depth, "no more than the depth is opened");
        let mask = self.slots.len() as u64 - 1;
        while self.slots[(self.next_id & mask) as usize].is_some() {
            self.next_id += 1;
        }
        let id = self.next_id;
        let slot = (id & mask) as u32;
        self.next_id += 1;
        let record = Open { item, id, began: now, ends: None, line: None, older: self.newest, newer: NONE };
        self.slots[slot as usize] = Some(record);
        match self.newest {
            NONE => (self.oldest, self.oldest_since) = (slot, now),
            newest => self.at_mut(newest).newer = slot,
        }
        self.newest = slot;
        if self.unrendered == NONE {
            self.unrendered = slot;
        }
        self.open += 1;
        self.alone |= alone;
    }

    /// Renders what there is room for. `render` appends a record's line, its newline included.
    pub(super) fn fill(&mut self, mut render: impl FnMut(u64, &T, &mut Vec<u8>)) {
        while self.unrendered != NONE && self.out().len() < OUT_BYTES_MAX {
            let slot = self.unrendered as usize;
            let record = self.slots[slot].as_mut().expect("a linked slot holds a record");
            let before = self.out.len();
            render(record.id, &record.item, &mut self.out);
            let bytes = self.out.len() - before;
            record.line = Some((self.rendered, self.rendered + bytes as u64));
            self.unrendered = record.newer;
            self.rendered += bytes as u64;
            self.record_bytes = bytes.max(self.record_bytes - self.record_bytes / 16).max(1);
        }
    }

    // ---- Bytes out ----

    /// What is to be written.
    pub(super) fn out(&self) -> &[u8] {
        &self.out[self.out_at..]
    }

    /// So many of these bytes are written.
    pub(super) fn wrote(&mut self, bytes: usize) {
        assert!(bytes <= self.out().len(), "no more is written than there is");
        self.out_at += bytes;
        self.written += bytes as u64;
        if self.out_at == self.out.len() {
            self.out.clear();
            self.out_at = 0;
            if self.out.capacity() > SPARE_BYTES_MAX {
                self.out = Vec::new();
            }
        } else if self.out_at >= OUT_BYTES_MAX && self.out_at >= self.out.len() / 2 {
            self.out.drain(..self.out_at);
            self.out_at = 0;
        }
    }

    /// Nothing more is to be begun for now: what the child has not been given a byte of comes to nothing. A line that
    /// has left in part is still to be written.
    pub(super) fn withdraw(&mut self, now: Duration, into: &mut Vec<Settled<T>>) {
        let mut end = self.rendered;
        let mut slot = self.newest;
        // What was opened later stands further back.
        while slot != NONE {
            let record = self.at(slot);
            let older = record.older;
            if !self.is_given(record) {
                end = record.line.map_or(end, |(begin, _)| begin);
                self.settle(slot, Outcome::Unfinished, 0, now, into);
            }
            slot = older;
        }
        self.out.truncate(self.out.len() - (self.rendered - end) as usize);
        self.rendered = end;
        self.wrote(0);
        self.invariants();
    }

    /// The child reads no more; it has left `unread` bytes of what was written. It may still answer for what it has;
    /// what it has not is tried again.
    ///
    /// # Errors
    /// It has no whole record, so that it is of no use any more.
    pub(super) fn close_input(&mut self, unread: u64, into: &mut Vec<Settled<T>>) -> Result<(), String> {
        self.closed = true;
        let what = "the child closed its stdin";
        let read = self.written.saturating_sub(unread);
        let whole = |record: &Open<T>| record.line.is_some_and(|(_, end)| end <= read);
        if self.open > 0 && self.count(whole) == 0 {
            return Err(what.to_owned());
        }
        let mut slot = self.newest;
        while slot != NONE {
            let older = self.at(slot).older;
            let record = self.at(slot);
            if record.line.is_none_or(|(_, end)| end > read) {
                let begun = record.line.is_some_and(|(begin, _)| begin < read);
                let outcome = if begun { together(End::Answer, what) } else { Outcome::Unfinished };
                self.settle(slot, outcome, 0, Duration::ZERO, into);
            }
            slot = older;
        }
        self.forget_out();
        Ok(())
    }

    /// The child reads no more and owes no answer.
    pub(super) fn is_spent(&self) -> bool {
        self.closed && self.open == 0
    }

    // ---- Answers ----

    /// Takes what the child printed, cut anywhere.
    ///
    /// # Errors
    /// It is no answer to an open record: what the child did, in words. Nothing more is to be read from it.
    pub(super) fn read(
        &mut self,
        bytes: &[u8],
        now: Duration,
        into: &mut Vec<Settled<T>>,
    ) -> Result<(), String> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (head, tail) = (&rest[..end], &rest[end + 1..]);
            rest = tail;
            if self.line.is_empty() {
                self.answer(head, now, into)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend(head);
                let answered = self.answer(&line, now, into);
                line.clear();
                self.line = line;
                answered?;
            }
        }
        self.line.extend(rest);
        if self.line.len() > LINE_BYTES_MAX {
            return Err(format!("the child printed a line without end: {}", quote(&self.line)));
        }
        Ok(())
    }

    fn answer(&mut self, line: &[u8], now: Duration, into: &mut Vec<Settled<T>>) -> Result<(), String> {
        if line.len() > LINE_BYTES_MAX {
            return Err(format!("the child printed a line without end: {}", quote(line)));
        }
        let Some((id, answer)) = answer::parse(line) else {
            return Err(format!("the child printed no answer but {}", quote(line)));
        };
        let slot = (id & (self.slots.len() as u64 - 1)) as u32;
        let record = self.slots[slot as usize].as_ref().filter(|record| record.id == id);
        if !record.is_some_and(|record| self.is_given(record)) {
            return Err(format!("the child answered for a record that it does not have: {}", quote(line)));
        }
        self.answers += 1;
        if self.late == Some(id) {
            // It has been judged.
            return Ok(());
        }
        let failed = |kind, text: &[u8], default: &str| {
            let text =
                if text.is_empty() { default.to_owned() } else { String::from_utf8_lossy(text).into_owned() };
            Outcome::Failed(Failed { kind, end: End::Answer, reason: reason(text), counts: true })
        };
        let outcome = match answer {
            Answer::Ok => Outcome::Done,
            Answer::Retry(text) => failed(Kind::Temporary, text, "answered retry"),
            Answer::Reject(text) => failed(Kind::Reject, text, "answered reject"),
        };
        self.settle(slot, outcome, line.len() as u64 + 1, now, into);
        Ok(())
    }

    /// Answers of this child so far.
    pub(super) fn answers(&self) -> u64 {
        self.answers
    }

    // ---- Ends ----

    /// When the oldest record's time is over, if it is not yet.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let timeout = self.timeout.filter(|_| self.oldest != NONE && self.late.is_none())?;
        Some(self.oldest_since.saturating_add(timeout))
    }

    /// Returns whether the oldest record's time is over: the child is to be ended then.
    pub(super) fn is_late(&mut self, now: Duration) -> bool {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.late = Some(self.at(self.oldest).id);
            return true;
        }
        false
    }

    /// Asks for the ends of the `newest` records that were opened last. An end once known never moves back.
    pub(super) fn look_at_ends(&mut self, newest: usize, mut ends_of: impl FnMut(&T) -> Option<Ends>) {
        let mut slot = self.newest;
        for _ in 0..newest.min(self.open) {
            let record = self.at_mut(slot);
            slot = record.older;
            if let Some(ends) = ends_of(&record.item) {
                record.ends = Some(record.ends.map_or(ends, |known| known.earlier(ends)));
                self.has_ends = true;
            }
        }
    }

    /// When the child is to be sent TERM, and KILL: it is spared TERM while it has a record that is not to be broken
    /// off.
    pub(super) fn ends(&self) -> (Option<Duration>, Option<Duration>) {
        if !self.has_ends {
            return (None, None);
        }
        let (mut term_at, mut kill_at, mut all) = (Duration::ZERO, None, true);
        let mut slot = self.oldest;
        while slot != NONE {
            let record = self.at(slot);
            slot = record.newer;
            match record.ends {
                None => all = false,
                Some(ends) => {
                    term_at = term_at.max(ends.term_at);
                    kill_at = Some(kill_at.unwrap_or(ends.kill_at).min(ends.kill_at));
                }
            }
        }
        ((all && kill_at.is_some()).then_some(term_at), kill_at)
    }

    /// The child is no more, and has left `unread` bytes of what was written: every open record gets its outcome, and
    /// the session is ready for the next child.
    pub(super) fn end(
        &mut self,
        fate: &Fate,
        unread: u64,
        exits: &ExitCodes,
        now: Duration,
        into: &mut Vec<Settled<T>>,
    ) {
        if let Fate::Died(_) = fate {
            // A last line may lack its newline. An answer that is cut elsewhere than in its reason is none.
            let line = std::mem::take(&mut self.line);
            let _ = self.answer(&line, now, into);
        }
        // What it has not read it did not die of.
        let read = self.written.saturating_sub(unread);
        let has_read = |record: &Open<T>| record.line.is_some_and(|(begin, _)| begin < read);
        let suspects = self.count(has_read);
        // A child that reads and answers nothing uses the oldest up, or it would be started for ever.
        let first = if suspects == 0 && self.answers == 0 { self.oldest } else { NONE };
        let mut slot = self.oldest;
        while slot != NONE {
            let record = self.at(slot);
            let blamed = slot == first || has_read(record);
            let late = self.late == Some(record.id);
            let newer = record.newer;
            let outcome = match fate {
                Fate::TimedOut if late => timed_out(self.timeout),
                Fate::Ended | Fate::TimedOut => Outcome::Unfinished,
                _ if !blamed => Outcome::Unfinished,
                Fate::Died(end) if suspects > 1 => together(*end, &died(*end)),
                Fate::Broken(text) if suspects > 1 => together(End::Answer, text),
                Fate::Died(end) => alone(*end, died(*end), exits),
                Fate::Broken(text) => alone(End::Answer, text.clone(), exits),
            };
            into.push(self.remove(slot, outcome, 0));
            slot = newer;
        }
        self.forget_out();
        self.line.clear();
        (self.written, self.rendered, self.answers) = (0, 0, 0);
        (self.closed, self.late) = (false, None);
        self.invariants();
    }

    // ---- Helpers ----

    /// Whether a byte of it has left.
    fn is_given(&self, record: &Open<T>) -> bool {
        record.line.is_some_and(|(begin, _)| begin < self.written)
    }

    fn settle(
        &mut self,
        slot: u32,
        outcome: Outcome,
        received_bytes: u64,
        now: Duration,
        into: &mut Vec<Settled<T>>,
    ) {
        if slot == self.oldest {
            self.oldest_since = self.oldest_since.max(now);
        }
        let settled = self.remove(slot, outcome, received_bytes);
        into.push(settled);
    }

    fn remove(&mut self, slot: u32, outcome: Outcome, received_bytes: u64) -> Settled<T> {
        let record = self.slots[slot as usize].take().expect("only an open record is settled");
        match record.older {
            NONE => self.oldest = record.newer,
            older => self.at_mut(older).newer = record.newer,
        }
        match record.newer {
            NONE => self.newest = record.older,
            newer => self.at_mut(newer).older = record.older,
        }
        if self.unrendered == slot {
            self.unrendered = record.newer;
        }
        self.open -= 1;
        if self.open == 0 {
            (self.alone, self.has_ends) = (false, false);
        }
        let sent_bytes = record.line.map_or(0, |(begin, end)| end - begin);
        Settled { item: record.item, outcome, began: record.began, sent_bytes, received_bytes }
    }

    fn forget_out(&mut self) {
        self.out.clear();
        self.out_at = 0;
        self.rendered = self.written;
    }

    fn at(&self, slot: u32) -> &Open<T> {
        self.slots[slot as usize].as_ref().expect("a linked slot holds a record")
    }

    fn at_mut(&mut self, slot: u32) -> &mut Open<T> {
        self.slots[slot as usize].as_mut().expect("a linked slot holds a record")
    }

    fn count(&self, which: impl Fn(&Open<T>) -> bool) -> usize {
        let mut count = 0;
        let mut slot = self.oldest;
        while slot != NONE {
            let record = self.at(slot);
            count += usize::from(which(record));
            slot = record.newer;
        }
        count
    }

    fn invariants(&self) {
        assert_eq!(self.rendered - self.written, self.out().len() as u64);
        assert!(self.open <= self.depth);
        assert_eq!(self.open == 0, self.oldest == NONE && self.newest == NONE && self.unrendered == NONE);
    }
}

/// Of several records that were open in a child none is to be blamed before it was open alone.
fn together(end: End, text: &str) -> Outcome {
    Outcome::Failed(Failed { kind: Kind::Ordinary, end, reason: reason(text.to_owned()), counts: false })
}

fn alone(end: End, text: String, exits: &ExitCodes) -> Outcome {
    let kind = match end {
        End::Exit(code) => exits.kind(code).unwrap_or(Kind::Ordinary),
        _ => Kind::Ordinary,
    };
    Outcome::Failed(Failed { kind, end, reason: reason(text), counts: true })
}

fn timed_out(timeout: Option<Duration>) -> Outcome {
    let text = format!("no answer within {} s", timeout.unwrap_or_default().as_secs_f64());
    Outcome::Failed(Failed { kind: Kind::Ordinary, end: End::TimedOut, reason: text, counts: true })
}

fn died(end: End) -> String {
    match end {
        End::Exit(code) => format!("the child exited with {code} and without an answer"),
        End::Signal(number) => format!("the child was ended by signal {number} before it answered"),
        End::TimedOut | End::Answer => "the child ended without an answer".to_owned(),
    }
}

/// What was printed, cut, and with all that a terminal might take amiss escaped.
fn quote(printed: &[u8]) -> String {
    let cut = &printed[..printed.len().min(QUOTE_BYTES_MAX)];
    let more = if cut.len() < printed.len() { "…" } else { "" };
    format!("\"{}{more}\"", String::from_utf8_lossy(cut).escape_debug())
}

#[cfg(test)]
mod tests;
