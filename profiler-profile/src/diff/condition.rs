//! A condition on a change, for scripts: `total(parse) > +5%`.

use std::{fmt, str::FromStr};

use regex::Regex;

use super::Diff;

/// What must not be, such as that functions take more than they did.
#[derive(Clone, Debug)]
pub struct Condition {
    text: String,
    pattern: Regex,
    own: bool,
    is_more: bool,
    percent: f64,
}

impl FromStr for Condition {
    type Err = String;

    /// `self(REGEX)` or `total(REGEX)`, `>` or `<`, and a change in percent.
    ///
    /// ```
    /// use profiler_profile::diff::condition::Condition;
    /// assert!("total(^parse$) > +5%".parse::<Condition>().is_ok());
    /// assert!("total(parse) > 5".parse::<Condition>().is_err());
    /// ```
    fn from_str(text: &str) -> Result<Self, String> {
        let form =
            || "not of the form `total(REGEX) > +5%`; self(…) and < are the others".to_owned();
        let text = text.trim();
        let (what, rest) = text.split_once('(').ok_or_else(form)?;
        let own = match what.trim() {
            "self" => true,
            "total" => false,
            _ => return Err(form()),
        };
        // The pattern may have parentheses of its own.
        let (pattern, rest) = rest.rsplit_once(')').ok_or_else(form)?;
        let rest = rest.trim();
        let (is_more, number) = match (rest.strip_prefix('>'), rest.strip_prefix('<')) {
            (Some(number), _) => (true, number),
            (_, Some(number)) => (false, number),
            _ => return Err(form()),
        };
        let number = number.trim().strip_suffix('%').ok_or_else(form)?;
        let percent = number.trim().parse::<f64>().ok().filter(|it| it.is_finite());
        let percent = percent.ok_or_else(|| format!("`{number}` is no percentage"))?;
        let pattern = Regex::new(pattern).map_err(|error| error.to_string())?;
        Ok(Self { text: text.to_owned(), pattern, own, is_more, percent })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Condition {
    /// Whether it holds, and not only by chance: the whole of the margin is beyond the bound.
    #[must_use]
    pub fn holds(&self, diff: &Diff<'_>) -> bool {
        let change = diff.matching(&self.pattern, self.own);
        let bound = change.before * self.percent / 100.0;
        if self.is_more {
            change.delta() - change.margin() > bound
        } else {
            change.delta() + change.margin() < bound
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        diff::Measure,
        import::{Limits, folded},
    };

    #[test]
    fn it_holds_where_all_of_the_margin_is_beyond_the_bound() {
        let read = |text: &str| folded::read(text.as_bytes(), &Limits::default()).unwrap();
        let before = read("a;main;parse 10000\na;main;f(x) 400\na;gone 1000\n");
        let after = read("a;main;parse 12000\na;main;f(x) 430\n");
        let diff = Diff::new(&before, &after, Measure::Absolute);
        for (condition, holds) in [
            ("total(^parse$) > +5%", true),
            ("total(^parse$) > 5%", true),
            ("self(parse) > +18%", false),
            ("self(parse) < +5%", false),
            ("self(f\\(x\\)) > +5%", false),
            ("self(gone) < -50%", true),
            ("total(nothing) > +0%", false),
        ] {
            let parsed: Condition = condition.parse().unwrap();
            assert_eq!((parsed.holds(&diff), parsed.to_string().as_str()), (holds, condition));
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        let refused = [
            "",
            "parse > 5%",
            "sum(a) > 5%",
            "self(a) = 5%",
            "self(a) > x%",
            "self(a > 5%",
            "self([) > 5%",
        ];
        for condition in refused {
            assert!(condition.parse::<Condition>().is_err(), "{condition}");
        }
    }
}
