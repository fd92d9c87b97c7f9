//! What cannot be read any more, while the group is as sound as ever.
//!
//! Guarantees: nothing of it is fetched or asked for again, and the owner is told by [`Event::Broken`]. The membership
//! goes on, so that the owner can finish, commit and leave in good order. Where the old offsets mean nothing in the log
//! that is there now, the partitions are forgotten, and no later commit names them.

use super::start::Phase;
use super::{Consumer, Event};
use crate::error::Error;
use crate::metadata::TopicPartition;

impl Consumer {
    /// These partitions cannot be read on; what is finished of them is as good as before.
    pub(super) fn break_partitions(&mut self, partitions: &[TopicPartition], error: Error) {
        let mut forgot = false;
        for at in partitions {
            let incarnation = self.new_incarnation();
            let Some(partition) = self.partitions.get_mut(at) else { continue };
            if partition.is_moving_back() {
                self.forget_partitions([at].into_iter());
                forgot = true;
            } else {
                partition.phase = Phase::Broken;
                // Drops what was asked and is not answered yet.
                partition.incarnation = incarnation;
            }
        }
        self.tell_broken(error);
        if forgot {
            // The owner still has it, and is not to be given it a second time.
            self.stop();
        }
    }

    /// These partitions are not what they were: nothing of them is committed any more. Nor is anything new fetched or
    /// joined, for the next assignment would begin them at the offsets of old.
    pub(super) fn void_partitions(&mut self, partitions: &[TopicPartition], error: Error) {
        self.forget_partitions(partitions.iter());
        self.tell_broken(error);
        self.stop();
    }

    /// As [`Consumer::void_partitions`], of a whole topic, which is not looked at again.
    pub(super) fn void_topic(&mut self, topic: &str, error: Error) {
        self.given_up.insert(topic.to_owned());
        self.unconfirmed.remove(topic);
        self.void_partitions(&self.owned_of(topic), error);
    }

    /// The cluster refuses a topic for good; it is not looked at again.
    pub(super) fn break_topic(&mut self, topic: &str, error: Error) {
        self.given_up.insert(topic.to_owned());
        self.break_partitions(&self.owned_of(topic), error);
    }

    pub(super) fn owned_of(&self, topic: &str) -> Vec<TopicPartition> {
        self.partitions.keys().filter(|at| *at.topic == *topic).cloned().collect()
    }

    /// An owner that is about to end need not hear of more.
    fn tell_broken(&mut self, error: Error) {
        if !self.is_ending() {
            self.events.push_back(Event::Broken(error));
        }
    }
}
