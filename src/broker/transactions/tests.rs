//! One test per rule of the coordinator.

use super::*;

const ID: &str = "mover";
const START: Duration = Duration::from_secs(100);

fn at(ms: u64) -> Duration {
    START + Duration::from_millis(ms)
}

fn producer(id: i64, epoch: i16) -> Producer {
    Producer { id, epoch }
}

fn asked(known: Producer) -> Init<'static> {
    Init { transactional_id: Some(ID), timeout_ms: 1000, known }
}

const NEW: Producer = Producer { id: -1, epoch: -1 };

fn init(coordinator: &mut Transactions, known: Producer) -> Result<Producer, ResponseError> {
    let (answer, ended) = coordinator.init(asked(known), START);
    assert_eq!(ended, None);
    answer
}

fn add(coordinator: &mut Transactions, producer: Producer) -> Result<(), ResponseError> {
    coordinator.add_partitions(ID, producer, [("t".to_owned(), 0)], START)
}

/// A coordinator with `ID` initialised and a transaction open on t-0.
fn ongoing() -> (Transactions, Producer) {
    let mut coordinator = Transactions::default();
    let first = init(&mut coordinator, NEW).expect("new");
    add(&mut coordinator, first).expect("current");
    (coordinator, first)
}

/// As if `ID` had been initialised so often.
fn at_epoch(epoch: i16) -> Transactions {
    let mut coordinator = Transactions::default();
    init(&mut coordinator, NEW).expect("new");
    coordinator.by_id.get_mut(ID).expect("just made").producer.epoch = epoch;
    coordinator
}

#[test]
fn each_producer_without_an_id_is_another() {
    let mut coordinator = Transactions::default();
    let idempotent = Init { transactional_id: None, timeout_ms: -1, known: NEW };
    for expected in 0..3 {
        assert_eq!(coordinator.init(idempotent, START), (Ok(producer(expected, 0)), None));
    }
    let again = Init { known: producer(1, 4), ..idempotent };
    assert_eq!(coordinator.init(again, START), (Ok(producer(3, 0)), None));
}

#[test]
fn requests_that_make_no_sense() {
    let mut coordinator = Transactions::default();
    let empty = Init { transactional_id: Some(""), ..asked(NEW) };
    assert_eq!(coordinator.init(empty, START).0, Err(ResponseError::InvalidRequest));
    for timeout_ms in [0, -1, TIMEOUT_MS_MAX + 1] {
        let told = coordinator.init(Init { timeout_ms, ..asked(NEW) }, START).0;
        assert_eq!(told, Err(ResponseError::InvalidTransactionTimeout));
    }
    for known in [producer(5, -1), producer(-1, 5)] {
        assert_eq!(init(&mut coordinator, known), Err(ResponseError::InvalidRequest));
    }
}

#[test]
fn the_next_of_an_id_fences_the_one_before() {
    let mut coordinator = Transactions::default();
    let first = init(&mut coordinator, NEW).expect("new");
    let second = init(&mut coordinator, NEW).expect("the next");
    assert_eq!((first, second), (producer(0, 0), producer(0, 1)));
    assert_eq!(add(&mut coordinator, first), Err(ResponseError::ProducerFenced));
    assert_eq!(coordinator.end(ID, first, true), Err(ResponseError::ProducerFenced));
    assert_eq!(coordinator.add_group(ID, first, "g", START), Err(ResponseError::ProducerFenced));
    assert_eq!(add(&mut coordinator, second), Ok(()));
}

#[test]
fn unknown_ids_and_producers_are_told_so() {
    let (mut coordinator, first) = ongoing();
    let unknown = Err(ResponseError::InvalidProducerIdMapping);
    assert_eq!(add(&mut coordinator, producer(9, 0)), unknown);
    assert_eq!(coordinator.end("other", first, true).map(|_| ()), unknown);
    assert_eq!(coordinator.verify_partition("other", first, "t", 0), unknown);
    assert_eq!(coordinator.end("", first, true), Err(ResponseError::InvalidRequest));
}

#[test]
fn an_open_transaction_is_aborted_first() {
    let (mut coordinator, first) = ongoing();
    let (told, ended) = coordinator.init(asked(NEW), START);
    assert_eq!(told, Err(ResponseError::ConcurrentTransactions));
    let ended = ended.expect("it was open");
    assert_eq!((ended.producer, ended.commit), (producer(0, 1), false), "the marker fences too");
    assert_eq!(ended.partitions, [("t".to_owned(), 0)].into());
    assert_eq!(coordinator.end(ID, first, true), Err(ResponseError::ProducerFenced));
    assert_eq!(init(&mut coordinator, NEW), Ok(producer(0, 2)), "when it asks again");
}

#[test]
fn a_transaction_ends_once_but_may_be_told_so_twice() {
    for commit in [true, false] {
        let (mut coordinator, first) = ongoing();
        let ended = coordinator.end(ID, first, commit).expect("current").expect("it was open");
        assert_eq!((ended.producer, ended.commit), (first, commit));
        assert_eq!(coordinator.end(ID, first, commit), Ok(None));
        assert_eq!(coordinator.end(ID, first, !commit), Err(ResponseError::InvalidTxnState));
        add(&mut coordinator, first).expect("the next transaction");
        assert!(coordinator.end(ID, first, !commit).expect("current").is_some());
    }
}

#[test]
fn nothing_to_end() {
    let mut coordinator = Transactions::default();
    let first = init(&mut coordinator, NEW).expect("new");
    for commit in [true, false] {
        assert_eq!(coordinator.end(ID, first, commit), Err(ResponseError::InvalidTxnState));
    }
}

#[test]
fn offsets_alone_make_a_transaction() {
    let mut coordinator = Transactions::default();
    let first = init(&mut coordinator, NEW).expect("new");
    coordinator.add_group(ID, first, "g", START).expect("current");
    assert_eq!(coordinator.verify_group(ID, first, "g"), Ok(()));
    assert_eq!(coordinator.verify_group(ID, first, "h"), Err(ResponseError::TransactionAbortable));
    let ended = coordinator.end(ID, first, true).expect("current").expect("it was open");
    assert!(ended.partitions.is_empty());
    assert_eq!(coordinator.verify_group(ID, first, "g"), Err(ResponseError::TransactionAbortable));
}

#[test]
fn batches_are_verified() {
    let (mut coordinator, first) = ongoing();
    assert_eq!(coordinator.verify_partition(ID, first, "t", 0), Ok(()));
    let not_added = Err(ResponseError::TransactionAbortable);
    assert_eq!(coordinator.verify_partition(ID, first, "t", 1), not_added);
    assert_eq!(coordinator.verify_partition(ID, first, "u", 0), not_added);
    let fenced = coordinator.verify_partition(ID, producer(0, 1), "t", 0);
    assert_eq!(fenced, Err(ResponseError::InvalidProducerEpoch));
    coordinator.end(ID, first, true).expect("current");
    assert_eq!(coordinator.verify_partition(ID, first, "t", 0), not_added);
}

#[test]
fn a_producer_bumps_its_own_epoch() {
    let mut coordinator = Transactions::default();
    let first = init(&mut coordinator, NEW).expect("new");
    let second = init(&mut coordinator, first).expect("current");
    assert_eq!(second, producer(0, 1));
    assert_eq!(init(&mut coordinator, first), Ok(second), "asked again, since the answer was lost");
    assert_eq!(init(&mut coordinator, second), Ok(producer(0, 2)));
    assert_eq!(init(&mut coordinator, first), Err(ResponseError::ProducerFenced));
    assert_eq!(init(&mut coordinator, producer(7, 2)), Err(ResponseError::ProducerFenced));
}

#[test]
fn whoever_was_fenced_by_another_cannot_bump_its_epoch() {
    let mut coordinator = Transactions::default();
    let first = init(&mut coordinator, NEW).expect("new");
    init(&mut coordinator, NEW).expect("another one");
    assert_eq!(init(&mut coordinator, first), Err(ResponseError::ProducerFenced));
}

#[test]
fn an_id_that_is_new_here_takes_any_producer() {
    let mut coordinator = Transactions::default();
    assert_eq!(init(&mut coordinator, producer(40, 3)), Ok(producer(0, 0)));
}

#[test]
fn spent_epochs_give_a_new_producer_id() {
    let mut coordinator = at_epoch(EPOCH_MAX - 1);
    assert_eq!(init(&mut coordinator, NEW), Ok(producer(0, EPOCH_MAX)));
    assert_eq!(init(&mut coordinator, NEW), Ok(producer(1, 0)));

    let mut coordinator = at_epoch(EPOCH_MAX);
    let spent = producer(0, EPOCH_MAX);
    assert_eq!(init(&mut coordinator, spent), Ok(producer(1, 0)));
    assert_eq!(init(&mut coordinator, spent), Ok(producer(1, 0)), "asked again");
    assert_eq!(init(&mut coordinator, producer(0, 5)), Err(ResponseError::ProducerFenced));
}

#[test]
fn the_last_epoch_can_still_be_fenced() {
    let mut coordinator = at_epoch(EPOCH_MAX);
    add(&mut coordinator, producer(0, EPOCH_MAX)).expect("current");
    let (told, ended) = coordinator.init(asked(NEW), START);
    assert_eq!(told, Err(ResponseError::ConcurrentTransactions));
    assert_eq!(ended.map(|ended| ended.producer), Some(producer(0, i16::MAX)));
    assert_eq!(init(&mut coordinator, NEW), Ok(producer(1, 0)));
}

#[test]
fn what_takes_too_long_is_aborted_and_fenced() {
    let (mut coordinator, first) = ongoing();
    assert_eq!(coordinator.deadline(), Some(at(1000)));
    coordinator.add_partitions(ID, first, [("t".to_owned(), 1)], at(900)).expect("current");
    assert_eq!(coordinator.deadline(), Some(at(1000)), "counted from its begin");
    assert!(coordinator.poll(at(999)).is_empty());
    let ended = coordinator.poll(at(1000));
    assert_eq!(ended.len(), 1);
    assert_eq!((ended[0].producer, ended[0].commit, ended[0].partitions.len()), (producer(0, 1), false, 2));
    assert_eq!((coordinator.deadline(), coordinator.poll(at(5000)).len()), (None, 0));
    assert_eq!(coordinator.end(ID, first, true), Err(ResponseError::ProducerFenced));
    assert_eq!(init(&mut coordinator, NEW), Ok(producer(0, 2)));
}

#[test]
fn the_longest_idle_id_is_forgotten() {
    let mut coordinator = Transactions::default();
    for index in 0..=IDS_MAX {
        let id = format!("id-{index}");
        let asked = Init { transactional_id: Some(&id), ..asked(NEW) };
        let first = coordinator.init(asked, at(index as u64)).0.expect("new");
        if index == 0 {
            coordinator.add_group(&id, first, "g", START).expect("current");
        }
    }
    assert_eq!(coordinator.iter().count(), IDS_MAX);
    assert!(coordinator.get("id-0").is_some(), "it has a transaction open");
    assert!(coordinator.get("id-1").is_none());
}

#[test]
fn old_clients_are_told_the_old_code() {
    assert_eq!(told(ResponseError::ProducerFenced, true), 90);
    assert_eq!(told(ResponseError::ProducerFenced, false), 47);
    assert_eq!(told(ResponseError::InvalidTxnState, false), 48);
}

/// EndTxn of transaction version 2: the producer it gives, and whether anything was ended.
fn end_and_renew(
    coordinator: &mut Transactions,
    producer: Producer,
    commit: bool,
) -> Result<(Producer, bool), ResponseError> {
    let (renewed, ended) = coordinator.end_and_renew(ID, producer, commit)?;
    if let Some(ended) = &ended {
        let marker = Producer { epoch: producer.epoch + 1, ..producer };
        assert_eq!((ended.producer, ended.commit), (marker, commit));
    }
    Ok((renewed, ended.is_some()))
}

#[test]
fn each_transaction_has_its_epoch() {
    for commit in [true, false] {
        let (mut coordinator, first) = ongoing();
        let second = producer(first.id, 1);
        assert_eq!(end_and_renew(&mut coordinator, first, commit), Ok((second, true)));
        assert_eq!(add(&mut coordinator, first), Err(ResponseError::ProducerFenced));
        assert_eq!(add(&mut coordinator, second), Ok(()));
        assert_eq!(end_and_renew(&mut coordinator, first, commit), Err(ResponseError::ProducerFenced));
        assert_eq!(end_and_renew(&mut coordinator, second, commit), Ok((producer(first.id, 2), true)));
    }
}

/// Kafka's table: the end of a transaction that is not open, asked for again (with the epoch of the one before) and
/// anew (with the current one).
#[test]
fn ends_of_nothing_under_version_2() {
    use ResponseError::{InvalidTxnState, ProducerFenced};
    let again = producer(0, 0);
    let anew = producer(0, 1);
    let empty = || {
        let mut coordinator = Transactions::default();
        init(&mut coordinator, NEW).expect("new");
        init(&mut coordinator, NEW).expect("the next");
        coordinator
    };
    let complete = |commit| {
        let (mut coordinator, first) = ongoing();
        assert_eq!(end_and_renew(&mut coordinator, first, commit), Ok((anew, true)));
        coordinator
    };
    let bumped = Ok((producer(0, 2), true));
    let nothing = Ok((anew, false));
    let mut table = [
        (empty(), again, false, Err(ProducerFenced)),
        (empty(), anew, false, bumped),
        (empty(), again, true, Err(ProducerFenced)),
        (empty(), anew, true, Err(InvalidTxnState)),
        (complete(false), again, false, nothing),
        (complete(false), anew, false, bumped),
        (complete(false), again, true, Err(InvalidTxnState)),
        (complete(false), anew, true, Err(InvalidTxnState)),
        (complete(true), again, false, Err(InvalidTxnState)),
        (complete(true), anew, false, bumped),
        (complete(true), again, true, nothing),
        (complete(true), anew, true, Err(InvalidTxnState)),
    ];
    for (line, (coordinator, producer, commit, expected)) in table.iter_mut().enumerate() {
        assert_eq!(end_and_renew(coordinator, *producer, *commit), *expected, "line {line}");
    }
}

#[test]
fn the_last_epoch_ends_with_a_new_id() {
    let mut coordinator = at_epoch(EPOCH_MAX);
    let spent = producer(0, EPOCH_MAX);
    add(&mut coordinator, spent).expect("current");
    assert_eq!(end_and_renew(&mut coordinator, spent, true), Ok((producer(1, 0), true)));
    assert_eq!(end_and_renew(&mut coordinator, spent, true), Ok((producer(1, 0), false)), "asked again");
    let unknown = Err(ResponseError::InvalidProducerIdMapping);
    assert_eq!(end_and_renew(&mut coordinator, producer(0, 4), true), unknown);
    assert_eq!(init(&mut coordinator, producer(1, 0)), Ok(producer(1, 1)), "and no id is lost");
    assert_eq!(coordinator.next_producer_id, 2);
}

#[test]
fn whoever_was_timed_out_may_abort_and_go_on() {
    let (mut coordinator, first) = ongoing();
    coordinator.poll(at(1000));
    assert_eq!(end_and_renew(&mut coordinator, first, true), Err(ResponseError::InvalidTxnState));
    assert_eq!(end_and_renew(&mut coordinator, first, false), Ok((producer(0, 1), false)));
}
