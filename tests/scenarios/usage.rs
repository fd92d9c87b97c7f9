//! What a mistyped command line meets before any broker does.

use std::time::Duration;

use crate::child::Keylane;

#[test]
fn a_command_line_that_cannot_run_ends_with_64_and_says_what_to_write() {
    type Case = (&'static [&'static str], &'static [(&'static str, &'static str)], &'static [&'static str]);
    let cases: [Case; 5] = [
        (&["pool", "--topic", "orders", "--work-delay", "0"], &[], &["add -g GROUP"]),
        (&["pool", "--topic", "orders", "-g", "x"], &[], &["handler", "--work-delay"]),
        (&["seed", "--topic", "orders"], &[], &["-n"]),
        (&["pool", "-group=x"], &[], &["did you mean --group=x?"]),
        (&["pool"], &[("WORKERS", "abc")], &["WORKERS", "abc"]),
    ];
    for (args, environment, expected) in cases {
        let exit = Keylane::run_bare(args, environment).wait_exit(Duration::from_secs(10));
        assert_eq!(exit.code, Some(64), "{args:?}: {exit}");
        for part in expected {
            assert!(exit.stderr.contains(part), "{args:?} says {part:?}: {exit}");
        }
        assert_eq!(exit.stdout, "");
    }
}
