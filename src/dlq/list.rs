//! `dlq list`: a line per dead letter.

use std::time::{Duration, UNIX_EPOCH};

use keylane_protocol::records::Record;
use serde_json::Value;

use super::letter::Origin;
use super::source::{self, Filter, Source};
use super::{Query, headers_of, say_skipped};
use crate::driver::signals::Source as SignalSource;
use crate::exit::Exit;
use crate::handler::base64;
use crate::report::{Fields, Report, rfc3339};
use crate::session::{Failure, Session};
use crate::table::Growing;

const COLUMNS: [&str; 8] =
    ["PARTITION", "OFFSET", "TIMESTAMP", "KEY", "ORIGIN", "ATTEMPTS", "EXIT", "REASON"];

pub(super) fn run(query: &Query<'_>, report: &Report) -> Result<Exit, Failure> {
    let mut session = Session::open(query.common, report)?;
    let ranges = source::ranges(&mut session, query.topic)?;
    let filter = Filter::new(query.key, query.since);
    let mut source = Source::open(query.common, &ranges, &SignalSource::Process)?;
    let mut table = Growing::new(COLUMNS);
    let (mut listed, mut skipped) = (0u64, 0u64);
    while let Some(chunk) = source.next()? {
        let mut rows = Vec::new();
        source::for_each(&chunk, |record| {
            if !filter.takes(record) {
                return Ok(());
            }
            let Some((origin, _)) = Origin::split(&headers_of(record)) else {
                skipped += 1;
                return Ok(());
            };
            listed += 1;
            if report.is_json() {
                let fields = fields(chunk.at.partition, record, &origin);
                return report.answer("letter", "", fields).map_err(Failure::of_output);
            }
            rows.push(row(chunk.at.partition, record, &origin));
            Ok(())
        })?;
        if !rows.is_empty() {
            report.answer("letters", table.add(&rows), Vec::new()).map_err(Failure::of_output)?;
        }
    }
    if listed == 0 {
        report.note(format!("no dead letters in topic {}", query.topic));
    }
    say_skipped(report, skipped);
    Ok(Exit::Done)
}

fn time(timestamp_ms: i64) -> String {
    match u64::try_from(timestamp_ms) {
        Ok(ms) => rfc3339(UNIX_EPOCH + Duration::from_millis(ms)),
        Err(_) => "-".to_owned(),
    }
}

fn row(partition: i32, record: &Record<'_>, origin: &Origin) -> [String; 8] {
    let Origin { topic, partition: from, offset, attempts, exit, reason, .. } = origin;
    [
        partition.to_string(),
        record.offset.to_string(),
        time(record.timestamp_ms),
        shown(record.key),
        format!("{topic}/{from}@{offset}"),
        attempts.to_string(),
        if exit.is_empty() { "-".to_owned() } else { exit.clone() },
        reason.escape_debug().to_string(),
    ]
}

/// A key in a cell: blanks and control characters escaped so that it stays one word of one line; base64 if it is no
/// text; `-` for none.
fn shown(key: Option<&[u8]>) -> String {
    let Some(key) = key else { return "-".to_owned() };
    match std::str::from_utf8(key) {
        Ok("") => "\"\"".to_owned(),
        Ok(text) => text.escape_debug().to_string().replace(' ', "\\u{20}"),
        Err(_) => format!("base64:{}", encoded(key)),
    }
}

fn encoded(bytes: &[u8]) -> String {
    let mut out = Vec::new();
    base64::append(&mut out, bytes);
    String::from_utf8_lossy(&out).into_owned()
}

fn fields(partition: i32, record: &Record<'_>, origin: &Origin) -> Fields {
    let key = match record.key.map(std::str::from_utf8) {
        None => ("key", Value::Null),
        Some(Ok(text)) => ("key", text.into()),
        Some(Err(_)) => ("key_b64", encoded(record.key.unwrap_or_default()).into()),
    };
    vec![
        ("partition", partition.into()),
        ("offset", record.offset.into()),
        ("timestamp", record.timestamp_ms.into()),
        key,
        ("value_bytes", record.value.map(<[u8]>::len).into()),
        ("origin_topic", origin.topic.as_str().into()),
        ("origin_partition", origin.partition.into()),
        ("origin_offset", origin.offset.into()),
        ("origin_timestamp", origin.timestamp_ms.into()),
        ("group_name", origin.group.as_str().into()),
        ("attempts", origin.attempts.into()),
        ("exit", origin.exit.as_str().into()),
        ("reason", origin.reason.as_str().into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_word_of_one_line() {
        assert_eq!(shown(None), "-");
        assert_eq!(shown(Some(b"")), "\"\"");
        assert_eq!(shown(Some(b"a b\n")), "a\\u{20}b\\n");
        assert_eq!(shown(Some("käse".as_bytes())), "käse");
        assert_eq!(shown(Some(b"\xff")), "base64:/w==");
    }
}
