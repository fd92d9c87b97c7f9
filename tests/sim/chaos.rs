//! What is done to a world while it works.

use std::time::Duration;

use crate::member::Fate;
use crate::plan::{GROUP, TOPIC};
use crate::time::{Event, Who};
use crate::world::World;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// At once in a group.
const MEMBERS_MAX: usize = 4;
const PARTITIONS_MAX: i32 = 8;

impl World {
    /// Does one thing, and comes again.
    pub(crate) fn act(&mut self) {
        if !self.faulty {
            return;
        }
        // What is done to the cluster is done at its present time.
        self.cluster.poll(self.time.now);
        let (least, most) = self.plan.pause_ms;
        let pause = self.time.random.between(least, most);
        self.time.after(ms(pause), Event::Act);
        let deed = self.time.random.below(if self.is_calm() { 10 } else { 26 });
        let (living, partitions) = (self.living(), self.partitions());
        let chosen = self.time.random.pick(&living);
        let partition = self.time.random.below(partitions as u64) as i32;
        match (deed, chosen) {
            (0 | 1, _) if living.len() < MEMBERS_MAX => self.deed("a member joins", |world| {
                let instance = world.new_instance();
                world.start_member(instance);
            }),
            (2 | 3, Some(chosen)) if living.len() > 1 || !self.is_calm() => {
                self.deed("a member is told to stop", |world| world.signal(chosen));
            }
            (4, _) => self.deed("a leader moves", |world| world.cluster.move_leader(TOPIC, partition)),
            (5, _) => self.deed("a rebalance is forced", |world| {
                world.cluster.force_rebalance(GROUP);
            }),
            (6, Some(chosen)) => self.deed("a process stops for a moment", |world| {
                let pause = world.time.random.between(1, 250);
                world.sleep(chosen, ms(pause));
            }),
            (7, _) if partitions < PARTITIONS_MAX && self.time.random.one_in(3) => {
                self.deed("partitions are added", |world| {
                    let more = 1 + world.time.random.below(2) as i32;
                    world.cluster.add_partitions(TOPIC, partitions + more, world.time.now);
                });
            }
            (8, _) if self.time.random.one_in(3) => self.delete_prefix(partition),
            (9, _) => self.transact(partition),
            (10.., _) => self.rough_deed(deed, chosen),
            _ => {}
        }
        self.settle();
    }

    fn rough_deed(&mut self, deed: u64, chosen: Option<usize>) {
        let random = &mut self.time.random;
        let node = 1 + random.below(self.plan.nodes as u64) as i32;
        let long = ms(random.between(100, 12_000));
        let conns = self.wires.ids(None);
        let conn = random.pick(&conns);
        match (deed, chosen, conn) {
            (10 | 11, _, Some(conn)) => self.fault("a connection is cut", ms(0), |world| {
                world.wires.cut(conn, &mut world.time);
            }),
            (12, Some(chosen), _) => self.fault("all of a member's connections are cut", ms(0), |world| {
                for conn in world.wires.ids(Some(Who::Member(chosen))) {
                    world.wires.cut(conn, &mut world.time);
                }
            }),
            // A JoinGroup on it is waited for as long as a round may take.
            (13, _, Some(conn)) => {
                self.fault("a connection goes silent", self.plan.rebalance_timeout, |world| {
                    world.wires.hang(conn, &mut world.time);
                })
            }
            (14 | 15, _, _) => self.fault("a coordinator moves", ms(0), |world| {
                world.cluster.move_coordinator(GROUP);
            }),
            (16 | 17, _, _) => {
                let away = long / 2;
                self.fault("a broker restarts", away, |world| {
                    world.cluster.stop_node(node, world.time.now);
                    world.time.after(away, Event::NodeUp(node));
                });
            }
            (18, _, _) => self.fault("connections are refused", long / 4, |world| {
                world.wires.refuse(world.time.now + long / 4);
            }),
            (19 | 20, Some(chosen), _) => self.fault("a process stops for long", long, |world| {
                world.sleep(chosen, long);
            }),
            (21 | 22, Some(chosen), _) => self.fault("a process is killed", ms(0), |world| {
                // Not with a cooperative assignor: who takes a dead member's name between the two rounds gets its
                // assignment and asks for no second round, as Java's clients; what it was to give up waits for one.
                let cooperative = world.plan.words.iter().any(|word| word.starts_with("cooperative"));
                if let Some(instance) =
                    world.members[chosen].as_mut().and_then(|member| member.instance.take())
                    && !cooperative
                {
                    world.instances.push(instance);
                }
                world.kill_member(chosen);
                if world.time.random.one_in(2) {
                    world.time.after(long / 4, Event::Start);
                }
            }),
            (23, Some(chosen), _) => {
                self.stats.count("a handler fails");
                if let Some(member) = self.members[chosen].as_mut() {
                    member.to_fail = true;
                }
            }
            (24, Some(chosen), _) => {
                if self.plan.pace.hung_one_in > 0
                    && let Some(member) = self.members[chosen].as_mut()
                {
                    member.to_hang = true;
                }
            }
            (25, _, _) => {
                let stopping = self
                    .members
                    .iter()
                    .position(|member| member.as_ref().is_some_and(|member| member.fate == Fate::Stops));
                if let Some(stopping) = stopping {
                    self.deed("a second signal", |world| world.signal(stopping));
                }
            }
            _ => {}
        }
    }

    fn deed(&mut self, what: &str, act: impl FnOnce(&mut World)) {
        self.trace(|| what.to_owned());
        self.stats.count(what);
        act(self);
    }

    /// A deed that hurts, for `more`.
    fn fault(&mut self, what: &str, more: Duration, act: impl FnOnce(&mut World)) {
        self.trouble(more);
        self.deed(what, act);
    }

    pub(crate) fn signal(&mut self, number: usize) {
        let Some(member) = self.members[number].as_mut() else { return };
        member.signals.count += 1;
        member.signals.last = 15;
        if member.fate == Fate::Lives {
            member.fate = Fate::Stops;
        }
        let count = member.signals.count;
        self.trace(|| format!("member {number} gets signal number {count}"));
        self.want_turn(Who::Member(number), self.time.now);
    }

    fn sleep(&mut self, number: usize, pause: Duration) {
        let until = self.time.now + pause;
        let Some(member) = self.members[number].as_mut() else { return };
        // Never sooner than before: what waits for the wake-up keeps its order.
        member.asleep = member.asleep.max(until);
        self.trace(|| format!("member {number} stands still until {until:?}"));
    }

    fn delete_prefix(&mut self, partition: i32) {
        let Some(range) = self.cluster.log_range(TOPIC, partition) else { return };
        let before = self.time.random.between(range.start as u64, range.end as u64) as i64;
        self.deed("records are deleted", |world| {
            world.ledger.log_starts(partition, before);
            world.cluster.delete_records(TOPIC, partition, before, world.time.now);
        });
    }

    /// Begins a transaction with a few records, or ends one.
    fn transact(&mut self, partition: i32) {
        let open: Vec<i64> = self.transactions.keys().copied().collect();
        if let Some(producer) = self.time.random.pick(&open)
            && self.time.random.one_in(2)
        {
            return self.end_transaction(producer);
        }
        self.deed("a transaction begins", |world| world.begin_transaction(partition));
    }
}
