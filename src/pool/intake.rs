//! From fetched batches to records on the board: unpacked only when it is their turn, within the limits.
//!
//! One [`Intake`] per assigned partition keeps what was fetched and not yet unpacked. A batch is unpacked when the
//! partition has room for a record, and its records are delivered as room allows; the position counts as delivered up
//! to where records were registered. Buffers are used again: the first touch of fresh memory is what costs.

use std::collections::VecDeque;
use std::sync::Arc;

use keylane_protocol::error::{Error, Fault};
use keylane_protocol::fetch::FetchedBatch;
use keylane_protocol::metadata::TopicPartition;
use keylane_protocol::records::{BatchError, BatchHeader, Record, index_records};

use super::batch::{BatchId, Released};
use super::board::Slot;
use super::lane_key::LaneReader;
use super::route::{Routed, Router};
use super::shared::{RecordBatch, Shared};

/// Records delivered under one lock.
const CHUNK_RECORDS: usize = 512;
/// Spare buffers kept of each kind.
const SPARE_BUFFERS_MAX: usize = 16;
/// Bytes of spare payload buffers kept.
const SPARE_BYTES_MAX: usize = 12 << 20;
/// A batch that unpacks to more is refused: Kafka's own limits are far below.
const PAYLOAD_BYTES_MAX: usize = 256 << 20;

/// Buffers of batches that are done.
#[derive(Debug, Default)]
pub(super) struct Spares {
    payloads: Vec<Vec<u8>>,
    payload_bytes: usize,
    positions: Vec<Vec<u32>>,
    routed: Vec<Vec<Routed>>,
}

impl Spares {
    /// Takes back the buffers of a batch.
    pub(super) fn reclaim(&mut self, released: Released<RecordBatch>) {
        let Ok(batch) = Arc::try_unwrap(released.batch) else { return };
        let payload = batch.payload.into_vec();
        self.put_payload(payload);
        if self.positions.len() < SPARE_BUFFERS_MAX {
            self.positions.push(batch.positions);
        }
    }

    fn put_payload(&mut self, payload: Vec<u8>) {
        let room = self.payload_bytes + payload.capacity() <= SPARE_BYTES_MAX;
        if payload.capacity() > 0 && room && self.payloads.len() < SPARE_BUFFERS_MAX {
            self.payload_bytes += payload.capacity();
            self.payloads.push(payload);
        }
    }

    /// Bytes kept.
    pub(super) fn bytes(&self) -> u64 {
        let positions: usize = self.positions.iter().map(|spare| spare.capacity() * 4).sum();
        (self.payload_bytes + positions) as u64
    }

    fn take_payload(&mut self) -> Vec<u8> {
        let payload = self.payloads.pop().unwrap_or_default();
        self.payload_bytes -= payload.capacity();
        payload
    }
}

/// What a partition may be given in one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Records.
    pub(super) records: u64,
    /// Bytes of unpacked batches.
    pub(super) bytes: u64,
    /// Whether the partition has an unpacked batch already. One is always admitted.
    pub(super) holds_batch: bool,
    /// Receive buffers are scarce: what is unpacked must not keep them.
    pub(super) copy: bool,
}

impl Room {
    fn admits_batch(&self) -> bool {
        self.records > 0 && (self.bytes > 0 || !self.holds_batch)
    }
}

/// What is still to be taken in of a partition, in order.
#[derive(Debug)]
enum Feed {
    /// A batch, and whether it is a view of a receive buffer.
    Batch(FetchedBatch, bool),
    /// Offsets below this one are gone.
    Gap(i64),
}

/// The records of a batch that are to be delivered.
#[derive(Debug)]
enum Wanted {
    /// Each with its route.
    Routed(Vec<Routed>),
    /// With consecutive offsets, to a dispatcher that needs no more.
    Run { first_offset: i64, count: usize },
}

impl Wanted {
    fn len(&self) -> usize {
        match self {
            Wanted::Routed(routed) => routed.len(),
            Wanted::Run { count, .. } => *count,
        }
    }
}

/// A batch whose records are being delivered.
#[derive(Debug)]
struct Open {
    id: BatchId,
    wanted: Wanted,
    /// Index in the batch of the first one wanted.
    first_index: u32,
    delivered: usize,
    next_offset: i64,
    epoch: i32,
}

/// One assigned partition.
#[derive(Debug)]
pub(super) struct Intake {
    at: TopicPartition,
    slot: Slot,
    router: Router,
    lane_key: Arc<LaneReader>,
    /// Whether more of it is fetched for now.
    fetchable: bool,
    feed: VecDeque<Feed>,
    feed_bytes: usize,
    /// Of them, those that keep receive buffers.
    view_bytes: usize,
    open: Option<Open>,
    /// Records below were delivered before, or are below the start.
    position: i64,
    /// Records from here on are not delivered.
    end: Option<i64>,
    /// A damaged batch was met: nothing behind it may be delivered, since a commit would pass the damage.
    broken: bool,
}

impl Intake {
    /// A partition that begins at `position` and, with `end`, stops there.
    pub(super) fn new(
        at: TopicPartition,
        slot: Slot,
        router: Router,
        position: i64,
        end: Option<i64>,
    ) -> Self {
        let feed = VecDeque::new();
        Intake {
            at,
            slot,
            router,
            lane_key: Arc::new(LaneReader::Key),
            fetchable: true,
            feed,
            feed_bytes: 0,
            view_bytes: 0,
            open: None,
            position,
            end,
            broken: false,
        }
    }

    /// What decides the lane of a record; at first its key.
    pub(super) fn keyed_by(self, lane_key: Arc<LaneReader>) -> Self {
        Intake { lane_key, ..self }
    }

    /// Notes whether more is fetched for now.
    pub(super) fn set_fetchable(&mut self, fetchable: bool) {
        self.fetchable = fetchable;
    }

    /// See [`Intake::set_fetchable`].
    pub(super) fn is_fetchable(&self) -> bool {
        self.fetchable
    }

    /// Its place on the board.
    pub(super) fn slot(&self) -> Slot {
        self.slot
    }

    /// Bytes of batches that wait to be unpacked.
    pub(super) fn feed_bytes(&self) -> usize {
        self.feed_bytes
    }

    /// Of them, the bytes that keep receive buffers.
    pub(super) fn view_bytes(&self) -> usize {
        self.view_bytes
    }

    /// Whether records or batches wait for room.
    pub(super) fn has_feed(&self) -> bool {
        self.open.is_some() || !self.feed.is_empty()
    }

    /// Whether everything below the end was delivered.
    pub(super) fn is_at_end(&self) -> bool {
        self.end.is_some_and(|end| self.position >= end) && self.open.is_none()
    }

    /// Takes batches in the order in which they were fetched.
    pub(super) fn push(&mut self, batches: Vec<FetchedBatch>, bytes: usize) {
        if self.broken {
            return;
        }
        self.feed.extend(batches.into_iter().map(|batch| Feed::Batch(batch, true)));
        self.feed_bytes += bytes;
        self.view_bytes += bytes;
    }

    /// A damaged batch was met: what waits behind it is dropped, and so is all that comes.
    pub(super) fn break_off(&mut self) {
        self.clear();
        self.broken = true;
    }

    /// Whether [`Intake::break_off`] was called.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Copies what waits out of the receive buffers: the smallest batch that is left of one keeps it whole.
    pub(super) fn copy_views(&mut self) {
        if self.view_bytes == 0 {
            return;
        }
        for feed in &mut self.feed {
            if let Feed::Batch(fetched, view) = feed
                && *view
            {
                fetched.batch = fetched.batch.to_owned_bytes();
                *view = false;
            }
        }
        self.view_bytes = 0;
    }

    /// The log begins at `position` now.
    pub(super) fn push_gap(&mut self, position: i64) {
        if self.broken {
            return;
        }
        self.feed.push_back(Feed::Gap(position));
    }

    /// Drops what waits. The board drops what it holds by itself.
    pub(super) fn clear(&mut self) {
        self.feed.clear();
        self.feed_bytes = 0;
        self.view_bytes = 0;
        self.open = None;
    }

    /// The position was moved back (or the topic made again): what waits is void.
    pub(super) fn restart(&mut self, position: i64) {
        self.clear();
        self.position = position;
    }

    /// Delivers what there is room for, and takes it off the room. Returns how many records that were.
    ///
    /// # Errors
    /// A damaged batch, with its place. Everything before it was delivered.
    pub(super) fn fill(
        &mut self,
        shared: &Shared,
        spares: &mut Spares,
        room: &mut Room,
    ) -> Result<u64, Error> {
        let mut delivered = 0;
        loop {
            // An open batch is delivered whatever the memory says: it is held already, and only its records free it.
            if let Some(open) = &mut self.open {
                let count = deliver(shared, open, room.records);
                delivered += count;
                room.records -= count;
                if open.delivered < open.wanted.len() {
                    return Ok(delivered);
                }
                self.close(shared, spares);
            }
            if !self.take_next(shared, spares, room)? {
                return Ok(delivered);
            }
        }
    }

    /// Opens the next batch, or passes what has no records for us. False when there is nothing (more) to do.
    fn take_next(&mut self, shared: &Shared, spares: &mut Spares, room: &mut Room) -> Result<bool, Error> {
        match self.feed.front() {
            None => return Ok(false),
            Some(Feed::Batch(fetched, _)) if fetched.deliver && !room.admits_batch() => return Ok(false),
            Some(_) => {}
        }
        match self.feed.pop_front() {
            Some(Feed::Gap(position)) => {
                self.position = self.position.max(position);
                shared.lock().board.advance(self.slot, position, -1);
            }
            Some(Feed::Batch(fetched, view)) => {
                self.feed_bytes -= fetched.batch.bytes().len();
                self.view_bytes -= if view { fetched.batch.bytes().len() } else { 0 };
                let header = fetched.batch.header;
                if fetched.deliver {
                    let bytes = self.open(shared, spares, &fetched, room.copy && view)?;
                    room.bytes = room.bytes.saturating_sub(bytes);
                    room.holds_batch = true;
                } else {
                    self.position = self.position.max(header.next_offset());
                    let mut state = shared.lock();
                    state.board.advance(self.slot, header.next_offset(), header.partition_leader_epoch);
                }
            }
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Unpacks a batch; returns the bytes that it is charged with.
    fn open(
        &mut self,
        shared: &Shared,
        spares: &mut Spares,
        fetched: &FetchedBatch,
        copy: bool,
    ) -> Result<u64, Error> {
        let header = fetched.batch.header;
        let damaged = |error: BatchError| {
            Error::new(Fault::Damaged(error))
                .at_partition(&self.at.topic, self.at.partition)
                .at_offset(header.base_offset)
        };
        fetched.batch.check_crc().map_err(damaged)?;
        let mut spare = spares.take_payload();
        let payload = fetched.batch.payload(&mut spare, PAYLOAD_BYTES_MAX).map_err(damaged)?;
        let payload = if copy { payload.into_owned(std::mem::take(&mut spare)) } else { payload };
        spares.put_payload(spare);
        let mut positions = spares.positions.pop().unwrap_or_default();
        let (wanted, first_index) = self.index(&header, &payload, &mut positions, spares).map_err(damaged)?;
        let next_offset = self.end.map_or(header.next_offset(), |end| header.next_offset().min(end));
        // A view of the received bytes is charged too, or nothing would hold back records that are not packed.
        let bytes = payload.owned_bytes().max(payload.len()) + positions.capacity() * 4;
        let batch = RecordBatch {
            topic: self.at.topic.clone(),
            partition: self.at.partition,
            header,
            payload,
            positions,
        };
        let mut state = shared.lock();
        if let Some(id) = state.board.open_batch(self.slot, Arc::new(batch), bytes as u64) {
            let epoch = header.partition_leader_epoch;
            state.board.enter_batch(self.slot, header.base_offset, epoch);
            self.open = Some(Open { id, wanted, first_index, delivered: 0, next_offset, epoch });
        }
        Ok(bytes as u64)
    }

    /// Checks all records of a batch and says which are wanted: it may begin below the position, and the run may end
    /// inside of it.
    fn index(
        &self,
        header: &BatchHeader,
        payload: &[u8],
        positions: &mut Vec<u32>,
        spares: &mut Spares,
    ) -> Result<(Wanted, u32), BatchError> {
        let end = self.end.unwrap_or(i64::MAX);
        // Offsets that rise strictly within a range as long as their count have no gaps.
        if self.router.is_by_partition() && header.record_count == header.last_offset_delta.saturating_add(1)
        {
            index_records(header, payload, positions, |_, _, _| {})?;
            let first_offset = header.base_offset.max(self.position);
            let count = usize::try_from(header.next_offset().min(end) - first_offset).unwrap_or(0);
            let first_index = u32::try_from(first_offset - header.base_offset).unwrap_or(u32::MAX);
            return Ok((Wanted::Run { first_offset, count }, first_index));
        }
        let mut routed = spares.routed.pop().unwrap_or_default();
        routed.clear();
        let router = self.router;
        let offset_of = |delta| header.base_offset + i64::from(delta);
        if self.lane_key.is_key() || router.is_by_partition() {
            index_records(header, payload, positions, |_, delta, key| {
                routed.push(Routed { offset: offset_of(delta), route: router.route(key) });
            })?;
        } else {
            // The whole batch is checked before a header or a value is looked at.
            index_records(header, payload, positions, |_, _, _| {})?;
            for position in &*positions {
                let record = Record::parse(header, payload, *position)?;
                let key = self.lane_key.read(&record);
                routed.push(Routed { offset: record.offset, route: router.route(key.as_deref()) });
            }
        }
        let first = routed.partition_point(|record| record.offset < self.position);
        routed.truncate(routed.partition_point(|record| record.offset < end));
        routed.drain(..first.min(routed.len()));
        Ok((Wanted::Routed(routed), first as u32))
    }

    fn close(&mut self, shared: &Shared, spares: &mut Spares) {
        let Some(open) = self.open.take() else { return };
        self.position = self.position.max(open.next_offset);
        shared.lock().board.close_batch(open.id, open.next_offset, open.epoch);
        if let Wanted::Routed(routed) = open.wanted
            && spares.routed.len() < SPARE_BUFFERS_MAX
        {
            spares.routed.push(routed);
        }
    }
}

/// Delivers records of an open batch; stops at `room`, or when the partition takes no more.
fn deliver(shared: &Shared, open: &mut Open, room: u64) -> u64 {
    let mut count = 0;
    while open.delivered < open.wanted.len() && count < room {
        let left = usize::try_from(room - count).unwrap_or(usize::MAX);
        let first_index = open.first_index + open.delivered as u32;
        let mut state = shared.lock();
        let (taken, chunk) = match &open.wanted {
            Wanted::Routed(routed) => {
                let end = routed.len().min(open.delivered + CHUNK_RECORDS.min(left));
                let chunk = &routed[open.delivered..end];
                (state.board.deliver(open.id, first_index, chunk), chunk.len())
            }
            Wanted::Run { first_offset, count } => {
                let chunk = (count - open.delivered).min(left);
                let offset = first_offset + open.delivered as i64;
                (state.board.deliver_run(open.id, first_index, offset, chunk as u32), chunk)
            }
        };
        if !taken {
            // The assignment has ended or is being drained: what is left comes again, to whoever owns it then.
            open.delivered = open.wanted.len();
            return count;
        }
        count += chunk as u64;
        open.delivered += chunk;
        shared.wake_workers(state, false);
    }
    count
}

#[cfg(test)]
mod tests {
    use keylane_protocol::fetch::scan;
    use keylane_protocol::offsets::Isolation;
    use keylane_protocol::records::{BatchBuilder, Codec, ProducerStamp};

    use super::*;
    use crate::pool::board::{Board, Dispatch};
    use crate::pool::route::{NullKey, Order, Routing};
    use crate::pool::run::Run;
    use crate::pool::shared::{Clock, Wake};

    /// There are no threads to wake.
    struct Nobody;

    impl Wake for Nobody {
        fn wake_engine(&self) {}
        fn wake_worker(&self, _worker: u32) {}
    }

    /// Two batches of ten records, at offsets 0 and 10.
    fn two_batches() -> Vec<FetchedBatch> {
        let mut bytes = Vec::new();
        for base in [0i64, 10] {
            let mut builder = BatchBuilder::new();
            for _ in 0..10 {
                builder.append(Some(b"k"), Some(b"v"), &[], 0).unwrap();
            }
            let batch = builder.finish(Codec::Lz4, &ProducerStamp::NONE).unwrap();
            // The base offset is not covered by the CRC: brokers set it.
            bytes.extend(base.to_be_bytes());
            bytes.extend(&batch[8..]);
        }
        scan(bytes.into(), 0, &[], Isolation::ReadUncommitted).0.batches
    }

    fn run_of(dispatch: Dispatch) {
        let clock = Clock::Virtual(Arc::default());
        let shared = Shared::new(Board::new(dispatch), clock, Box::new(Nobody), 1, 1);
        let slot = shared.lock().board.assign("t".into(), 0, 0, -1);
        let order = if dispatch == Dispatch::Lanes { Order::Key } else { Order::Partition };
        let router = Router::new(Routing::Lanes { order, seed: 0 }, NullKey::Spread, "t", 0);
        let mut intake = Intake::new(TopicPartition::new("t", 0), slot, router, 2, None);
        let batches = two_batches();
        let bytes = batches.iter().map(|fetched| fetched.batch.bytes().len()).sum();
        intake.push(batches, bytes);
        let mut spares = Spares::default();
        let mut fill = |intake: &mut Intake, records, bytes, holds_batch| {
            let mut room = Room { records, bytes, holds_batch, copy: false };
            intake.fill(&shared, &mut spares, &mut room).unwrap()
        };
        // Nothing is unpacked without room for a record, and one batch is admitted without room for its bytes.
        assert_eq!(fill(&mut intake, 0, 1 << 20, false), 0);
        assert_eq!(fill(&mut intake, 5, 0, false), 5);
        // The open batch goes on whatever the bytes say (a pool once stood still for ever here), the next one waits.
        assert_eq!(fill(&mut intake, 100, 0, true), 3);
        assert_eq!(fill(&mut intake, 100, 0, true), 0);
        assert_eq!(fill(&mut intake, 100, 1, true), 10);
        assert!(!intake.has_feed());
        let mut run = Run::new();
        let mut offsets = Vec::new();
        loop {
            let mut state = shared.lock();
            state.board.take(0, 100, &mut run);
            if run.is_empty() {
                break;
            }
            offsets.extend(run.iter().map(|record| record.offset));
            let count = run.len();
            state.board.complete(&mut run, count);
        }
        assert_eq!(offsets, (2..20).collect::<Vec<i64>>());
        assert_eq!(shared.lock().board.next(slot).map(|(offset, _)| offset), Some(20));
    }

    #[test]
    fn an_open_batch_is_delivered_whatever_the_memory_says() {
        run_of(Dispatch::Lanes);
        run_of(Dispatch::Partitions);
    }
}
