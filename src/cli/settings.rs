//! Where a value comes from: flag, environment, configuration file, default, in this order.
//!
//! Every value is picked through [`Layers::pick`], so precedence, the wording of an error (which names the flag, the
//! variable or the file and line) and the list of values taken from the environment are decided in one place.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::known;
use super::properties;
use super::usage::{Usage, require};

/// No configuration file or secret is as long as that.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A value that came from the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FromEnvironment {
    /// The variable.
    pub name: String,
    /// What it says.
    pub value: String,
}

/// The environment, read once so that resolving depends on nothing else.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// This process's environment.
    pub fn of_process() -> Self {
        Environment(
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect(),
        )
    }

    /// An environment of these variables alone.
    pub fn of<const N: usize>(variables: [(&str, &str); N]) -> Self {
        Environment(variables.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect())
    }

    /// A variable's value. Set to nothing counts as not set, as shells and compose files have it.
    pub(super) fn value(&self, name: &str) -> Result<Option<&str>, Usage> {
        let Some(value) = self.0.get(name).filter(|value| !value.is_empty()) else { return Ok(None) };
        match value.to_str() {
            Some(value) => Ok(Some(value)),
            None => Err(Usage::new(format!("{name} (from the environment) is not UTF-8"))),
        }
    }
}

/// Turns text into a value, or says what would be right.
pub(super) type Parse<T> = fn(&str) -> Result<T, String>;

/// The names under which one value can be given besides its flag.
pub(super) struct Setting<T> {
    /// The flag, for messages.
    pub(super) flag: &'static str,
    /// Its own variable, which is written as the flag is.
    pub(super) variable: Option<(&'static str, Parse<T>)>,
    /// A property of `known::USED`, whose units may differ from the flag's.
    pub(super) property: Option<(&'static str, Parse<T>)>,
}

/// A property's text and where it stands.
#[derive(Clone, Debug)]
struct Property {
    text: String,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    CommandLine(String),
    Variable(String),
    File { file: String, line: usize, name: String },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::CommandLine(name) => write!(f, "-X {name}"),
            Place::Variable(name) => write!(f, "{name} (from the environment)"),
            Place::File { file, line, name } => write!(f, "{file} line {line}: {name}"),
        }
    }
}

/// All layers below the flags, and what is to be said about them at start.
pub(super) struct Layers<'a> {
    environment: &'a Environment,
    command_line: BTreeMap<&'static str, Property>,
    file: BTreeMap<&'static str, Property>,
    pub(super) from_environment: Vec<FromEnvironment>,
    pub(super) warnings: Vec<String>,
}

impl<'a> Layers<'a> {
    /// Reads `-X NAME=VALUE` and the configuration file, and checks every name in them.
    pub(super) fn new(
        environment: &'a Environment,
        assignments: &[String],
        config: Option<&Path>,
    ) -> Result<Self, Usage> {
        let mut layers = Layers {
            environment,
            command_line: BTreeMap::new(),
            file: BTreeMap::new(),
            from_environment: Vec::new(),
            warnings: Vec::new(),
        };
        for assignment in assignments {
            layers.add_assignment(assignment)?;
        }
        match (config, environment.value("KEYLANE_CONFIG")?) {
            (Some(path), _) => layers.add_file(path)?,
            (None, Some(path)) => {
                layers.note_variable("KEYLANE_CONFIG", path);
                layers.add_file(Path::new(path))?;
            }
            (None, None) => {}
        }
        Ok(layers)
    }

    fn add_assignment(&mut self, assignment: &str) -> Result<(), Usage> {
        let Some((name, text)) = assignment.split_once('=') else {
            return Err(Usage::new(format!(
                "-X {assignment}: write -X NAME=VALUE, or -X list to see the names"
            )));
        };
        let place = Place::CommandLine(name.trim().to_owned());
        let text = match text.strip_prefix('@') {
            Some(path) => {
                let text = read_file(Path::new(path)).map_err(|why| Usage::new(format!("{place}: {why}")))?;
                text.strip_suffix('\n')
                    .map_or(text.as_str(), |t| t.strip_suffix('\r').unwrap_or(t))
                    .to_owned()
            }
            None => text.to_owned(),
        };
        if let Some(canonical) = self.check_name(name.trim(), &place)? {
            self.command_line.insert(canonical, Property { text, place });
        }
        Ok(())
    }

    fn add_file(&mut self, path: &Path) -> Result<(), Usage> {
        let file = path.display().to_string();
        let text = read_file(path).map_err(|why| Usage::new(format!("--config: {why}")))?;
        let kcat = path.extension().is_some_and(|extension| extension == "conf");
        let entries = if kcat { properties::kcat(&text) } else { properties::java(&text) };
        let entries = entries.map_err(|error| Usage::new(format!("{file} {error}")))?;
        for entry in entries {
            let place = Place::File { file: file.clone(), line: entry.line, name: entry.name.clone() };
            if let Some(canonical) = self.check_name(&entry.name, &place)? {
                self.file.insert(canonical, Property { text: entry.value, place });
            }
        }
        Ok(())
    }

    /// The name under which keylane uses a property; `None` (and a warning) where it has no use for it.
    fn check_name(&mut self, name: &str, place: &Place) -> Result<Option<&'static str>, Usage> {
        match known::look_up(name) {
            known::Found::Used(canonical) => Ok(Some(canonical)),
            known::Found::Unused(why) => {
                self.warnings.push(format!("{place}: {why}"));
                Ok(None)
            }
            known::Found::Unknown(near) if near.is_empty() => {
                Err(Usage::new(format!("{place}: unknown property; -X list shows those in use")))
            }
            known::Found::Unknown(near) => {
                Err(Usage::new(format!("{place}: unknown property; did you mean {}?", near.join(" or "))))
            }
        }
    }

    fn note_variable(&mut self, name: &str, value: &str) {
        if self.from_environment.iter().all(|seen| seen.name != name) {
            self.from_environment.push(FromEnvironment { name: name.to_owned(), value: value.to_owned() });
        }
    }

    /// The value from the highest layer that has it.
    pub(super) fn pick<T: PartialEq>(
        &mut self,
        flag: Option<T>,
        setting: &Setting<T>,
    ) -> Result<Option<T>, Usage> {
        let assigned = match setting.property {
            Some((name, parse)) => {
                self.command_line.get(name).map(|property| parsed(property, parse)).transpose()?
            }
            None => None,
        };
        if let (Some(flag), Some(assigned)) = (&flag, &assigned) {
            require!(
                flag == assigned,
                "{} and -X {} say different things: give one of them",
                setting.flag,
                setting.property.map_or("", |(name, _)| name)
            );
        }
        if let Some(value) = flag.or(assigned) {
            return Ok(Some(value));
        }
        if let Some((name, parse)) = setting.variable
            && let Some(text) = self.environment.value(name)?
        {
            let value = parse(text).map_err(|why| {
                Usage::new(format!("{name}={text} (from the environment, for {}): {why}", setting.flag))
            })?;
            self.note_variable(name, text);
            return Ok(Some(value));
        }
        match setting.property {
            Some((name, parse)) => self.pick_lower(name, parse),
            None => Ok(None),
        }
    }

    /// The value of a property that has no flag.
    pub(super) fn property<T: PartialEq>(
        &mut self,
        name: &'static str,
        parse: Parse<T>,
    ) -> Result<Option<T>, Usage> {
        self.pick(None, &Setting { flag: name, variable: None, property: Some((name, parse)) })
    }

    /// Environment and file.
    fn pick_lower<T>(&mut self, name: &'static str, parse: Parse<T>) -> Result<Option<T>, Usage> {
        for alias in known::names(name) {
            let variable = known::variable(alias);
            if let Some(text) = self.environment.value(&variable)? {
                let property = Property { text: text.to_owned(), place: Place::Variable(variable.clone()) };
                let value = parsed(&property, parse)?;
                self.note_variable(&variable, &property.text);
                return Ok(Some(value));
            }
        }
        self.file.get(name).map(|property| parsed(property, parse)).transpose()
    }
}

fn parsed<T>(property: &Property, parse: Parse<T>) -> Result<T, Usage> {
    parse(property.text.trim()).map_err(|why| Usage::new(format!("{}: {why}", property.place)))
}

fn read_file(path: &Path) -> Result<String, String> {
    let name = path.display();
    let file = File::open(path).map_err(|error| format!("cannot read {name}: {error}"))?;
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    match read.map_err(|error| format!("cannot read {name}: {error}"))? as u64 {
        0..=FILE_BYTES_MAX => Ok(text),
        _ => Err(format!("{name} is larger than {FILE_BYTES_MAX} bytes")),
    }
}
