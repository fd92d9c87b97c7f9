//! The handler of `pool` and `sequential`, and what becomes of a record that it fails on.
//!
//! One of: sleep and print, or a command. What only a command can do is refused without one, so that no flag is
//! silently without effect.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::lecture;
use super::parse::CommandWords;
use super::settings::{Layers, Setting};
use super::usage::{Usage, require};
use super::value;
use crate::handler::format::Format;
use crate::handler::outcome::ExitCodes;
use crate::handler::policy::{Halt, OnFail, Policy};
use crate::handler::template::first_place;
use crate::handler::{BatchConfig, CommandConfig, CommandMode, Delay, HandlerConfig};

/// The flags of the handler. The command itself is cut off before clap sees the line: see `parse`.
#[derive(Args, Clone, Debug)]
pub(super) struct HandlerFlags {
    /// Handler: sleep D, or from D to D; without it, for the lecture's topic alone [env: WORK_DELAY] [default: 10ms]
    #[arg(long, value_name = "D|D..D", value_parser = delay)]
    work_delay: Option<Delay>,

    /// Handler: write kcat's letters (%t %p %o %k %s %K %S %T %h) or one JSON object a line; after --work-delay
    #[arg(short = 'f', long, value_name = "FORMAT|json", value_parser = Format::parse)]
    print: Option<Format>,

    /// With --print into a file: sync it before each commit
    #[arg(long)]
    fsync: bool,

    /// Handler: run this shell text for each record, the value on its stdin
    #[arg(long, value_name = "TEXT")]
    shell: Option<OsString>,

    /// Handler: run the command (-- CMD ARG... at the end of the line) for each record; --exec may stand for --
    #[arg(long, value_name = "CMD ARG...")]
    exec: Option<OsString>,

    /// Feed the command with JSON lines, one long-lived process per worker; it answers ID ok|retry|reject REASON
    #[arg(long)]
    pipe: bool,

    /// With --pipe: records open at once per process [default: 64]
    #[arg(long, value_name = "N", value_parser = pipe_depth)]
    pipe_depth: Option<u32>,

    /// Hand a command up to N records at once, as JSON lines on stdin, with one outcome for all
    #[arg(long, value_name = "N", value_parser = batch)]
    batch: Option<u32>,

    /// With --batch: how long the first record waits for more [default: 0]
    #[arg(long, value_name = "D", value_parser = value::timeout)]
    batch_wait: Option<Duration>,

    /// With --batch: key (records of one key only) or any [default: any]
    #[arg(long, value_name = "key|any", value_parser = batch_by)]
    batch_by: Option<bool>,

    /// Leave {} {key} {topic} {partition} {offset} in the command's arguments as they are
    #[arg(long)]
    no_replace: bool,

    /// Begin each line that a command prints with topic/partition@offset
    #[arg(long)]
    tag: bool,

    /// Longest try of a command, then TERM to its process group and KILL 2 s later; 0 = no limit [default: 0]
    #[arg(long, value_name = "D", value_parser = value::period)]
    timeout: Option<Duration>,

    /// Exit codes by which a command rejects a record: no retry [default: 65]
    #[arg(long, value_name = "N,...", value_parser = exit_codes)]
    reject_exit: Option<Codes>,

    /// Exit codes by which it asks to be tried again, without limit [default: 75]
    #[arg(long, value_name = "N,...", value_parser = exit_codes)]
    retry_exit: Option<Codes>,

    /// Extra tries after other failures; inf = without limit [default: 3]
    #[arg(long, value_name = "N|inf", value_parser = retries)]
    retries: Option<Retries>,

    /// Delay before the second try; doubles, with jitter [default: 200ms]
    #[arg(long, value_name = "D", value_parser = value::period)]
    retry_delay: Option<Duration>,

    /// The longest delay between two tries [default: 30s]
    #[arg(long, value_name = "D", value_parser = value::period)]
    retry_max_delay: Option<Duration>,

    /// What becomes of a record that cannot be done: stop, skip or dlq; dlq when --dlq is given [default: stop]
    #[arg(long, value_name = "stop|skip|dlq", value_parser = on_fail)]
    on_fail: Option<OnFail>,

    /// Topic to which records that cannot be done are copied before they are passed
    #[arg(long, value_name = "TOPIC", value_parser = value::topic)]
    dlq: Option<String>,

    /// Stop after N dead letters and skips: now (running commands are ended) or soon (drained) [default: never]
    #[arg(long, value_name = "never|now,fail=N|soon,fail=N", value_parser = halt)]
    halt: Option<Halting>,

    /// Append a line per try to this file, in the columns of GNU parallel
    #[arg(long, value_name = "FILE")]
    joblog: Option<PathBuf>,
}

/// What becomes of records that fail, resolved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Failing {
    /// Retries, delays and the last resort.
    pub policy: Policy,
    /// After how many failed records the run ends.
    pub halt: Option<Halt>,
    /// `--dlq`: there exactly if the policy's last resort is a dead letter.
    pub dead_letters: Option<String>,
    /// `--joblog`.
    pub joblog: Option<PathBuf>,
}

impl HandlerFlags {
    /// The handler that was chosen; `None` if none was.
    pub(super) fn resolve(
        self,
        command: Option<CommandWords>,
        layers: &mut Layers<'_>,
    ) -> Result<(Option<HandlerConfig>, Failing), Usage> {
        debug_assert!(self.exec.is_none(), "--exec is cut off with its words");
        let command = self.command(command, layers)?;
        if command.is_none() {
            let flag = self.for_commands_alone();
            require!(flag.is_none(), "{} is for a command: add -- CMD ARG...", flag.unwrap_or_default());
        } else {
            require!(
                self.work_delay.is_none() && self.print.is_none(),
                "a command beside --work-delay or --print: choose one handler"
            );
        }
        require!(!self.fsync || self.print.is_some(), "--fsync is for --print: add it, or leave --fsync out");
        let failing = self.failing()?;
        let chosen = self.work_delay.is_some() || self.print.is_some() || command.is_some();
        let handler = HandlerConfig { delay: self.work_delay, print: self.print, fsync: self.fsync, command };
        Ok((chosen.then_some(handler), failing))
    }

    /// The first flag given that has no effect without a command.
    fn for_commands_alone(&self) -> Option<&'static str> {
        let flags = [
            (self.pipe, "--pipe"),
            (self.pipe_depth.is_some(), "--pipe-depth"),
            (self.batch.is_some(), "--batch"),
            (self.batch_wait.is_some(), "--batch-wait"),
            (self.batch_by.is_some(), "--batch-by"),
            (self.no_replace, "--no-replace"),
            (self.tag, "--tag"),
            (self.timeout.is_some(), "--timeout"),
            (self.reject_exit.is_some(), "--reject-exit"),
            (self.retry_exit.is_some(), "--retry-exit"),
            (self.retries.is_some(), "--retries"),
            (self.retry_delay.is_some(), "--retry-delay"),
            (self.retry_max_delay.is_some(), "--retry-max-delay"),
            (self.on_fail.is_some(), "--on-fail"),
            (self.dlq.is_some(), "--dlq"),
            (self.halt.is_some(), "--halt"),
            (self.joblog.is_some(), "--joblog"),
        ];
        flags.into_iter().find(|(given, _)| *given).map(|(_, name)| name)
    }

    fn command(
        &self,
        command: Option<CommandWords>,
        layers: &mut Layers<'_>,
    ) -> Result<Option<CommandConfig>, Usage> {
        let (words, by_shell) = match (command, &self.shell) {
            (Some(_), Some(_)) => {
                return Err(Usage::new("--shell TEXT and a command after it: choose one handler"));
            }
            (Some(command), None) => {
                if let Some(option) = &command.like_an_option {
                    layers.warnings.push(format!(
                        "{option} stands after --exec and so belongs to the command; keylane's own options go before"
                    ));
                }
                (command.words, false)
            }
            (None, Some(text)) => {
                require!(!text.is_empty(), "--shell has no text");
                (vec!["/bin/sh".into(), "-c".into(), text.clone()], true)
            }
            (None, None) => return Ok(None),
        };
        require!(!words[0].is_empty(), "the command's name is empty");
        let batch = self.batch_config()?;
        require!(
            self.pipe || self.pipe_depth.is_none(),
            "--pipe-depth is for --pipe: add it, or leave --pipe-depth out"
        );
        require!(
            !self.pipe || batch.is_none(),
            "--batch is for one process per batch, and --pipe has long-lived ones: leave one out"
        );
        require!(
            !self.pipe || !self.tag,
            "--tag is for what a command prints, and with --pipe that is answers: leave one out"
        );
        let place = words[1..].iter().find_map(|word| first_place(word.as_bytes()));
        if let Some(place) = place.filter(|_| batch.is_some() && !self.no_replace && !by_shell) {
            return Err(Usage::new(format!(
                "{place} among the arguments has no value for the several records of a --batch: they are on stdin; add \
                 --no-replace to pass it as it is"
            )));
        }
        let mode = if self.pipe {
            CommandMode::Pipe { depth: self.pipe_depth.unwrap_or(64) as usize }
        } else {
            CommandMode::Exec(batch)
        };
        let exits = self.exits()?;
        Ok(Some(CommandConfig {
            words,
            mode,
            replace: !self.no_replace && !by_shell && mode == CommandMode::Exec(None),
            tag: self.tag,
            timeout: self.timeout.filter(|timeout| !timeout.is_zero()),
            exits,
        }))
    }

    fn batch_config(&self) -> Result<Option<BatchConfig>, Usage> {
        let Some(records_max) = self.batch else {
            require!(
                self.batch_wait.is_none() && self.batch_by.is_none(),
                "--batch-wait and --batch-by are for --batch N: add it"
            );
            return Ok(None);
        };
        Ok(Some(BatchConfig {
            records_max: records_max as usize,
            wait: self.batch_wait.unwrap_or_default(),
            by_key: self.batch_by.unwrap_or(false),
        }))
    }

    fn exits(&self) -> Result<ExitCodes, Usage> {
        let defaults = ExitCodes::default();
        let list = |codes: &Option<Codes>, default: Vec<u8>| codes.clone().map_or(default, |codes| codes.0);
        let reject = list(&self.reject_exit, defaults.reject);
        let mut retry = list(&self.retry_exit, defaults.retry);
        if self.retry_exit.is_none() {
            // A code that is chosen to reject is no longer one of the defaults.
            retry.retain(|code| !reject.contains(code));
        }
        let reject: Vec<u8> = match &self.reject_exit {
            None => reject.into_iter().filter(|code| !retry.contains(code)).collect(),
            Some(_) => reject,
        };
        let both = reject.iter().find(|code| retry.contains(code));
        require!(
            both.is_none(),
            "exit {} is in --reject-exit and in --retry-exit: choose one",
            both.copied().unwrap_or_default()
        );
        Ok(ExitCodes { reject, retry })
    }

    fn failing(&self) -> Result<Failing, Usage> {
        let defaults = Policy::default();
        let on_fail = match (self.on_fail, &self.dlq) {
            (None, None) => OnFail::Stop,
            (None | Some(OnFail::DeadLetter), Some(_)) => OnFail::DeadLetter,
            (Some(OnFail::DeadLetter), None) => {
                return Err(Usage::new("--on-fail dlq needs the topic: add --dlq TOPIC"));
            }
            (Some(_), Some(_)) => {
                return Err(Usage::new("--dlq TOPIC beside another --on-fail: leave one out"));
            }
            (Some(on_fail), None) => on_fail,
        };
        let delay = self.retry_delay.unwrap_or(defaults.delay);
        let delay_max = match self.retry_max_delay {
            Some(delay_max) => {
                require!(
                    delay <= delay_max,
                    "--retry-delay {}ms is above --retry-max-delay {}ms",
                    delay.as_millis(),
                    delay_max.as_millis()
                );
                delay_max
            }
            None => defaults.delay_max.max(delay),
        };
        let retries = self.retries.map_or(defaults.retries, |retries| retries.0);
        Ok(Failing {
            policy: Policy { retries, delay, delay_max, on_fail },
            halt: self.halt.and_then(|halting| halting.0),
            dead_letters: self.dlq.clone(),
            joblog: self.joblog.clone(),
        })
    }
}

/// The lecture's handler, for its topic alone.
pub(super) fn lecture_handler(layers: &mut Layers<'_>) -> Result<HandlerConfig, Usage> {
    let setting = Setting { flag: "--work-delay", variable: Some(("WORK_DELAY", delay)), property: None };
    let chosen = layers.pick(None, &setting)?;
    let default = || delay(lecture::WORK_DELAY).map_err(Usage::new);
    Ok(HandlerConfig { delay: Some(chosen.map_or_else(default, Ok)?), ..HandlerConfig::default() })
}

/// `10ms`, or `1ms..20ms`.
fn delay(text: &str) -> Result<Delay, String> {
    let (min, max) = text.split_once("..").unwrap_or((text, text));
    let delay = Delay { min: value::duration(min)?, max: value::duration(max)? };
    if delay.min > delay.max {
        return Err(format!("'{text}' begins above its end: write {max}..{min}"));
    }
    Ok(delay)
}

fn pipe_depth(text: &str) -> Result<u32, String> {
    value::whole_u32(text, 1, 100_000)
}

fn batch(text: &str) -> Result<u32, String> {
    value::whole_u32(text, 1, 100_000)
}

fn batch_by(text: &str) -> Result<bool, String> {
    value::word(text, &[("key", true), ("any", false)])
}

/// A list of exit codes as one value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Codes(Vec<u8>);

fn exit_codes(text: &str) -> Result<Codes, String> {
    let code = |part: &str| {
        let code = value::whole(part.trim(), 1, 255)
            .map_err(|_| format!("'{text}' is not a list of exit codes from 1 to 255, such as 65,3"))?;
        Ok(code as u8)
    };
    let codes = text.split(',').map(code).collect::<Result<Vec<u8>, String>>()?;
    Ok(Codes(value::without_repetition(codes)))
}

/// `--retries`: `None` = without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Retries(Option<u32>);

fn retries(text: &str) -> Result<Retries, String> {
    if text == "inf" {
        return Ok(Retries(None));
    }
    value::whole_u32(text, 0, 1_000_000)
        .map(|retries| Retries(Some(retries)))
        .map_err(|_| format!("'{text}' is not a whole number from 0 to 1000000, or inf"))
}

fn on_fail(text: &str) -> Result<OnFail, String> {
    value::word(text, &[("stop", OnFail::Stop), ("skip", OnFail::Skip), ("dlq", OnFail::DeadLetter)])
}

/// `--halt`: `None` = never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Halting(Option<Halt>);

fn halt(text: &str) -> Result<Halting, String> {
    let wrong = || format!("'{text}' is not one of never, now,fail=N, soon,fail=N");
    if text == "never" {
        return Ok(Halting(None));
    }
    let (when, count) = text.split_once(",fail=").ok_or_else(wrong)?;
    let now = value::word(when, &[("now", true), ("soon", false)]).map_err(|_| wrong())?;
    let failures_max = value::whole(count, 1, i64::MAX as u64).map_err(|_| wrong())?;
    Ok(Halting(Some(Halt { now, failures_max })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays() {
        let ms = Duration::from_millis;
        assert_eq!(delay("10ms"), Ok(Delay { min: ms(10), max: ms(10) }));
        assert_eq!(delay("0"), Ok(Delay { min: ms(0), max: ms(0) }));
        assert_eq!(delay("1ms..20ms"), Ok(Delay { min: ms(1), max: ms(20) }));
        assert_eq!(delay("1.5s..2s"), Ok(Delay { min: ms(1500), max: ms(2000) }));
        for text in ["", "..", "1ms..", "..1ms", "2s..1s", "1..2ms", "1ms...2ms", "1ms..2ms..3ms"] {
            assert!(delay(text).is_err(), "{text}");
        }
    }

    #[test]
    fn failure_flags() {
        assert_eq!(exit_codes("65, 3,65"), Ok(Codes(vec![65, 3])));
        for text in ["", "0", "256", "65,", "x", "-1"] {
            assert!(exit_codes(text).is_err(), "{text}");
        }
        assert_eq!(retries("inf"), Ok(Retries(None)));
        assert_eq!(retries("0"), Ok(Retries(Some(0))));
        assert!(retries("-1").is_err());
        assert_eq!(halt("never"), Ok(Halting(None)));
        assert_eq!(halt("now,fail=3"), Ok(Halting(Some(Halt { now: true, failures_max: 3 }))));
        for text in ["", "now", "soon,fail=0", "soon,fail=", "later,fail=1", "now,success=1"] {
            assert!(halt(text).is_err(), "{text}");
        }
    }
}
