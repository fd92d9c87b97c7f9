//! Property names: those in use, those that Java or librdkafka know, and names near to a wrong one.

use super::known_names::UNUSED;

/// A property that keylane uses.
pub(super) struct Used {
    /// The name that keylane calls it, then the other spellings of Java and librdkafka.
    pub(super) names: &'static [&'static str],
    /// Its default, for `-X list`.
    pub(super) default: &'static str,
    /// What it is, for `-X list`.
    pub(super) what: &'static str,
}

const fn used(names: &'static [&'static str], default: &'static str, what: &'static str) -> Used {
    Used { names, default, what }
}

/// What `-X list` shows. Names for encryption and logins are not here: this version refuses what needs them.
pub(super) const USED: &[Used] = &[
    used(
        &["bootstrap.servers", "metadata.broker.list"],
        "127.0.0.1:9092",
        "brokers to start from; --brokers",
    ),
    used(&["security.protocol"], "PLAINTEXT", "PLAINTEXT alone in this version"),
    used(&["client.id"], "keylane", "name in the brokers' logs and quotas"),
    used(&["client.rack"], "", "where this client is: replicas there are read from"),
    used(&["group.id"], "", "the consumer group; --group"),
    used(&["group.instance.id"], "", "static membership; --instance-id"),
    used(&["group.protocol"], "classic", "classic alone in this version"),
    used(&["session.timeout.ms"], "45000", "silence after which the coordinator drops a member"),
    used(&["heartbeat.interval.ms"], "1000", "time between heartbeats"),
    used(&["max.poll.interval.ms"], "60000", "the rebalance timeout"),
    used(&["partition.assignment.strategy"], "cooperative-sticky", "assignors; --assignor"),
    used(&["max.poll.records"], "100", "records between two commits of sequential; --max-poll-records"),
    used(&["fetch.max.bytes"], "from --max-memory", "bytes of one fetch answer"),
    used(
        &["max.partition.fetch.bytes", "fetch.message.max.bytes"],
        "1048576",
        "bytes of one partition in a fetch answer",
    ),
    used(&["fetch.max.wait.ms", "fetch.wait.max.ms"], "500", "how long a broker waits for new records"),
    used(&["isolation.level"], "read_committed", "--isolation; lag: read_uncommitted"),
    used(&["auto.offset.reset"], "earliest", "where to go when an offset is out of range"),
    used(&["acks", "request.required.acks"], "all", "what the leader waits for; --acks"),
    used(&["linger.ms", "queue.buffering.max.ms"], "5", "how long a batch waits for more records; --linger"),
    used(&["compression.type", "compression.codec"], "lz4", "codec of seed's batches; --compression"),
];

/// Unused names that a flag stands for.
const INSTEAD: [(&str, &str); 8] = [
    ("request.timeout.ms", "--request-timeout"),
    ("socket.timeout.ms", "--request-timeout"),
    ("batch.size", "--batch-bytes"),
    ("delivery.timeout.ms", "--delivery-timeout"),
    ("message.timeout.ms", "--delivery-timeout"),
    ("queued.max.messages.kbytes", "--max-memory"),
    ("auto.commit.interval.ms", "--commit-interval"),
    ("statistics.interval.ms", "--stats"),
];

/// What a name turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// In use, under this name.
    Used(&'static str),
    /// Known to Java or librdkafka; why nothing comes of it.
    Unused(String),
    /// Not known; these are near.
    Unknown(Vec<&'static str>),
}

/// Looks a name up.
pub(super) fn look_up(name: &str) -> Found {
    if let Some(used) = USED.iter().find(|used| used.names.contains(&name)) {
        return Found::Used(used.names[0]);
    }
    if let Some((_, flag)) = INSTEAD.iter().find(|(known, _)| *known == name) {
        return Found::Unused(format!("not used; give {flag}"));
    }
    if UNUSED.contains(&name) {
        return Found::Unused("not used by keylane".to_owned());
    }
    Found::Unknown(near(name))
}

/// All spellings of a property in use, the one that keylane calls it first.
pub(super) fn names(canonical: &str) -> &'static [&'static str] {
    USED.iter().find(|used| used.names[0] == canonical).map_or(&[], |used| used.names)
}

/// The environment variable of a property: `KAFKA_GROUP_ID`.
pub(super) fn variable(name: &str) -> String {
    format!("KAFKA_{}", name.replace('.', "_").to_ascii_uppercase())
}

/// The answer to `-X list`.
pub(super) fn list() -> String {
    let mut text =
        String::from("Properties in use; each can also be set as KAFKA_NAME with dots as underscores:\n");
    for used in USED {
        text.push_str(&format!("{} = {}\n    {}", used.names[0], used.default, used.what));
        if let [_, others @ ..] = used.names
            && !others.is_empty()
        {
            text.push_str(&format!(" (also {})", others.join(", ")));
        }
        text.push('\n');
    }
    text
}

/// At most three names within a distance of a quarter of the length, nearest first.
fn near(name: &str) -> Vec<&'static str> {
    // No known name is longer than 64: a longer one is not near any, and the distance is quadratic.
    if name.len() > 80 {
        return Vec::new();
    }
    let limit = (name.len() / 4).clamp(1, 4);
    let all = USED.iter().flat_map(|used| used.names).chain(UNUSED);
    let mut near: Vec<(usize, &'static str)> =
        all.map(|known| (distance(name, known), *known)).filter(|(distance, _)| *distance <= limit).collect();
    near.sort_by_key(|(distance, _)| *distance);
    near.into_iter().take(3).map(|(_, known)| known).collect()
}

/// Levenshtein's distance, in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_once() {
        let mut all: Vec<&str> = USED.iter().flat_map(|used| used.names).chain(UNUSED).copied().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(INSTEAD.iter().all(|(name, _)| UNUSED.contains(name)));
    }

    #[test]
    fn spellings_and_near_names() {
        assert_eq!(look_up("metadata.broker.list"), Found::Used("bootstrap.servers"));
        assert_eq!(look_up("batch.size"), Found::Unused("not used; give --batch-bytes".to_owned()));
        assert_eq!(look_up("bootstrap.server"), Found::Unknown(vec!["bootstrap.servers"]));
        let Found::Unknown(near) = look_up("sesion.timeout.ms") else { panic!("known?") };
        assert_eq!(near[0], "session.timeout.ms");
        assert_eq!(look_up("nonsense"), Found::Unknown(vec![]));
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(variable("sasl.password"), "KAFKA_SASL_PASSWORD");
    }
}
