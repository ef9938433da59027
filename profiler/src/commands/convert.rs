//! `convert`: a recorded profile in another format.

use std::{io, path::Path, process::ExitCode};

use jiff::tz::TimeZone;
use profiler_profile::{
    export::{
        format::{Export, Format, Options, Processes},
        output::Output,
        root::Root,
    },
    import::{Counted, Filter, Imported},
};

use super::{destination::resolve, recorded, replacement::Replacement};
use crate::{
    cli::ConvertArgs,
    error::{Error, Result},
    invoker::Invoker,
    limits::budget::CacheBudget,
    output::PRODUCER,
    stderr,
};

/// Reads the one file and writes the other.
pub(super) fn run(args: ConvertArgs) -> Result<ExitCode> {
    let ConvertArgs { input, output, format, filter } = args;
    let destination = resolve(vec![output], format, "")?.swap_remove(0);
    let format = destination.format;
    if matches!(format.export, Export::Timeline(_)) {
        let why = "it shows when each sample was taken, which a recorded profile does not say: record it, or give svg, \
                   html or speedscope";
        return Err(Error::Usage(format!("--format {}: {why}", format.name)));
    }
    let imported = recorded::read(&input)?;
    let counted = count(&input, &imported, &filter.filter())?;
    if format.processes != Processes::Never && !counted.left_out.is_empty() {
        let labels: Vec<&str> = counted.left_out.iter().map(|it| &**it).collect();
        stderr::say(&format!("labels that have no place in the file: {}", labels.join(", ")));
    }
    let (sink, replacement) = destination.open(Invoker::find().as_ref())?;
    let path = sink.path().to_owned();
    write_counted(&counted, format.export, sink).map_err(|error| Error::write(&path, &error))?;
    replacement.map_or(Ok(()), Replacement::commit)?;
    destination.tell();
    Ok(ExitCode::SUCCESS)
}

/// Writes what was read from this path in a format that needs no times.
pub(super) fn write(
    from: &Path,
    imported: &Imported,
    filter: &Filter,
    format: &Format,
    to: impl io::Write,
) -> Result<()> {
    let counted = count(from, imported, filter)?;
    write_counted(&counted, format.export, to).map_err(|error| Error::write(from, &error))
}

fn count(from: &Path, imported: &Imported, filter: &Filter) -> Result<Counted> {
    Counted::of(imported, filter, PRODUCER, TimeZone::system())
        .map_err(|error| Error::system(format!("cannot convert {}", from.display()), error))
}

fn write_counted(counted: &Counted, export: Export, to: impl io::Write) -> io::Result<()> {
    let Counted { profile, about, .. } = counted;
    let options = Options {
        kernel_stacks: profile.entries().any(|it| !it.kernel.is_empty()),
        user_stacks: true,
        names_events: about.sources.len() > 1,
        begun_ns: 0,
        producer: about.producer,
        real_time_ahead_ns: about.begun_ns.unwrap_or_default(),
        zone: about.zone.clone(),
        rendered_bytes: CacheBudget::within(None).rendered,
        timeline_bytes: 0,
        root: Root::default(),
    };
    let mut output = Output::new(export, options, to);
    if !output.needs_profile() {
        output.add(counted.rows())?;
    }
    output.finish(profile, about)
}
