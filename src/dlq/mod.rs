//! Dead letters after the fact: `dlq list|replay`.
//!
//! Both read the dead-letter topic up to where it ended when they began, read committed and without being a member of
//! any group. What is not a dead letter of keylane's is passed, and counted.

pub(crate) mod letter;
mod list;
mod replay;
pub(crate) mod sender;
pub(crate) mod source;

use std::time::Duration;

use keylane_protocol::records::{Header, Record};

use crate::cli::{Common, DlqCommand};
use crate::exit::Exit;
use crate::report::Report;

/// Runs `dlq` to its end.
pub fn run(command: &DlqCommand, report: &Report) -> Exit {
    let result = match command {
        DlqCommand::List(config) => {
            let (key, since) = (config.key.as_deref(), config.since);
            list::run(&Query { common: &config.common, topic: &config.topic, key, since }, report)
        }
        DlqCommand::Replay(config) => {
            let (key, since) = (config.key.as_deref(), config.since);
            let query = Query { common: &config.common, topic: &config.topic, key, since };
            replay::run(query, config.execute, report)
        }
    };
    result.unwrap_or_else(|failure| failure.end(report))
}

/// Which letters of which topic.
#[derive(Clone, Copy, Debug)]
struct Query<'a> {
    common: &'a Common,
    topic: &'a str,
    key: Option<&'a str>,
    since: Option<Duration>,
}

fn headers_of<'a>(record: &Record<'a>) -> Vec<Header<'a>> {
    record.headers().collect()
}

fn say_skipped(report: &Report, skipped: u64) {
    if skipped > 0 {
        report.warning(format!("{skipped} records are no dead letters of keylane's: they were skipped"));
    }
}
