//! What a worker has taken from the board: one record, or several that it handles one after the other.
//!
//! A run may be kept as long as one likes: its lanes wait for it, and a worker may hold several. So a record that waits
//! for its next try simply stays in its run.

use std::sync::Arc;

use super::batch::Origin;
use super::board::Slot;
use super::tracker::Assignment;

/// A reusable buffer of taken records, filled by [`Board::take`](super::board::Board::take) and emptied by
/// [`Board::complete`](super::board::Board::complete). Records of one lane stand together and in order.
#[derive(Debug)]
pub struct Run<B> {
    pub(crate) items: Vec<RunItem>,
    pub(crate) batches: Vec<RunBatch<B>>,
}

/// One record of a run.
#[derive(Debug)]
pub struct RunRecord<'a, B> {
    /// The batch that holds it.
    pub batch: &'a Arc<B>,
    /// Its index there, as delivered.
    pub index: u32,
    /// Its partition.
    pub slot: Slot,
    /// The assignment it was delivered under.
    pub assignment: Assignment,
    /// Its offset.
    pub offset: i64,
    /// Its number within the assignment.
    pub ordinal: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RunItem {
    pub(crate) index: u32,
    pub(crate) delta: u32,
    /// The dispatcher's lane, worker or slot.
    pub(crate) lane: u32,
    /// Place of the batch in [`Run::batches`].
    pub(crate) handle: u32,
}

/// A batch with records in the run. Its handle is cloned once per run, not once per record.
#[derive(Debug)]
pub(crate) struct RunBatch<B> {
    pub(crate) batch: Arc<B>,
    pub(crate) index: u32,
    pub(crate) origin: Origin,
    /// Records of the batch in this run; while completing, those that are over.
    pub(crate) records: u32,
    /// One past the highest index among them.
    pub(crate) index_end: u32,
}

impl<B> Run<B> {
    /// An empty run.
    pub fn new() -> Run<B> {
        Run { items: Vec::new(), batches: Vec::new() }
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it holds no record.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Record number `at`, from 0.
    #[inline]
    pub fn get(&self, at: usize) -> Option<RunRecord<'_, B>> {
        let item = self.items.get(at)?;
        let from = &self.batches[item.handle as usize];
        Some(RunRecord {
            batch: &from.batch,
            index: item.index,
            slot: Slot::new(from.origin.slot),
            assignment: from.origin.assignment,
            offset: from.origin.offset(item.delta),
            ordinal: from.origin.ordinal(item.index),
        })
    }

    /// The records in the order to handle them in.
    pub fn iter(&self) -> impl Iterator<Item = RunRecord<'_, B>> {
        (0..self.len()).filter_map(|at| self.get(at))
    }
}

impl<B> Default for Run<B> {
    fn default() -> Run<B> {
        Run::new()
    }
}
