//! Text that people write: the command line with its addresses, sizes, durations and names, configuration files in
//! Java's and kcat's grammars, and the format of `--print`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use keylane::cli::{Environment, Parsed, parse, wanted_format};
use keylane::handler::format::{Format, RecordView};

use crate::campaign;
use crate::mutate::mutate;
use crate::rng::Rng;

/// What each subcommand of these takes, with values that are right.
const LINES: [&[&str]; 9] = [
    &[
        "pool",
        "-t",
        "orders",
        "-g",
        "billing",
        "-w",
        "16",
        "-e",
        "--print",
        "%k %s\\n",
        "-b",
        "[::1]:9092,a:1",
    ],
    &[
        "pool",
        "--max-memory",
        "64MiB",
        "--commit-interval",
        "1.5s",
        "--from",
        "@1700000000000",
        "--order",
        "key",
    ],
    &[
        "pool",
        "--work-delay",
        "1ms..2.5ms",
        "--assignor",
        "range,sticky",
        "--max-ahead",
        "10",
        "--stats",
        "0",
    ],
    &[
        "sequential",
        "-X",
        "session.timeout.ms=45000",
        "-X",
        "client.id=é",
        "--drain-timeout",
        "25s",
        "-n",
        "7",
    ],
    &[
        "seed", "-n", "10000", "-k", "32", "--size", "1KiB", "-z", "zstd", "--skew", "0.9", "--linger",
        "250us",
    ],
    &["lag", "-g", "billing", "-i", "2s", "--once", "--format", "json", "--isolation", "read_committed"],
    &["topic", "create", "orders", "-p", "6", "-r", "1", "-c", "cleanup.policy=compact", "--if-not-exists"],
    &["group", "reset", "billing", "-t", "orders:0,1,2", "--to", "earliest", "--execute"],
    &["group", "describe", "billing", "--offsets", "--request-timeout", "10s"],
];
const WORDS: [&str; 24] = [
    "",
    "-",
    "--",
    "@",
    "%",
    "..",
    "9999999999999999999999",
    "-1",
    "0",
    "1e400",
    "NaN",
    "inf",
    "0x10",
    "١",
    "1..",
    "..1ms",
    "a:b:c",
    "[",
    "[::1",
    "ms",
    "18446744073709551615GiB",
    "0.0000000001s",
    "orders:",
    "orders:0-4294967296",
];
const FORMATS: [&str; 6] =
    ["%t/%p@%o %T %k=%s\\n", "%K %S %R%h", "json", "\\x00\\x1e\\012\\10 %%", "é%p\\é", "[%k|%s]"];
const FILES: [&str; 3] = [
    "# c\nbootstrap.servers = a:1,b:2\nclient.id: \\u00e9\\uD83D\\uDE00\ngroup.id=\\\n   x\\ty\n",
    "sasl.jaas.config=org.X required \\\n  username=\"u\";\nsession.timeout.ms 45000\n! c\n",
    "bootstrap.servers=a:1\n sasl.password = p\\w=d \nsession.timeout.ms=1\n",
];
/// clap's own tables, made for each line.
const MEMORY_MAX: usize = 2 << 20;
const MEMORY_PER_BYTE_MAX: usize = 256;

/// Changed bytes as text: most changes break UTF-8 somewhere, which is then replaced.
fn changed(rng: &mut Rng, text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    mutate(rng, &mut bytes, b"\\u%:=,.@[]-0123456789msKiB \n\t\\");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A property whose value begins with @ is read from a file: no such file is wanted here.
fn harmless(word: &str) -> String {
    word.replace("=@", "=").replace("--config", "--confi").replace("-F", "-f")
}

#[test]
fn command_lines() {
    let stages = [("resolved", 100), ("usage error", 400)];
    campaign::run("command_lines", 3, &stages, |rng, case| {
        let mut words: Vec<OsString> = vec!["keylane".into()];
        words.extend(rng.pick(&LINES).iter().map(|word| OsString::from(*word)));
        for _ in 0..rng.below(3) {
            let at = 1 + rng.below(words.len() - 1);
            let word = match rng.below(4) {
                0 => (*rng.pick(&WORDS)).to_owned(),
                1 => {
                    let line = *rng.pick::<&[&str]>(&LINES);
                    (*rng.pick(line)).to_owned()
                }
                _ => changed(rng, &words[at].to_string_lossy()),
            };
            words[at] = harmless(&word).into();
        }
        if rng.one_in(30) {
            words.push(OsString::from_vec(vec![0xff, b'a']));
        }
        let bytes = words.iter().map(|word| word.len()).sum();
        case.work(bytes, MEMORY_MAX + MEMORY_PER_BYTE_MAX * bytes, |case| {
            wanted_format(&words);
            match parse(&words, &Environment::default()) {
                Ok(Parsed::Run(command)) => {
                    assert!(command.common().is_none_or(|common| !common.brokers.is_empty()));
                    case.reached("resolved");
                }
                Ok(Parsed::Answer(_)) => case.reached("help"),
                Err(usage) => {
                    assert!(!usage.to_string().is_empty());
                    case.reached("usage error");
                }
            }
        });
    });
}

#[test]
fn configuration_files() {
    let folder = tempfile::tempdir().expect("a folder of our own");
    let stages = [("resolved", 20), ("usage error", 300)];
    campaign::run("configuration_files", 2, &stages, |rng, case| {
        let text = *rng.pick(&FILES);
        let mut bytes = text.as_bytes().to_vec();
        if !rng.one_in(8) {
            let other = *rng.pick::<&str>(&FILES);
            mutate(rng, &mut bytes, other.as_bytes());
        }
        let path = folder.path().join(if rng.one_in(2) { "client.properties" } else { "kcat.conf" });
        fs::write(&path, &bytes).expect("a file of our own");
        let words: Vec<OsString> = vec!["keylane".into(), "lag".into(), "-F".into(), path.into()];
        case.work(bytes.len(), MEMORY_MAX + MEMORY_PER_BYTE_MAX * bytes.len(), |case| {
            match parse(&words, &Environment::default()) {
                Ok(_) => case.reached("resolved"),
                Err(usage) => {
                    assert!(!usage.to_string().is_empty());
                    case.reached("usage error");
                }
            }
        });
    });
}

#[test]
fn formats() {
    let headers: [(&[u8], Option<&[u8]>); 2] = [(b"a", Some(b"\xfe")), (b"n", None)];
    let record = RecordView {
        topic: "orders",
        partition: i32::MAX,
        offset: i64::MAX,
        timestamp_ms: -1,
        key: None,
        value: Some(b"v\xff\0"),
        headers: headers.iter().copied(),
    };
    let stages = [("rendered", 200), ("refused", 200)];
    campaign::run("formats", 9, &stages, |rng, case| {
        let text = *rng.pick(&FORMATS);
        let text = changed(rng, text);
        // A piece is 32 bytes of memory for two of text; rendered, 50 bytes at most.
        let limit = 4096 + 64 * text.len();
        case.work(text.len(), limit, |case| match Format::parse(&text) {
            Ok(format) => {
                let mut out = Vec::new();
                format.render(&record, &mut out);
                case.reached("rendered");
            }
            Err(why) => {
                assert!(!why.is_empty());
                case.reached("refused");
            }
        });
    });
}
