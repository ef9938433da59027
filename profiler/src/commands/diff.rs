//! `diff`: what has changed from one recorded profile to another.

use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use jiff::tz::TimeZone;
use profiler_profile::{
    diff::{Diff, Measure, text},
    export::{change::Comparison, folded, format::Format, html, svg},
    import::{self, Counted, Filter, Imported},
};

use super::{answer, destination::Destination, recorded, replacement::Replacement};
use crate::{
    cli::DiffArgs,
    error::{Error, Result},
    invoker::Invoker,
    output::PRODUCER,
    stderr,
};

/// Runs whose lengths differ by more are told of.
const LENGTHS_DIFFER: f64 = 0.05;

/// Prints the comparison, and checks the conditions.
pub(super) fn run(args: &DiffArgs) -> Result<ExitCode> {
    let destination = args.output.as_deref().map(destination).transpose()?;
    let (before, after) = (recorded::read(&args.before)?, recorded::read(&args.after)?);
    check_units(&before, &after)?;
    if !args.normalize {
        tell_lengths(&before, &after);
    }
    let measure = if args.normalize { Measure::Share } else { Measure::Absolute };
    let diff = Diff::new(&before, &after, measure);
    if let Some(destination) = destination {
        write(&destination, &before, &after, measure)?;
    }
    let rows = (args.top > 0).then_some(args.top);
    let options = text::Options { measure, rows, noise: args.noise };
    let code = answer(&text::table(&diff, &before, options));
    match args.fail_if.iter().find(|it| it.holds(&diff)) {
        Some(condition) => Err(Error::Condition(condition.to_string())),
        None => Ok(code),
    }
}

/// Where a picture of the changes goes, and as what.
fn destination(path: &Path) -> Result<Destination> {
    const FORMATS: [&Format; 3] = [&svg::FORMAT, &html::FORMAT, &folded::FORMAT];
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match Format::of_file(&name).filter(|it| FORMATS.contains(it)) {
        Some(format) => Ok(Destination { format, path: Some(path.to_owned()) }),
        None => Err(Error::Usage(format!(
            "-o {}: changes are written to .svg, .html and .folded, by the name of the file",
            path.display()
        ))),
    }
}

/// Writes the changes, and says where they are.
fn write(
    destination: &Destination,
    before: &Imported,
    after: &Imported,
    measure: Measure,
) -> Result<()> {
    let is_folded = destination.format == &folded::FORMAT;
    let counted = |it: &Imported| {
        Counted::of(it, &Filter::default(), PRODUCER, TimeZone::system())
            .map_err(|error: import::Error| Error::system("cannot draw the changes", error))
    };
    let comparison = if is_folded {
        None
    } else {
        Some(Comparison::new(&counted(before)?, &counted(after)?, measure))
    };
    let (mut sink, replacement) = destination.open(Invoker::find().as_ref())?;
    let path = sink.path().to_owned();
    let written = match comparison {
        None => sink.write_all(text::folded(before, after).as_bytes()),
        Some(it) if destination.format == &svg::FORMAT => it.write_svg(&mut sink),
        Some(it) => it.write_html(&mut sink),
    };
    let written: io::Result<()> = written.and_then(|()| sink.flush());
    written.map_err(|error| Error::write(&path, &error))?;
    replacement.map_or(Ok(()), Replacement::commit)?;
    destination.tell();
    Ok(())
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
