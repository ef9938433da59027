//! `report`: what a recorded profile shows.

use std::{
    fs::File,
    io::{IsTerminal as _, Read, stdin, stdout},
    path::Path,
    process::ExitCode,
};

use profiler_profile::{
    import::{Imported, Limits, folded, pprof},
    report::{self, Options},
};
use rustix::termios::tcgetwinsize;

use super::answer;
use crate::{
    cli::{By, ReportArgs},
    error::{Error, Result},
};

/// What gzip begins with: RFC 1952.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// Prints the report.
pub(super) fn run(args: &ReportArgs) -> Result<ExitCode> {
    let profile = read(&args.file)?;
    let columns = if stdout().is_terminal() { tcgetwinsize(stdout()).ok() } else { None };
    let options = Options {
        by: match args.by {
            By::Function => report::By::Function,
            By::Module => report::By::Module,
            By::Process => report::By::Process,
        },
        tree: args.tree,
        rows: (args.top > 0).then_some(args.top),
        focus: args.focus.clone(),
        ignore: args.ignore.clone(),
        columns: columns.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0),
    };
    Ok(answer(&report::text(&profile, &options)))
}

/// Reads a profile, whose format its first bytes tell.
fn read(path: &Path) -> Result<Imported> {
    let failed = |why: &dyn std::fmt::Display, next: &str| {
        let shown = if path.as_os_str() == "-" { Path::new("standard input") } else { path };
        Error::system_with(format!("cannot read {}", shown.display()), why, next)
    };
    let limits = Limits::default();
    let bytes = bytes_of(path, limits.bytes).map_err(|error| {
        let is_missing = error.kind() == std::io::ErrorKind::NotFound;
        let next =
            if is_missing { "`sudo profiler record -d 10` writes profile.pb.gz" } else { "" };
        failed(&error, next)
    })?;
    // Text has no zeros, and a profile without gzip has some soon: its first fields are numbers.
    let is_text =
        !bytes.starts_with(GZIP) && std::str::from_utf8(&bytes).is_ok_and(|it| !it.contains('\0'));
    let read = if is_text { folded::read(&bytes, &limits) } else { pprof::read(&bytes, &limits) };
    read.map_err(|error| failed(&error, "report reads pprof (.pb.gz) and folded stacks (.folded)"))
}

/// A file to its end, or one byte more than the limit.
fn bytes_of(path: &Path, limit: usize) -> std::io::Result<Vec<u8>> {
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    if path.as_os_str() == "-" {
        stdin().take(most).read_to_end(&mut bytes)?;
    } else {
        File::open(path)?.take(most).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
