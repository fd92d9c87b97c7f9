//! The leader epochs of a log and where each began (KIP-101), for OffsetForLeaderEpoch.
//!
//! Invariant: epochs and their start offsets both rise, epochs strictly.

/// Which leader epoch wrote which offsets.
#[derive(Debug, Default)]
pub(super) struct Epochs(Vec<(i32, i64)>);

impl Epochs {
    /// A leader of `epoch` begins to write at `offset`. An epoch that is not newer changes nothing.
    pub(super) fn begin(&mut self, epoch: i32, offset: i64) {
        if self.latest().is_some_and(|latest| latest >= epoch) {
            return;
        }
        // An epoch that wrote nothing would share its offset with the next one; Kafka keeps only the last.
        while self.0.last().is_some_and(|&(_, start)| start >= offset) {
            self.0.pop();
        }
        self.0.push((epoch, offset));
    }

    fn latest(&self) -> Option<i32> {
        self.0.last().map(|&(epoch, _)| epoch)
    }

    /// The largest epoch that is not past `epoch`, and the offset behind its last record; (-1, -1) if it is unknown.
    pub(super) fn end_of(&self, epoch: i32, log_end: i64) -> (i32, i64) {
        let later = self.0.partition_point(|&(known, _)| known <= epoch);
        match (later.checked_sub(1).map(|index| self.0[index]), self.0.get(later)) {
            (Some((known, _)), None) if known == epoch => (epoch, log_end),
            // Newer than any leader that this log has had: nothing is known of it.
            (_, None) => (-1, -1),
            (Some((floor, _)), Some(&(_, next_start))) => (floor, next_start),
            (None, Some(&(_, next_start))) => (epoch, next_start),
        }
    }

    /// Forgets epochs that began at or past the new end.
    pub(super) fn truncate_to(&mut self, end: i64) {
        self.0.retain(|&(_, start)| start < end);
    }

    /// Forgets epochs that lie wholly before the new start; the one that holds it now begins there.
    pub(super) fn trim_to(&mut self, start: i64) {
        let first_after = self.0.partition_point(|&(_, begin)| begin <= start);
        self.0.drain(..first_after.saturating_sub(1));
        if let Some(first) = self.0.first_mut() {
            first.1 = first.1.max(start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(entries: &[(i32, i64)]) -> Epochs {
        let mut epochs = Epochs::default();
        for &(epoch, offset) in entries {
            epochs.begin(epoch, offset);
        }
        epochs
    }

    #[test]
    fn an_epoch_ends_where_the_next_begins() {
        let epochs = epochs(&[(2, 0), (4, 10), (7, 25)]);
        assert_eq!(epochs.end_of(2, 30), (2, 10));
        assert_eq!(epochs.end_of(3, 30), (2, 10));
        assert_eq!(epochs.end_of(4, 30), (4, 25));
        assert_eq!(epochs.end_of(7, 30), (7, 30));
    }

    #[test]
    fn unknown_epochs() {
        let epochs = epochs(&[(2, 5), (4, 10)]);
        assert_eq!(epochs.end_of(5, 30), (-1, -1), "newer than the log");
        assert_eq!(epochs.end_of(-1, 30), (-1, 5), "older than the log: its first known offset");
        assert_eq!(Epochs::default().end_of(0, 0), (-1, -1));
    }

    #[test]
    fn an_epoch_without_records_gives_way() {
        let epochs = epochs(&[(1, 0), (2, 8), (3, 8)]);
        assert_eq!(epochs.end_of(2, 9), (1, 8));
        assert_eq!(epochs.end_of(3, 9), (3, 9));
    }

    #[test]
    fn an_older_leader_changes_nothing() {
        let mut epochs = epochs(&[(3, 0)]);
        epochs.begin(2, 5);
        epochs.begin(3, 6);
        assert_eq!(epochs.end_of(3, 9), (3, 9));
    }

    #[test]
    fn both_ends_can_be_cut() {
        let mut epochs = epochs(&[(1, 0), (2, 10), (3, 20)]);
        epochs.trim_to(12);
        assert_eq!(epochs.end_of(0, 30), (0, 12));
        assert_eq!(epochs.end_of(1, 30), (1, 12));
        epochs.truncate_to(20);
        assert_eq!(epochs.latest(), Some(2));
        assert_eq!(epochs.end_of(2, 20), (2, 20));
    }
}
