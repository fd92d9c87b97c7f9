//! The log of one partition: batches, offsets, producers and transactions, all in memory.
//!
//! | File | Subject |
//! |---|---|
//! | `log` | the log as the APIs see it: append, read, ends, trimming |
//! | `segment` | where the bytes lie and how a batch is found in them |
//! | `batch` | what a produced batch must be; transaction markers |
//! | `producers` | idempotence, open and aborted transactions |
//! | `epochs` | leader epochs and where each began |
//!
//! A batch is stored as it came, compressed; only its base offset and leader epoch are written over, which the CRC
//! does not cover. Errors are Kafka's codes, since all of them end in an answer.

mod batch;
mod epochs;
#[allow(clippy::module_inception, reason = "the log itself, beside its parts")]
mod log;
#[cfg(test)]
mod model;
mod producers;
mod segment;
#[cfg(test)]
mod tests;

pub(crate) use batch::ProducedBatch;
pub(crate) use log::{Appended, Log, TimedOffset};
pub(crate) use producers::ProducerState;
