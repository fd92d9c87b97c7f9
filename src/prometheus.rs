//! What `--listen` serves, in Prometheus' text format, version 0.0.4:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::fmt::{Display, Write};

use crate::listen::Answer;

/// The pages of `--listen`: whether all is well, how or why not, and the metrics.
pub(crate) fn pages(
    path: &str,
    health: impl FnOnce() -> Result<&'static str, String>,
    metrics: impl FnOnce() -> String,
) -> Option<Answer> {
    match path {
        "/" => Some(Answer::text(200, "/healthz\n/metrics\n")),
        "/healthz" => Some(match health() {
            Ok(how) => Answer::text(200, format!("{how}\n")),
            Err(why) => Answer::text(503, format!("{why}\n")),
        }),
        "/metrics" => Some(Answer {
            content_type: "text/plain; version=0.0.4; charset=utf-8",
            ..Answer::text(200, metrics())
        }),
        _ => None,
    }
}

/// Writes metrics one after the other. `kind` is `counter`, `gauge` or `histogram`.
#[derive(Debug, Default)]
pub(crate) struct Page(String);

impl Page {
    /// The page so far.
    pub(crate) fn into_text(self) -> String {
        self.0
    }

    /// Begins a metric; its samples follow.
    pub(crate) fn begin(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A sample of the metric begun last.
    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let open = if at == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{open}{label}=\"{}\"", label_value(text));
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{close} {value}");
    }

    /// A metric with one value.
    pub(crate) fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.begin(name, kind, help);
        self.sample(name, &[], value);
    }

    /// A metric with a value for each of some words, which are the values of one label.
    pub(crate) fn by(&mut self, name: &str, kind: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.begin(name, kind, help);
        for (word, value) in values {
            self.sample(name, &[(label, word)], value);
        }
    }

    /// A histogram: how many lay at or below each bound and above the one before, how many above all, and their sum.
    pub(crate) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        buckets: impl Iterator<Item = (f64, u64)>,
        above: u64,
        sum: f64,
    ) {
        self.begin(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        let mut count = 0;
        for (bound, within) in buckets {
            count += within;
            self.sample(&bucket, &[("le", &bound.to_string())], count);
        }
        count += above;
        self.sample(&bucket, &[("le", "+Inf")], count);
        self.sample(&format!("{name}_sum"), &[], sum);
        self.sample(&format!("{name}_count"), &[], count);
    }
}

fn label_value(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
pub(crate) mod tests {
    /// Each sample stands under its own TYPE line, and each metric is there once.
    pub(crate) fn check(page: &str) {
        let mut types = std::collections::BTreeSet::new();
        let mut current = String::new();
        for line in page.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(rest) => {
                    current = rest.split(' ').next().unwrap().to_owned();
                    assert!(types.insert(current.clone()), "{current} twice");
                }
                None if line.starts_with("# HELP ") => {}
                None => assert!(line.starts_with(&current) && line.split_whitespace().count() == 2, "{line}"),
            }
        }
        assert!(page.ends_with('\n'));
    }
}
