//! From the words of the command line to a [`Command`], an answer, or a usage error.
//!
//! clap types the flags. What it would misread is looked at here: `-group=x` (which it takes for `-g` and the value
//! `roup=x`), a bare `--`, `-X list` without the arguments that a subcommand needs, and options before the
//! subcommand. Exit codes are not clap's: it only says what is wrong.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

#[cfg(feature = "broker")]
use super::broker::BrokerFlags;
#[cfg(feature = "broker")]
use super::demo::DemoFlags;
use super::dlq::DlqFlags;
use super::group::GroupFlags;
use super::known;
use super::lag::LagFlags;
use super::pool::PoolFlags;
use super::seed::SeedFlags;
use super::sequential::SequentialFlags;
use super::topic::TopicFlags;
use super::usage::require;
use super::verify::VerifyFlags;
use super::{Command, Environment, OutputFormat, Usage};

/// What a build without the feature has not.
#[cfg(feature = "broker")]
macro_rules! broker_help {
    () => {
        "  broker      be a Kafka in memory, for development and tests
  demo        show all of it in half a minute; needs no Kafka
"
    };
}
#[cfg(not(feature = "broker"))]
macro_rules! broker_help {
    () => {
        ""
    };
}

const HELP: &str = concat!(
    "\
keylane works through a Kafka topic with many workers, each key in order
Usage: keylane COMMAND [OPTIONS]; keylane COMMAND --help lists the options
  seed        fill a topic with records
  sequential  work through a topic on one thread, the baseline
  pool        work through topics with many workers
  lag         watch how far groups are behind
  topic       create, list, describe, delete topics
  group       list, describe, delete groups, reset their offsets
  dlq         list dead letters, send them back
  verify      prove by joblogs that nothing was lost or reordered
",
    broker_help!(),
    "Examples: keylane seed -n 10000 --keys 32
          keylane pool -t orders -g billing -w 16 --dlq orders.dead -- ./bill.sh
"
);

/// The whole command line.
#[derive(Parser, Clone, Debug)]
#[command(name = "keylane", version, override_help = HELP)]
struct Flags {
    #[command(subcommand)]
    command: CommandFlags,
}

#[derive(Subcommand, Clone, Debug)]
enum CommandFlags {
    /// Fill a topic with records
    Seed(SeedFlags),
    /// Work through a topic on one thread: the baseline
    Sequential(SequentialFlags),
    /// Work through topics with many workers, each key in order
    Pool(PoolFlags),
    /// Watch how far groups are behind
    Lag(LagFlags),
    /// Create, list, describe and delete topics
    #[command(subcommand)]
    Topic(TopicFlags),
    /// List, describe and delete groups, and reset their offsets
    #[command(subcommand)]
    Group(GroupFlags),
    /// List dead letters and send them back
    #[command(subcommand)]
    Dlq(DlqFlags),
    /// Prove by joblogs that nothing was lost or reordered
    Verify(VerifyFlags),
    /// Be a Kafka in memory, for development and tests
    #[cfg(feature = "broker")]
    Broker(BrokerFlags),
    /// Show one thread fall behind and a pool catch up, on a Kafka in memory
    #[cfg(feature = "broker")]
    Demo(DemoFlags),
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Parsed {
    /// Run this.
    Run(Box<Command>),
    /// Print this on stdout and end with 0: help, version, a list.
    Answer(String),
}

/// Parses and resolves. `words` begins with the program's name.
///
/// # Errors
/// What is wrong and what would be right.
pub fn parse(words: &[OsString], environment: &Environment) -> Result<Parsed, Usage> {
    let options = before_dashes(words);
    if asks_for_list(options) {
        return Ok(Parsed::Answer(known::list()));
    }
    refuse_go_style(options)?;
    let command = cut_command(words, options)?;
    let flags = match Flags::try_parse_from(if command.is_some() { options } else { words }) {
        Ok(flags) => flags,
        Err(error) => return answer_or_usage(&error, options),
    };
    let command = match flags.command {
        CommandFlags::Seed(flags) => Command::Seed(flags.resolve(environment)?),
        CommandFlags::Sequential(flags) => Command::Sequential(flags.resolve(environment, command)?),
        CommandFlags::Pool(flags) => Command::Pool(flags.resolve(environment, command)?),
        CommandFlags::Lag(flags) => Command::Lag(flags.resolve(environment)?),
        CommandFlags::Topic(flags) => Command::Topic(flags.resolve(environment)?),
        CommandFlags::Group(flags) => Command::Group(flags.resolve(environment)?),
        CommandFlags::Dlq(flags) => Command::Dlq(flags.resolve(environment)?),
        CommandFlags::Verify(flags) => Command::Verify(flags.resolve(environment)?),
        #[cfg(feature = "broker")]
        CommandFlags::Broker(flags) => Command::Broker(flags.resolve()?),
        #[cfg(feature = "broker")]
        CommandFlags::Demo(flags) => Command::Demo(flags.resolve()),
    };
    Ok(Parsed::Run(Box::new(command)))
}

/// The `--format` of a command line that may be wrong, so that even its error is written as asked.
pub fn wanted_format(words: &[OsString]) -> OutputFormat {
    let options = before_dashes(words);
    let pair = options.windows(2).any(|pair| pair[0] == "--format" && pair[1] == "json");
    if pair || options.iter().any(|word| word == "--format=json") {
        OutputFormat::Json
    } else {
        OutputFormat::Text
    }
}

/// The words before `--`, and of the consumers before `--exec` too, which takes all that follow.
fn before_dashes(words: &[OsString]) -> &[OsString] {
    let ends = |word: &OsString| word == "--" || (is_consumer(words) && is_exec(word));
    let end = words.iter().position(ends).unwrap_or(words.len());
    &words[..end]
}

fn is_consumer(words: &[OsString]) -> bool {
    words.get(1).is_some_and(|word| word == "pool" || word == "sequential")
}

fn is_exec(word: &OsString) -> bool {
    word == "--exec" || word.as_encoded_bytes().starts_with(b"--exec=")
}

fn asks_for_list(options: &[OsString]) -> bool {
    options.windows(2).any(|pair| pair[0] == "-X" && pair[1] == "list")
        || options.iter().any(|word| word == "-Xlist" || word == "-X=list")
}

/// Every long option's name, aliases included.
fn long_names() -> Vec<String> {
    fn collect(command: &clap::Command, names: &mut Vec<String>) {
        for argument in command.get_arguments() {
            names.extend(argument.get_long().map(str::to_owned));
            names.extend(argument.get_all_aliases().unwrap_or_default().into_iter().map(str::to_owned));
        }
        command.get_subcommands().for_each(|command| collect(command, names));
    }
    let mut names = Vec::new();
    collect(&Flags::command(), &mut names);
    names
}

/// `-WORD` or `-WORD=…` where WORD is a long option's name: WORD and the rest from the `=` on.
fn go_style<'w>(word: &'w OsString, names: &[String]) -> Option<(&'w str, &'w str)> {
    let text = word.to_str()?.strip_prefix('-').filter(|text| !text.starts_with('-'))?;
    let (name, rest) = text.split_at(text.find('=').unwrap_or(text.len()));
    names.iter().any(|known| known == name).then_some((name, rest))
}

fn refuse_go_style(options: &[OsString]) -> Result<(), Usage> {
    let names = long_names();
    for word in options {
        if let Some((name, rest)) = go_style(word, &names)
            && !rest.is_empty()
        {
            return Err(Usage::new(format!("-{name}{rest}: did you mean --{name}{rest}?")));
        }
    }
    Ok(())
}

/// The command that a consumer is to run for its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandWords {
    /// Not empty.
    pub(super) words: Vec<OsString>,
    /// After `--exec`, the first word that is also an option of keylane.
    pub(super) like_an_option: Option<String>,
}

/// `-- CMD ARG…` or `--exec CMD ARG…`; without a word after it, as an empty variable leaves it, nothing must be handled
/// by default.
fn cut_command(words: &[OsString], options: &[OsString]) -> Result<Option<CommandWords>, Usage> {
    let Some(mark) = words.get(options.len()).filter(|_| is_consumer(words)) else { return Ok(None) };
    let mut rest = words[options.len() + 1..].to_vec();
    let by_exec = is_exec(mark);
    if by_exec {
        match mark.to_str().map(|mark| mark.strip_prefix("--exec=")) {
            Some(None) => {}
            Some(Some(first)) => rest.insert(0, first.into()),
            None => return Err(Usage::new("--exec=CMD is not UTF-8: write --exec CMD")),
        }
        // Both marks: the second one is not the command's name.
        if rest.first().is_some_and(|word| word == "--") {
            rest.remove(0);
        }
    }
    let mark = if by_exec { "--exec" } else { "--" };
    require!(!rest.is_empty(), "{mark} has no command after it: write {mark} CMD ARG...");
    let names = if by_exec { long_names() } else { Vec::new() };
    let like_an_option = rest[1..].iter().filter_map(|word| word.to_str()).find(|word| {
        let name = word.strip_prefix("--").map(|word| word.split('=').next().unwrap_or_default());
        name.is_some_and(|name| names.iter().any(|known| known == name))
    });
    Ok(Some(CommandWords { like_an_option: like_an_option.map(str::to_owned), words: rest }))
}

fn answer_or_usage(error: &clap::Error, options: &[OsString]) -> Result<Parsed, Usage> {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Parsed::Answer(text)),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Err(Usage::new(format!("a command is missing\n\n{}", text.trim_end())))
        }
        kind => {
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
            let text = text.strip_suffix("For more information, try '--help'.").unwrap_or(text);
            let mut message = text.trim_end().to_owned();
            let names = long_names();
            // Without a `=`, `-workers 8` may be `-w orkers`; it is one of the two that went wrong.
            for (name, rest) in options.iter().filter_map(|word| go_style(word, &names)) {
                message.push_str(&format!("\nDid you mean --{name}{rest}?"));
            }
            let first_is_option =
                options.get(1).and_then(|word| word.to_str()).is_some_and(|word| word.starts_with('-'));
            if kind == ErrorKind::UnknownArgument && first_is_option {
                message.push_str("\nOptions go after the command: keylane COMMAND [OPTIONS]");
            }
            Err(Usage::new(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Acks, Assignor, Compression, Isolation, Pool, Reset};
    use super::*;
    use crate::handler::format::{Format, Piece};
    use crate::handler::{CommandMode, Delay};

    /// Each subcommand with no more than it needs.
    const MINIMAL: [&str; 15] = [
        "seed",
        "sequential",
        "pool",
        "lag",
        "topic create orders",
        "topic list",
        "topic describe",
        "topic delete orders",
        "group list",
        "group describe billing",
        "group delete billing",
        "group reset billing -t orders --to earliest",
        "dlq list -t dead",
        "dlq replay -t dead",
        "verify run.log",
    ];

    /// What a flag may need beside it: a command, and how that is fed.
    const BESIDE: [&[&str]; 4] =
        [&[], &["--", "true"], &["--pipe", "--", "true"], &["--batch", "2", "--", "true"]];

    fn parsed(line: &str, more: &[&str], environment: &Environment) -> Result<Parsed, Usage> {
        let words = ["keylane"].into_iter().chain(line.split(' ')).chain(more.iter().copied());
        parse(&words.map(OsString::from).collect::<Vec<_>>(), environment)
    }

    fn resolved(line: &str, more: &[&str], environment: &Environment) -> Command {
        match parsed(line, more, environment) {
            Ok(Parsed::Run(command)) => *command,
            other => panic!("{line} {more:?}: {other:?}"),
        }
    }

    /// The same without the list of what came from the environment.
    fn without_origin(mut command: Command) -> Command {
        let common = match &mut command {
            Command::Seed(seed) => &mut seed.common,
            Command::Sequential(sequential) => &mut sequential.consume.common,
            Command::Pool(pool) => &mut pool.consume.common,
            Command::Lag(lag) => &mut lag.common,
            _ => return command,
        };
        common.from_environment.clear();
        command
    }

    fn leaf(line: &str) -> clap::Command {
        let mut command = Flags::command();
        command.build();
        for word in line.split(' ') {
            match command.find_subcommand(word) {
                Some(found) => command = found.clone(),
                None => break,
            }
        }
        assert!(!command.has_subcommands(), "{line}");
        command
    }

    fn bracket(help: &str, name: &str) -> Option<String> {
        let (_, rest) = help.split_once(&format!("[{name}: "))?;
        Some(rest.split_once(']')?.0.to_owned())
    }

    fn documented_default(argument: &clap::Arg) -> Option<String> {
        let own = argument.get_default_values().first().and_then(|value| value.to_str()).map(str::to_owned);
        let written = bracket(&argument.get_help()?.to_string(), "default");
        assert!(own.is_none() || written.is_none(), "{}: two defaults", argument.get_id());
        if argument.get_action().takes_values() { own.or(written) } else { None }
    }

    #[test]
    fn clap_accepts_its_own_table() {
        Flags::command().debug_assert();
    }

    #[test]
    fn the_help_is_read_at_a_glance() {
        assert!(HELP.lines().count() <= 14);
    }

    #[test]
    fn every_flag_is_explained_and_every_value_named() {
        for line in MINIMAL {
            for argument in leaf(line).get_arguments() {
                let id = format!("{line}: {}", argument.get_id());
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(!help.is_empty() && !help.ends_with('.') && help.len() <= 120, "{id}: {help}");
                if argument.get_action().takes_values() {
                    assert!(argument.get_value_names().is_some_and(|names| !names.is_empty()), "{id}");
                }
            }
        }
    }

    #[test]
    fn documented_defaults_are_the_real_ones() {
        let nothing = Environment::default();
        let mut count = 0;
        for line in MINIMAL {
            for argument in leaf(line).get_arguments() {
                let Some(default) = documented_default(argument) else { continue };
                let flag =
                    format!("--{}={default}", argument.get_long().expect("only options have defaults"));
                let with = |beside: &[&'static str]| -> Vec<&str> { [&[flag.as_str()], beside].concat() };
                let beside = BESIDE.into_iter().find(|beside| parsed(line, &with(beside), &nothing).is_ok());
                let beside = beside.unwrap_or_else(|| panic!("{line} {flag}: refused"));
                let expected = resolved(line, beside, &nothing);
                assert_eq!(resolved(line, &with(beside), &nothing), expected, "{line} {flag}");
                count += 1;
            }
        }
        assert!(count > 60, "{count}");
    }

    #[test]
    fn documented_variables_are_read() {
        let mut names = Vec::new();
        for line in MINIMAL {
            let expected = resolved(line, &[], &Environment::default());
            for argument in leaf(line).get_arguments() {
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                let (Some(variable), Some(default)) = (bracket(&help, "env"), documented_default(argument))
                else {
                    continue;
                };
                let environment = Environment::of([(&variable, &default)]);
                let command = resolved(line, &[], &environment);
                assert_eq!(command.common().unwrap().from_environment.len(), 1, "{line} {variable}");
                if !matches!(
                    command,
                    Command::Topic(_) | Command::Group(_) | Command::Dlq(_) | Command::Verify(_)
                ) {
                    assert_eq!(without_origin(command), expected, "{line} {variable}");
                }
                names.push(variable);
            }
        }
        names.sort();
        names.dedup();
        let all = [
            "COMMIT_INTERVAL",
            "KAFKA_BROKERS",
            "LAG_GROUP",
            "SEED_KEYS",
            "SEED_MESSAGES",
            "WORKERS",
            "WORK_DELAY",
        ];
        assert_eq!(names, all);
    }

    #[test]
    fn listed_defaults_of_properties_are_the_real_ones() {
        let nothing = Environment::default();
        for line in ["seed", "sequential", "pool"] {
            let expected = resolved(line, &[], &nothing);
            for used in known::USED
                .iter()
                .filter(|used| !used.default.is_empty() && used.names[0] != "fetch.max.bytes")
            {
                for name in used.names {
                    let assignment = format!("{name}={}", used.default);
                    assert_eq!(
                        resolved(line, &["-X", &assignment], &nothing),
                        expected,
                        "{line} {assignment}"
                    );
                }
            }
        }
    }

    #[test]
    fn properties_reach_their_fields() {
        let environment = Environment::of([
            ("KAFKA_BOOTSTRAP_SERVERS", "lost:1"),
            ("KAFKA_BROKERS", "[::1]:9093"),
            ("KAFKA_CLIENT_ID", "lost"),
            ("KAFKA_ISOLATION_LEVEL", "read_uncommitted"),
        ]);
        let assignments = "client.id=me client.rack=r1 group.id=g group.instance.id=i session.timeout.ms=9000 \
            heartbeat.interval.ms=3000 max.poll.interval.ms=300000 partition.assignment.strategy=range,sticky \
            fetch.max.bytes=1000 fetch.message.max.bytes=2000 fetch.wait.max.ms=30 auto.offset.reset=none";
        let more: Vec<&str> = assignments.split_whitespace().flat_map(|word| ["-X", word]).collect();
        let Command::Pool(Pool { consume, .. }) = resolved("pool", &more, &environment) else {
            panic!("pool")
        };
        let ms = std::time::Duration::from_millis;
        assert_eq!(consume.common.brokers, [("::1".to_owned(), 9093)]);
        assert_eq!(consume.common.client_id, "me");
        assert_eq!(consume.common.client_rack.as_deref(), Some("r1"));
        assert_eq!((consume.group.as_str(), consume.instance_id.as_deref()), ("g", Some("i")));
        assert_eq!((consume.session_timeout, consume.heartbeat_interval), (ms(9000), ms(3000)));
        assert_eq!((consume.max_poll_interval, consume.fetch_max_wait), (ms(300_000), ms(30)));
        assert_eq!(consume.assignors, [Assignor::Range, Assignor::Sticky]);
        assert_eq!((consume.fetch_max_bytes, consume.max_partition_fetch_bytes), (Some(1000), 2000));
        assert_eq!(consume.isolation, Isolation::ReadUncommitted);
        assert_eq!(consume.out_of_range, Reset::Fail);
        let names: Vec<&str> = consume.common.from_environment.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["KAFKA_ISOLATION_LEVEL", "KAFKA_BROKERS"]);

        let more =
            ["-X", "acks=1", "-X", "queue.buffering.max.ms=0", "-X", "compression.codec=gzip", "-n", "0"];
        let Command::Seed(seed) = resolved("seed", &more, &Environment::default()) else { panic!("seed") };
        assert_eq!((seed.acks, seed.linger, seed.compression), (Acks::Leader, ms(0), Compression::Gzip));
        assert_eq!((seed.messages, seed.rate), (None, None));
    }

    #[test]
    fn handlers() {
        let handler = |more: &[&str]| {
            let environment = Environment::of([("WORK_DELAY", "3ms")]);
            match resolved("pool", more, &environment) {
                Command::Pool(pool) => (pool.consume.handler, pool.consume.common.from_environment.len()),
                _ => panic!("pool"),
            }
        };
        let ms = std::time::Duration::from_millis;
        let (chosen, variables) = handler(&[]);
        assert_eq!(
            (chosen.delay, chosen.print, variables),
            (Some(Delay { min: ms(3), max: ms(3) }), None, 1)
        );
        // A handler flag beats WORK_DELAY: printing does not sleep.
        let (chosen, variables) = handler(&["--print", "json"]);
        assert_eq!((chosen.delay, chosen.print, variables), (None, Some(Format::Json), 0));
        let (chosen, _) = handler(&["--print", "%s", "--work-delay", "1ms..2ms"]);
        assert_eq!(chosen.delay, Some(Delay { min: ms(1), max: ms(2) }));
        assert_eq!(chosen.print, Some(Format::Pieces(vec![Piece::Value])));
    }

    #[test]
    fn commands() {
        let command = |more: &[&str]| match resolved("pool", more, &Environment::default()) {
            Command::Pool(pool) => {
                (pool.consume.handler.command.expect("a command"), pool.consume.common.warnings)
            }
            _ => panic!("pool"),
        };
        let (exec, warnings) = command(&["--tag", "--", "cook", "--tag", "{}"]);
        assert_eq!(exec.words, ["cook", "--tag", "{}"]);
        assert!(exec.tag && exec.replace && exec.mode == CommandMode::Exec(None));
        assert_eq!(warnings, [""; 0]);
        let (exec, warnings) = command(&["--exec", "cook", "--tag"]);
        assert_eq!(exec.words, ["cook", "--tag"]);
        assert!(!exec.tag && warnings.len() == 1 && warnings[0].contains("--tag"), "{warnings:?}");
        assert_eq!(command(&["--exec=cook", "x"]).0.words, ["cook", "x"]);
        let (shell, _) = command(&["--shell", "cat > {}"]);
        assert_eq!(shell.words, ["/bin/sh", "-c", "cat > {}"]);
        assert!(!shell.replace);
        let (pipe, _) = command(&["--pipe", "--pipe-depth", "3", "--", "cook"]);
        assert_eq!(pipe.mode, CommandMode::Pipe { depth: 3 });
        let (batch, _) = command(&["--batch", "3", "--no-replace", "--", "jq", "{key}"]);
        assert!(matches!(batch.mode, CommandMode::Exec(Some(_))) && !batch.replace);
        assert_eq!(command(&["--retry-exit", "22", "--", "curl"]).0.exits.retry, [22]);
        assert_eq!(command(&["--reject-exit", "75", "--", "x"]).0.exits.retry, [0; 0]);
    }

    #[test]
    fn contradictions_of_handlers_are_usage_errors() {
        for line in [
            "--print %s -- cook",
            "--retries 2 --print %s",
            "--dlq dead --on-fail skip -- cook",
            "--on-fail dlq -- cook",
            "--pipe-depth 3 -- cook",
            "--pipe --batch 3 -- cook",
            "--batch-wait 1s -- cook",
            "--pipe --tag -- cook",
            "--batch 3 -- cook --for={key}",
            "--batch 3 --batch-by key --order partition -- cook",
            "--batch 3 --batch-by key --dispatch hash -- cook",
            "--reject-exit 3 --retry-exit 3 -- cook",
            "--retry-delay 2s --retry-max-delay 1s -- cook",
            "--halt now -- cook",
            "--retry-exit 0 -- cook",
            "--exec",
            "--",
            "--pipe",
        ] {
            let words = ["keylane", "pool"].into_iter().chain(line.split(' ')).map(OsString::from);
            let parsed = parse(&words.collect::<Vec<_>>(), &Environment::default());
            assert!(parsed.is_err(), "{line}: {parsed:?}");
        }
    }

    #[test]
    fn go_style_words() {
        let names = long_names();
        for (word, expected) in [
            ("-group=x", Some(("group", "=x"))),
            ("-bootstrap-server=a:1", Some(("bootstrap-server", "=a:1"))),
            ("-workers", Some(("workers", ""))),
            ("--group=x", None),
            ("-g=x", None),
            ("-groups=x", None),
            ("group=x", None),
            ("-", None),
        ] {
            assert_eq!(go_style(&OsString::from(word), &names), expected, "{word}");
        }
    }
}
