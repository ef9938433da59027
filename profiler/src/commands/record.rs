//! `record`: a profile in files that viewers open.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use profiler_profile::export::format::{FORMATS, Format, Processes};

use super::{file_of, refuse_terminal, replacement::Replacement, session::Session};
use crate::{
    cli::{RecordArgs, SamplingArgs},
    error::{Error, Result},
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
    let outputs = resolve(outputs, format)?;
    let invoker = Invoker::find();
    // Before limits are raised, which are not for the command.
    let launch = if command.is_empty() {
        None
    } else {
        Some(Launch::prepare(&command, invoker.as_ref().filter(|_| !as_root))?)
    };
    let mut sampling = sampling;
    sampling.metadata |= outputs.iter().any(|it| it.format.processes == Processes::Always);
    if let Some(launch) = &launch {
        sampling = SamplingArgs { pids: vec![launch.pid()], children: true, ..sampling };
    }
    let mut reports: Vec<Report> = outputs.iter().map(|it| Report::Samples(it.format)).collect();
    reports.push(Report::Top(HOTTEST));
    let mut session = Session::prepare(sampling, reports, verbose)?;

    let (mut sinks, mut replacements) = (Vec::new(), Vec::new());
    for output in &outputs {
        let (sink, replacement) = output.open(invoker.as_ref())?;
        sinks.push(sink);
        replacements.extend(replacement);
    }
    sinks.push(Sink::stderr()?);
    session.config.shows_status = true;
    session.config.keeps_files_of_others = replacements.iter().any(Replacement::needs_override);

    let mut launch = launch;
    let written = session
        .run(sinks, launch.as_mut(), || replacements.into_iter().try_for_each(Replacement::commit));
    if written.is_ok() {
        for Output { format, path } in &outputs {
            if let Some(path) = path {
                let path = path.display();
                stderr::say(&format!("wrote {path}, for {}", format.viewers));
            }
        }
    }
    // The command may go on, and from here on signals end us, too.
    Signals::end_again();
    let code = launch.map_or(Ok(0), Launch::wait);
    written?;
    code.map(ExitCode::from)
}

/// A file to write, and how.
struct Output {
    format: &'static Format,
    /// Standard output if `None`.
    path: Option<PathBuf>,
}

impl Output {
    fn open(&self, owner: Option<&Invoker>) -> Result<(Sink, Option<Replacement>)> {
        refuse_terminal(self.format, self.path.as_deref())?;
        match &self.path {
            Some(path) if !is_special(path) => {
                let (replacement, file) = Replacement::begin(path, owner)?;
                Ok((Sink::of(file, path), Some(replacement)))
            }
            path => Ok((Sink::open(path.as_deref())?, None)),
        }
    }
}

/// Whether there is something to write to which must not be replaced, as `/dev/null`.
fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|it| !it.is_file() && !it.is_dir())
}

/// What is written where.
fn resolve(paths: Vec<PathBuf>, format: Option<&'static Format>) -> Result<Vec<Output>> {
    let paths = if paths.is_empty() { vec![PathBuf::from(DEFAULT_FILE)] } else { paths };
    let mut outputs: Vec<Output> = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = file_of(path);
        let format =
            format.or_else(|| Format::of_file(&name)).ok_or_else(|| unknown(path.as_deref()))?;
        if outputs.iter().any(|it| it.path == path) {
            let shown = path.as_deref().unwrap_or(Path::new("-")).display();
            return Err(Error::Usage(format!("-o {shown}: this file was given twice")));
        }
        outputs.push(Output { format, path });
    }
    Ok(outputs)
}

/// No format is known for a file.
fn unknown(path: Option<&Path>) -> Error {
    let Some(path) = path else {
        return Error::Usage("-o -: standard output has no extension: add --format".into());
    };
    let extensions = FORMATS.iter().filter_map(|it| it.extensions.first());
    let known: Vec<String> = extensions.map(|it| format!(".{it}")).collect();
    Error::Usage(format!(
        "-o {}: no format has this extension; there are {}; --format takes any name",
        path.display(),
        known.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(paths: &[&str], format: Option<&str>) -> Result<Vec<&'static str>> {
        let paths = paths.iter().map(PathBuf::from).collect();
        let format = format.and_then(Format::find);
        Ok(resolve(paths, format)?.iter().map(|it| it.format.name).collect())
    }

    #[test]
    fn the_extension_says_the_format() {
        assert_eq!(names(&["a.folded", "b.jsonl"], None).unwrap(), ["folded", "json"]);
        assert_eq!(names(&["x/a.b.compact.jsonl"], None).unwrap(), ["json-compact"]);
        assert_eq!(names(&["-", "b.png"], Some("text")).unwrap(), ["text", "text"]);
    }

    #[test]
    fn what_has_no_format_is_refused_with_those_there_are() {
        for (paths, part) in [
            (&["a.png"][..], ".folded"),
            (&["folded"], ".folded"),
            (&["-"], "--format"),
            (&["a.folded", "a.folded"], "twice"),
        ] {
            let Err(Error::Usage(message)) = names(paths, None) else { panic!("{paths:?}") };
            assert!(message.contains(part), "{message}");
        }
    }
}
