//! Names the key that most of the waiting records belong to, when that is what holds the work up.
//!
//! The counts are exact: every lane knows its length. Hash workers' queues are mixed, so there the first few thousand
//! records of the longest queue stand for it. Nothing is kept per key, and nothing is done between two stats lines.

use std::collections::HashMap;
use std::time::Duration;

use super::board::{Board, Slot};
use super::lane_key::{LaneReader, show_key};
use super::shared::RecordBatch;
use super::stats::Limit;
use crate::handler::base64;
use crate::report::Fields;

/// Fewer waiting records are nothing to speak of.
const WAITING_MIN: u64 = 100;
/// A key with a smaller part of them is not hot.
const PERCENT_MIN: u64 = 20;
/// The same key is named again after this long.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Records of a mixed queue that are looked at.
const SAMPLE_RECORDS: usize = 4096;

/// A key and how much of what waits is its.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hot {
    pub(super) slot: Slot,
    key: Option<Vec<u8>>,
    waiting: u64,
    queued: u64,
}

impl Hot {
    /// The key with most records waiting, if they are many.
    pub(super) fn find(board: &Board<RecordBatch>, lane_key: &LaneReader) -> Option<Hot> {
        let queued = board.queued();
        if queued < WAITING_MIN {
            return None;
        }
        let found = match board.longest_lanes(1).pop() {
            Some(long) => {
                let key = lane_key.read_from(long.batch, long.index).map(|key| key.into_owned());
                Some(Hot { slot: long.slot, key, waiting: long.waiting, queued })
            }
            None => Hot::sample(board, lane_key, queued),
        };
        found.filter(|hot| hot.waiting * 100 >= PERCENT_MIN * queued)
    }

    fn sample(board: &Board<RecordBatch>, lane_key: &LaneReader, queued: u64) -> Option<Hot> {
        let mut counts: HashMap<(Slot, Vec<u8>), u64> = HashMap::new();
        let mut seen = 0;
        let length = board.look_at_longest_queue(SAMPLE_RECORDS, |slot, batch, index| {
            seen += 1;
            if let Some(key) = lane_key.read_from(batch, index) {
                *counts.entry((slot, key.into_owned())).or_default() += 1;
            }
        });
        let ((slot, key), count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        Some(Hot { slot, key: Some(key), waiting: length * count / seen, queued })
    }

    /// Whether it is what the work waits for: workers lack other keys, or it will be at work long after all others.
    fn matters(&self, limit: Limit, workers: usize) -> bool {
        match limit {
            Limit::Keys | Limit::Handler => true,
            Limit::Workers => self.waiting.saturating_mul(workers as u64) >= 2 * self.queued,
            Limit::Fetch | Limit::Commit => false,
        }
    }

    /// `hot key "k17": 63% of 12,400 waiting`
    fn text(&self) -> String {
        let percent = self.waiting * 100 / self.queued;
        format!("hot key {}: {percent}% of {} waiting", show_key(self.key.as_deref()), thousands(self.queued))
    }

    fn fields(&self, topic: &str, partition: i32) -> Fields {
        let mut fields: Fields = vec![("topic", topic.into()), ("partition", partition.into())];
        fields.extend(key_fields(self.key.as_deref()));
        fields.push(("waiting", self.waiting.into()));
        fields.push(("queued", self.queued.into()));
        fields
    }
}

/// Bytes of a key in a JSON line.
const KEY_BYTES_MAX: usize = 1024;

/// A key as the members of a JSON line: `key`, or `key_b64` when it is not UTF-8. A long one is cut, and its length
/// said.
pub(super) fn key_fields(key: Option<&[u8]>) -> Fields {
    let Some(key) = key else { return vec![("key", serde_json::Value::Null)] };
    let mut part = &key[..key.len().min(KEY_BYTES_MAX)];
    // Not through a character, which UTF-8 makes four bytes long at most.
    if part.len() < key.len()
        && let Err(error) = std::str::from_utf8(part)
        && error.error_len().is_none()
    {
        part = &part[..error.valid_up_to()];
    }
    let mut fields = match std::str::from_utf8(part) {
        Ok(text) => vec![("key", text.into())],
        Err(_) => {
            let mut encoded = Vec::new();
            base64::append(&mut encoded, part);
            vec![("key_b64", String::from_utf8_lossy(&encoded).into())]
        }
    };
    if part.len() < key.len() {
        fields.push(("key_bytes", key.len().into()));
    }
    fields
}

/// What was named lately.
#[derive(Debug, Default)]
pub(super) struct HotKeys {
    /// At most 100 / [`PERCENT_MIN`] of one moment, times the moments in [`AGAIN_AFTER`].
    named: Vec<(Slot, Option<Vec<u8>>, Duration)>,
}

impl HotKeys {
    /// The line about the key and its members in JSON, unless it was said lately or does not matter.
    pub(super) fn say(
        &mut self,
        hot: Hot,
        (topic, partition): (&str, i32),
        (limit, workers): (Limit, usize),
        now: Duration,
    ) -> Option<(String, Fields)> {
        self.named.retain(|(_, _, at)| now.saturating_sub(*at) < AGAIN_AFTER);
        let known = self.named.iter().any(|(slot, key, _)| (*slot, key) == (hot.slot, &hot.key));
        if known || !hot.matters(limit, workers) {
            return None;
        }
        let line = (hot.text(), hot.fields(topic, partition));
        self.named.push((hot.slot, hot.key, now));
        Some(line)
    }
}

/// `12,400`
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hot(waiting: u64, queued: u64) -> Hot {
        Hot { slot: Slot::new(0), key: Some(b"k17".to_vec()), waiting, queued }
    }

    #[test]
    fn the_line_that_people_read() {
        assert_eq!(hot(7812, 12_400).text(), "hot key \"k17\": 63% of 12,400 waiting");
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn keys_in_json() {
        assert_eq!(key_fields(None), [("key", serde_json::Value::Null)]);
        assert_eq!(key_fields(Some(b"\xff")), [("key_b64", "/w==".into())]);
        let long = "é".repeat(600);
        let cut = [("key", "é".repeat(512).into()), ("key_bytes", 1200.into())];
        assert_eq!(key_fields(Some(long.as_bytes())), cut);
        let shifted = format!("x{long}");
        assert_eq!(key_fields(Some(shifted.as_bytes()))[0].1, format!("x{}", "é".repeat(511)));
    }

    #[test]
    fn a_key_is_named_once_in_a_while() {
        let mut keys = HotKeys::default();
        let mut say =
            |hot, limit, second| keys.say(hot, ("t", 0), (limit, 8), Duration::from_secs(second)).is_some();
        assert!(say(hot(90, 100), Limit::Keys, 0));
        assert!(!say(hot(91, 100), Limit::Keys, 9));
        assert!(say(Hot { key: None, ..hot(90, 100) }, Limit::Keys, 9), "another one");
        assert!(say(hot(90, 100), Limit::Keys, 10));
        // It matters though all are at work when it will be at work alone at the end.
        assert!(!say(hot(24, 100), Limit::Workers, 100));
        assert!(say(hot(25, 100), Limit::Workers, 100));
        assert!(!say(hot(90, 100), Limit::Fetch, 200));
    }
}
