//! A suite that nobody here wrote: franz-go's own tests of groups and transactions, on the broker inside.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::child::{Exit, Keylane};
use crate::cluster::{Cluster, LIMIT, have, kafka, repository, say};

const MODULE: &str = "github.com/twmb/franz-go";
const VERSION: &str = "v1.22.3";

/// Chains of groups with members that come and go, each record once and in order, with and without transactions.
/// Subtests of the new consumer protocol leave themselves out, as it is not announced.
#[test]
fn franz_go_tests_groups_and_transactions() {
    // Beside a real Kafka alone: the suite takes a minute, and Go.
    if kafka().is_none() || !have("go") {
        return;
    }
    let Some(folder) = module() else { return };
    for args in [&[][..], &["--nodes", "3"]] {
        let dev = Cluster::dev(args);
        let mut command = go(&folder);
        command.args(["test", "./pkg/kgo", "-run", "TestGroupETL|TestTxnEtl", "-count", "1", "-v"]);
        command.env("KGO_SEEDS", dev.brokers()).env("KGO_TEST_RF", "1").env("KGO_TEST_RECORDS", "20000");
        let exit = Keylane::run_command(command).wait_exit(10 * LIMIT);
        assert_eq!(exit.code, Some(0), "{args:?}: {}", failures(&exit));
        for test in ["TestGroupETL", "TestTxnEtl"] {
            assert!(exit.stdout.contains(&format!("--- PASS: {test} ")), "{test} {args:?}: {exit}");
        }
    }
}

/// A copy of the module that can be written to: its tests keep files beside it.
fn module() -> Option<PathBuf> {
    let copy = PathBuf::from(repository(&format!("target/franz-go-{VERSION}")));
    if !copy.join("go.mod").is_file() {
        let answer = go(Path::new(&repository("tests/peers/franz")))
            .args(["mod", "download", "-json", &format!("{MODULE}@{VERSION}")])
            .output()
            .expect("go runs");
        let answer: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap_or_default();
        let Some(folder) = answer["Dir"].as_str() else {
            say(&format!("franz-go's tests cannot be had here: {answer}"));
            return None;
        };
        let copied = Command::new("cp").args(["-r", "--no-preserve=mode", folder]).arg(&copy).status();
        assert!(copied.is_ok_and(|status| status.success()), "cp {folder}");
    }
    Some(copy)
}

fn go(folder: &Path) -> Command {
    let mut command = Command::new("go");
    command.current_dir(folder);
    command
}

/// The lines that say what failed; the rest of a verbose run is long.
fn failures(exit: &Exit) -> String {
    let telling = |line: &&str| line.contains("FAIL") || line.contains("_test.go") || line.contains("panic");
    let lines: Vec<&str> = exit.stdout.lines().chain(exit.stderr.lines()).filter(telling).take(40).collect();
    lines.join("\n")
}
