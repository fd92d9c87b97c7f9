//! `demo`: one thread falls behind, a pool catches up, in one terminal picture.

use clap::Args;

use super::common::{Output, OutputFlags};
use super::value;

const ABOUT: &str = "\
Everything runs in this process: a Kafka in memory, and the real seed, sequential, pool and lag. It takes half a
minute, needs nothing else and leaves nothing behind. Without a terminal it writes a line a second.
";

/// The flags of `demo`.
#[derive(Args, Clone, Debug)]
#[command(after_help = ABOUT)]
pub(super) struct DemoFlags {
    /// auto: colours on a terminal, unless NO_COLOR is set
    #[arg(long, alias = "colour", value_name = "WHEN", default_value = "auto", value_parser = Colour::parse)]
    color: Colour,

    #[command(flatten)]
    output: OutputFlags,
}

impl DemoFlags {
    pub(super) fn resolve(self) -> Demo {
        Demo { colour: self.color, output: self.output.resolve() }
    }
}

/// When colours are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Colour {
    fn parse(text: &str) -> Result<Self, String> {
        let words = [("auto", Colour::Auto), ("always", Colour::Always), ("never", Colour::Never)];
        value::word(text, &words)
    }
}

/// `demo`, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demo {
    /// When colours are written.
    pub colour: Colour,
    /// How lines are written where there is no picture.
    pub output: Output,
}
