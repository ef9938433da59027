//! The text that Prometheus reads.
//!
//! Format: version 0.0.4, <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>.

use std::fmt::{Display, Write as _};

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It never goes down while the run goes on.
    Counter,
    Gauge,
}

/// Families of values, one after another.
#[derive(Debug, Default)]
pub(super) struct Exposition(String);

impl Exposition {
    /// Begins a family, whose samples follow.
    pub(super) fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to memory does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { name, text: &mut self.0 }
    }

    pub(super) fn finish(self) -> String {
        self.0
    }
}

/// The samples of one name.
pub(super) struct Family<'a> {
    name: &'static str,
    text: &'a mut String,
}

impl Family<'_> {
    /// A sample with these labels.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.text.push_str(self.name);
        for (at, (label, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{value}\"", if at == 0 { '{' } else { ',' });
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_label_holds_stays_within_it() {
        let mut text = Exposition::default();
        let mut family = text.family("a_total", Kind::Counter, "one\\\ntwo");
        family.sample(&[("b", "x\"} 1\ny\\"), ("c", "")], 5).sample(&[], 0.5);
        let expected = "# HELP a_total one\\\\\\ntwo\n# TYPE a_total counter\n\
                        a_total{b=\"x\\\"} 1\\ny\\\\\",c=\"\"} 5\na_total 0.5\n";
        assert_eq!(text.finish(), expected);
    }
}
