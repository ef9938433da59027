//! `record`: a profile in files that viewers open.

use std::{
    fs::File,
    io::{Read as _, Seek as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use profiler_profile::{export::format::Processes, report::table};

use super::{destination::resolve, replacement::Replacement, session::Session};
use crate::{
    cli::{RecordArgs, SamplingArgs},
    error::{Error, Result},
    hardening::capabilities::{FILES_OF_OTHERS, SIGNALS_TO_OTHERS},
    invoker::Invoker,
    launch::Launch,
    output::{Sink, config::Report},
    shutdown::Signals,
    stderr,
};

/// Where the profile goes by default.
const DEFAULT_FILE: &str = "profile.pb.gz";
/// How many of the hottest functions the end shows.
const HOTTEST: usize = 5;

/// Samples until the run ends, writes the files, and gives the exit code of the command, if there is one.
pub(super) fn run(args: RecordArgs, verbose: u8) -> Result<ExitCode> {
    let RecordArgs { sampling, outputs, format, as_root, command } = args;
    let outputs = if outputs.is_empty() { vec![PathBuf::from(DEFAULT_FILE)] } else { outputs };
    let outputs = resolve(outputs, format, "-o ")?;
    if !command.is_empty() && outputs.iter().any(|it| it.path.is_none()) {
        let why = "the command writes to standard output, too: give a file";
        return Err(Error::Usage(format!("-o -: {why}")));
    }
    let invoker = Invoker::find();
    // Before limits are raised, which are not for the command.
    let launch = if command.is_empty() {
        None
    } else {
        Some(Launch::prepare(&command, invoker.as_ref().filter(|_| !as_root))?)
    };
    let mut sampling = sampling;
    sampling.metadata |= outputs.iter().any(|it| it.format.processes == Processes::Always);
    if let Some(launch) = launch.as_ref().filter(|_| !sampling.all_cpus) {
        sampling = SamplingArgs { pids: vec![launch.pid()], children: true, ..sampling };
    }
    let mut reports: Vec<Report> = outputs.iter().map(|it| Report::Samples(it.format)).collect();
    let hottest = table::Options { rows: Some(HOTTEST), ..table::Options::default() };
    reports.push(Report::Top(hottest));
    let mut session = Session::prepare(sampling, reports, verbose)?;

    let (mut sinks, mut replacements) = (Vec::new(), Vec::new());
    for output in &outputs {
        let (sink, replacement) = output.open(invoker.as_ref())?;
        sinks.push(sink);
        replacements.extend(replacement);
    }
    // Kept until the end, so that a standard error that can't be written costs nothing else.
    let hottest = in_memory()?;
    let shown =
        hottest.try_clone().map_err(|error| Error::system("cannot duplicate a file", error))?;
    sinks.push(Sink::of(shown, Path::new("the hottest functions")));
    // A command has the terminal for itself.
    session.config.shows_status = launch.is_none();
    if replacements.iter().any(Replacement::needs_rights) {
        session.config.set_aside |= FILES_OF_OTHERS;
    }
    if launch.is_some() && invoker.is_some() && !as_root {
        session.config.set_aside |= SIGNALS_TO_OTHERS;
    }

    let (mut launch, mut is_written) = (launch, false);
    let written = session.run(sinks, launch.as_mut(), |launch| {
        // Nothing was sampled, and what a file holds is worth more.
        if launch.is_some_and(Launch::is_cancelled) {
            return Ok(());
        }
        stderr::write(&text_of(hottest));
        replacements.into_iter().try_for_each(Replacement::commit)?;
        is_written = true;
        Ok(())
    });
    // Last, where it is seen.
    for output in outputs.iter().filter(|_| is_written) {
        output.tell();
    }
    // The command may go on, and from here on signals end us, too.
    Signals::end_again();
    let code = launch.map_or(Ok(0), Launch::wait);
    written?;
    code.map(ExitCode::from)
}

/// A file without a name.
fn in_memory() -> Result<File> {
    let made = rustix::fs::memfd_create("profile", rustix::fs::MemfdFlags::CLOEXEC);
    made.map(File::from).map_err(|error| Error::system("memfd_create", error))
}

/// What was written to it.
fn text_of(mut file: File) -> String {
    let mut text = Vec::new();
    // It is in memory.
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}
