//! Reads what decides a record's lane: its key, a header, or a member of a JSON value; and shows it to people.

use std::borrow::Cow;

use keylane_protocol::records::Record;

use super::json_pointer::Pointer;
use super::route::LaneKey;
use super::shared::RecordBatch;

/// A [`LaneKey`] made ready to be read from records.
#[derive(Clone, Debug)]
pub(super) enum LaneReader {
    Key,
    Header(Vec<u8>),
    Json(Pointer),
}

impl LaneReader {
    pub(super) fn new(lane_key: &LaneKey) -> LaneReader {
        match lane_key {
            LaneKey::Key => LaneReader::Key,
            LaneKey::Header(name) => LaneReader::Header(name.clone()),
            LaneKey::Json(pointer) => LaneReader::Json(Pointer::new(pointer)),
        }
    }

    /// Whether it is the record's key, which the intake sees without a look at the record.
    pub(super) fn is_key(&self) -> bool {
        matches!(self, LaneReader::Key)
    }

    /// What decides the lane, if the record has it. Of headers with one name the last counts, as for Java's
    /// `lastHeader`.
    pub(super) fn read<'a>(&self, record: &Record<'a>) -> Option<Cow<'a, [u8]>> {
        match self {
            LaneReader::Key => record.key.map(Cow::Borrowed),
            LaneReader::Header(name) => {
                let last = record.headers().filter(|(found, _)| found == name).last();
                last.and_then(|(_, value)| value).map(Cow::Borrowed)
            }
            LaneReader::Json(pointer) => pointer.find(record.value?),
        }
    }

    /// The same of a record on the board, for a message: one that cannot be read has none.
    pub(super) fn read_from<'a>(&self, batch: &'a RecordBatch, index: u32) -> Option<Cow<'a, [u8]>> {
        let position = *batch.positions.get(index as usize)?;
        self.read(&Record::parse(&batch.header, &batch.payload, position).ok()?)
    }
}

/// Bytes of a key that are shown.
const SHOWN_BYTES_MAX: usize = 64;

/// A key between quotes, on one line: what is no text is escaped, and a long one is cut. `null` for none.
pub(super) fn show_key(key: Option<&[u8]>) -> String {
    let Some(key) = key else { return "null".to_owned() };
    let mut shown = String::from("\"");
    let mut left = SHOWN_BYTES_MAX;
    // The first bytes are enough, and a character that the cut goes through is left out.
    'cut: for chunk in key[..key.len().min(2 * SHOWN_BYTES_MAX)].utf8_chunks() {
        let characters = chunk.valid().chars().map(|c| (c.len_utf8(), c.escape_debug().to_string()));
        let others = chunk.invalid().iter().map(|byte| (1, format!("\\x{byte:02x}")));
        for (length, text) in characters.chain(others) {
            if length > left {
                shown.push('…');
                break 'cut;
            }
            left -= length;
            shown.push_str(&text);
        }
    }
    shown.push('"');
    shown
}

#[cfg(test)]
mod tests {
    use keylane_protocol::records::{BatchBuilder, Codec, ProducerStamp, index_records, next_batch};

    use super::*;

    #[test]
    fn keys_are_shown_on_one_line() {
        assert_eq!(show_key(None), "null");
        assert_eq!(show_key(Some(b"k17")), "\"k17\"");
        assert_eq!(show_key(Some(b"")), "\"\"");
        assert_eq!(show_key(Some("a\"\n\u{1b}é".as_bytes())), "\"a\\\"\\n\\u{1b}é\"");
        assert_eq!(show_key(Some(b"a\xff\xc3")), "\"a\\xff\\xc3\"");
        assert_eq!(show_key(Some(&[b'x'; 65])), format!("\"{}…\"", "x".repeat(64)));
        // Cut inside of a character.
        let long = format!("{}é tail", "x".repeat(63));
        assert_eq!(show_key(Some(long.as_bytes())), format!("\"{}…\"", "x".repeat(63)));
    }

    fn parse(text: &str) -> LaneKey {
        match text.split_once(':') {
            Some(("header", name)) => LaneKey::Header(name.into()),
            Some((_, pointer)) => LaneKey::Json(pointer.to_owned()),
            None => LaneKey::Key,
        }
    }

    #[test]
    fn a_header_or_a_member_decides() {
        let headers: [(&[u8], Option<&[u8]>); 4] =
            [(b"h", Some(b"1")), (b"g", Some(b"2")), (b"h", Some(b"3")), (b"n", None)];
        let mut builder = BatchBuilder::new();
        builder.append(Some(b"k"), Some(b"{\"id\":{\"n\":7}}"), &headers, 0).unwrap();
        builder.append(None, None, &[], 0).unwrap();
        let mut bytes = builder.finish(Codec::None, &ProducerStamp::NONE).unwrap();
        let batch = next_batch(&mut bytes).unwrap().unwrap();
        let (mut spare, mut positions) = (Vec::new(), Vec::new());
        let payload = batch.payload(&mut spare, 1 << 20).unwrap();
        index_records(&batch.header, &payload, &mut positions, |_, _, _| {}).unwrap();
        let read = |text: &str, index: usize| {
            let record = Record::parse(&batch.header, &payload, positions[index]).unwrap();
            let reader = LaneReader::new(&parse(text));
            reader.read(&record).map(|key| String::from_utf8(key.into_owned()).unwrap())
        };
        for (text, expected) in [
            ("key", Some("k")),
            ("header:h", Some("3")),
            ("header:g", Some("2")),
            ("header:n", None),
            ("header:x", None),
            ("json:/id/n", Some("7")),
            ("json:/id", Some("{\"n\":7}")),
            ("json:/x", None),
        ] {
            assert_eq!(read(text, 0).as_deref(), expected, "{text}");
            assert_eq!(read(text, 1), None, "{text}");
        }
    }
}
