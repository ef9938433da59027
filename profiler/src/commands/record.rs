//! `record`: a profile in files that viewers open.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use profiler_profile::export::{
    format::{FORMATS, Format, Processes},
    html,
};

use super::{file_of, refuse_terminal, replacement::Replacement, session::Session};
use crate::{
    cli::{RecordArgs, SamplingArgs},
    error::{Error, Result},
    hardening::capabilities::{FILES_OF_OTHERS, SIGNALS_TO_OTHERS},
    invoker::Invoker,
    kernel,
    launch::Launch,
    output::{Sink, config::Report},
    shutdown::Signals,
    stderr,
    units::ProcessSpec,
    viewer::Viewer,
};

/// Where the profile goes by default.
const DEFAULT_FILE: &str = "profile.pb.gz";
/// How many of the hottest functions the end shows.
const HOTTEST: usize = 5;

/// Samples until the run ends, writes the files, and gives the exit code of the command, if there is one.
pub(super) fn run(args: RecordArgs, verbose: u8) -> Result<ExitCode> {
    let RecordArgs { sampling, outputs, format, open, as_root, command } = args;
    let outputs = resolve(outputs, format)?;
    if !command.is_empty() && outputs.iter().any(|it| it.path.is_none()) {
        let why = "the command writes to standard output, too: give a file";
        return Err(Error::Usage(format!("-o -: {why}")));
    }
    if !command.is_empty() {
        check_command(sampling.all_cpus, kernel::has_proc(), kernel::in_initial_pid_namespace())?;
    }
    let invoker = Invoker::find();
    // Before limits are raised, which are not for the command.
    let launch = if command.is_empty() {
        None
    } else {
        Some(Launch::prepare(&command, invoker.as_ref().filter(|_| !as_root))?)
    };
    let viewer = if open { Some(Viewer::prepare(invoker.as_ref())?) } else { None };
    let mut sampling = sampling;
    sampling.metadata |= open || outputs.iter().any(|it| it.format.processes == Processes::Always);
    if let Some(launch) = &launch {
        let pids =
            if sampling.all_cpus { Vec::new() } else { vec![ProcessSpec::Pid(launch.pid())] };
        sampling = SamplingArgs { children: !sampling.all_cpus, pids, ..sampling };
    }
    let mut reports: Vec<Report> = outputs.iter().map(|it| Report::Samples(it.format)).collect();
    reports.extend(open.then_some(Report::Samples(&html::FORMAT)));
    reports.extend((!stderr::is_quiet()).then_some(Report::Top(HOTTEST)));
    let mut session = Session::prepare(sampling, reports, verbose)?;

    let (mut sinks, mut replacements) = (Vec::new(), Vec::new());
    for output in &outputs {
        let (sink, replacement) = output.open(invoker.as_ref())?;
        sinks.push(sink);
        replacements.extend(replacement);
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
        if let Some(hottest) = hottest {
            stderr::write(&String::from_utf8_lossy(&bytes_of(hottest)));
        }
        replacements.into_iter().try_for_each(Replacement::commit)?;
        is_written = true;
        Ok(())
    });
    // Last, where it is seen.
    for output in outputs.iter().filter(|_| is_written) {
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

/// Refuses a command that can't be started, or that samples could not be told to be of.
fn check_command(all_cpus: bool, has_proc: bool, in_initial_pid_namespace: bool) -> Result<()> {
    let why = if !has_proc {
        "a command can't be started without /proc: mount -t proc proc /proc"
    } else if !all_cpus && !in_initial_pid_namespace {
        "a command can't be told from other processes here: this is not the initial pid namespace; add -a to \
         sample the whole machine while the command runs, or run it on the host"
    } else {
        return Ok(());
    };
    Err(Error::Usage(why.into()))
}

/// A file to write, and how.
struct Output {
    format: &'static Format,
    /// Standard output if `None`.
    path: Option<PathBuf>,
}

impl Output {
    /// Says where the profile is.
    fn tell(&self) {
        if let Some(path) = &self.path {
            let (path, viewers) = (path.display(), self.format.viewers);
            stderr::notice(&format!("wrote {path}, for {viewers}"));
        }
    }

    fn open(&self, owner: Option<&Invoker>) -> Result<(Sink, Option<Replacement>)> {
        refuse_terminal(self.format, self.path.as_deref())?;
        match &self.path {
            Some(path) if !is_special(path) => {
                let (replacement, file) = Replacement::begin(path, owner)?;
                Ok((Sink::of(file, path), Some(replacement)))
            }
            Some(path) => Ok((Sink::of(open_special(path)?, path), None)),
            None => Ok((Sink::open(None)?, None)),
        }
    }
}

/// Whether there is something to write to which must not be replaced: `/dev/null`, a pipe with a name, or what stands
/// for a descriptor, as `/dev/stdout` and `/proc/self/fd/1`.
fn is_special(path: &Path) -> bool {
    let folder = path.parent().and_then(|it| it.canonicalize().ok());
    let is_of_kernel = folder.is_some_and(|it| {
        it == Path::new("/dev") || it.starts_with("/dev/fd") || it.starts_with("/proc")
    });
    path.metadata().is_ok_and(|it| !it.is_dir() && (is_of_kernel || !it.is_file()))
}

/// Opens what is there, and waits for nobody.
fn open_special(path: &Path) -> Result<File> {
    let failed =
        |error: io::Error| Error::system(format!("cannot write {}", path.display()), error);
    let file = File::options()
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ENXIO) => failed(io::Error::other("nobody reads it")),
            _ => failed(error),
        })?;
    // From here on a reader that is slow is waited for.
    let flags = rustix::fs::fcntl_getfl(&file).map_err(|error| failed(error.into()))?;
    let blocking = flags.difference(rustix::fs::OFlags::NONBLOCK);
    rustix::fs::fcntl_setfl(&file, blocking).map_err(|error| failed(error.into()))?;
    Ok(file)
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
    fn a_command_that_can_not_be_followed_is_refused_by_what_it_is() {
        assert!(
            check_command(false, true, true).is_ok() && check_command(true, true, false).is_ok()
        );
        for (all_cpus, has_proc, part) in [(false, true, "-a"), (true, false, "mount -t proc")] {
            let Err(Error::Usage(message)) = check_command(all_cpus, has_proc, false) else {
                panic!("{part}");
            };
            assert!(message.contains("command") && message.contains(part), "{message}");
            assert!(!message.contains("-p"), "{message}");
        }
    }

    #[test]
    fn what_is_the_kernels_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("a.folded"), dir.path().join("b.folded"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("a.folded", &link).unwrap();
        for special in ["/dev/null", "/dev/stdout", "/proc/self/fd/1"] {
            assert!(is_special(Path::new(special)), "{special}");
        }
        for other in [&file, &link, &dir.path().join("none.folded"), dir.path()] {
            assert!(!is_special(other), "{}", other.display());
        }
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
