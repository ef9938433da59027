//! `diff`: what has changed from one recorded profile to another.

use std::process::ExitCode;

use profiler_profile::{
    diff::{Diff, Measure, text},
    import::Imported,
};

use super::{answer, recorded};
use crate::{
    cli::DiffArgs,
    error::{Error, Result},
    stderr,
};

/// Runs whose lengths differ by more are told of.
const LENGTHS_DIFFER: f64 = 0.05;

/// Prints the comparison, and checks the conditions.
pub(super) fn run(args: &DiffArgs) -> Result<ExitCode> {
    let (before, after) = (recorded::read(&args.before)?, recorded::read(&args.after)?);
    check_units(&before, &after)?;
    if !args.normalize {
        tell_lengths(&before, &after);
    }
    let measure = if args.normalize { Measure::Share } else { Measure::Absolute };
    let diff = Diff::new(&before, &after, measure);
    if let Some(path) = &args.output {
        let written = std::fs::write(path, text::folded(&before, &after));
        written.map_err(|error| Error::write(path, &error))?;
    }
    let rows = (args.top > 0).then_some(args.top);
    let options = text::Options { measure, rows, noise: args.noise };
    let code = answer(&text::table(&diff, &before, options));
    match args.fail_if.iter().find(|it| it.holds(&diff)) {
        Some(condition) => Err(Error::Condition(condition.to_string())),
        None => Ok(code),
    }
}

/// What is compared must be of one kind.
fn check_units(before: &Imported, after: &Imported) -> Result<()> {
    let of = |profile: &Imported| {
        let value_type = profile.value_types.get(profile.default_value);
        value_type.map_or_else(String::new, |it| format!("{} in {}", it.name, it.unit))
    };
    let (before, after) = (of(before), of(after));
    if before == after {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "one profile has {before}, and the other {after}: they can't be compared"
    )))
}

/// Says where the runs differ in length, which changes all values.
fn tell_lengths(before: &Imported, after: &Imported) {
    let seconds = |profile: &Imported| profile.duration_ns.map(|it| it as f64 / 1e9);
    let Some((before, after)) = seconds(before).zip(seconds(after)) else { return };
    if (after - before).abs() > LENGTHS_DIFFER * before.max(after) {
        stderr::notice(&format!(
            "the runs took {before:.1} s and {after:.1} s; --normalize compares shares"
        ));
    }
}
