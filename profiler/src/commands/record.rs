//! `record`: a profile in files that viewers open.

use std::{
    fs::File,
    io::{Read as _, Seek as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use profiler_profile::{
    export::{format::Processes, html},
    report::table,
};

use super::{command, destination::resolve, replacement::Replacement, session::Session};
use crate::{
    cli::{CommandArgs, RecordArgs},
    error::{Error, Result},
    hardening::capabilities::FILES_OF_OTHERS,
    invoker::Invoker,
    launch::Launch,
    output::{Sink, config::Report},
    shutdown::Signals,
    stderr,
    viewer::Viewer,
};

/// Where the profile goes by default.
const DEFAULT_FILE: &str = "profile.pb.gz";
/// How many of the hottest functions the end shows.
const HOTTEST: usize = 5;

/// Samples until the run ends, writes the files, and gives the exit code of the command, if there is one.
pub(super) fn run(args: RecordArgs, verbose: u8) -> Result<ExitCode> {
    let RecordArgs { sampling, outputs, format, open, command } = args;
    let CommandArgs { as_root, command: typed } = command;
    let outputs = if outputs.is_empty() { vec![PathBuf::from(DEFAULT_FILE)] } else { outputs };
    let outputs = resolve(outputs, format, "-o ")?;
    if !typed.is_empty() && outputs.iter().any(|it| it.path.is_none()) {
        let why = "the command writes to standard output, too: give a file";
        return Err(Error::Usage(format!("-o -: {why}")));
    }
    if !typed.is_empty() {
        command::check(&sampling)?;
    }
    let invoker = Invoker::find();
    // Before limits are raised, which are not for the command.
    let launch = if typed.is_empty() {
        None
    } else {
        Some(Launch::prepare(&typed, invoker.as_ref().filter(|_| !as_root))?)
    };
    let viewer = if open { Some(Viewer::prepare(invoker.as_ref())?) } else { None };
    let mut sampling = command::followed(sampling, launch.as_ref());
    sampling.metadata |= open || outputs.iter().any(|it| it.format.processes == Processes::Always);
    let mut reports: Vec<Report> = outputs.iter().map(|it| Report::Samples(it.format)).collect();
    reports.extend(open.then_some(Report::Samples(&html::FORMAT)));
    let hottest = table::Options { rows: Some(HOTTEST), ..table::Options::default() };
    reports.extend((!stderr::is_quiet()).then_some(Report::Top(hottest)));
    let mut session = Session::prepare(&sampling, reports, verbose)?;

    let (mut sinks, mut replacements) = (Vec::new(), Vec::new());
    for output in &outputs {
        let (sink, replacement) = output.open(invoker.as_ref())?;
        sinks.push(sink);
        replacements.extend(replacement.map(|it| (output.path.clone(), it)));
    }
    let page = match viewer {
        Some(viewer) => Some((viewer, in_memory(&mut sinks, "the page")?)),
        None => None,
    };
    // Kept until the end, so that a standard error that can't be written costs nothing else.
    let hottest = if stderr::is_quiet() {
        None
    } else {
        Some(in_memory(&mut sinks, "the hottest functions")?)
    };
    // A command has the terminal for itself.
    session.config.shows_status = launch.is_none() && !stderr::is_quiet();
    if replacements.iter().any(|(_, it)| it.needs_rights()) {
        session.config.set_aside |= FILES_OF_OTHERS;
    }
    if launch.is_some() {
        command::settle(&mut session.config, invoker.is_some() && !as_root);
    }

    let (mut launch, mut unwritten) = (launch, None);
    let written = session.run(sinks, launch.as_mut(), |ledger, launch| {
        // Nothing was sampled, and what a file holds is worth more.
        if launch.is_some_and(Launch::is_cancelled) {
            return Ok(());
        }
        if let Some(hottest) = hottest {
            stderr::write(&String::from_utf8_lossy(&bytes_of(hottest)));
        }
        let is_whole = |path: &Option<PathBuf>| is_whole(path.as_deref(), &ledger.unwritten);
        let whole = replacements.into_iter().filter(|(path, _)| is_whole(path));
        whole.map(|(_, it)| it).try_for_each(Replacement::commit)?;
        unwritten = Some(ledger.unwritten.clone());
        Ok(())
    });
    // Last, where it is seen.
    let is_written = unwritten.is_some();
    for output in unwritten
        .iter()
        .flat_map(|unwritten| outputs.iter().filter(|it| is_whole(it.path.as_deref(), unwritten)))
    {
        output.tell();
    }
    // The command may go on, and from here on signals end us, too.
    let heeded = Signals::end_again();
    let code = launch.map_or(Ok(0), Launch::wait);
    heeded.again();
    let shown = page.filter(|_| is_written).map(|(viewer, page)| viewer.show(&bytes_of(page)));
    written?;
    shown.transpose()?;
    code.map(ExitCode::from)
}

/// Whether an output, which is standard output without a path, is not among those that could not be written.
fn is_whole(path: Option<&Path>, unwritten: &[PathBuf]) -> bool {
    path.is_none_or(|path| !unwritten.iter().any(|it| it == path))
}

/// A file without a name, which is one more to write to.
fn in_memory(sinks: &mut Vec<Sink>, what: &str) -> Result<File> {
    let made = rustix::fs::memfd_create("profile", rustix::fs::MemfdFlags::CLOEXEC);
    let file = made.map(File::from).map_err(|error| Error::system("memfd_create", error))?;
    let written =
        file.try_clone().map_err(|error| Error::system("cannot duplicate a file", error))?;
    sinks.push(Sink::of(written, Path::new(what)));
    Ok(file)
}

/// What was written to it.
fn bytes_of(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    // It is in memory.
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    bytes
}
