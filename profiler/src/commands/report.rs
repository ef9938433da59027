//! `report`: what a recorded profile shows.

use std::{
    io::{IsTerminal as _, stdout},
    process::ExitCode,
};

use profiler_profile::report::{self, Options};
use rustix::termios::tcgetwinsize;

use super::{answer, recorded};
use crate::{
    cli::{By, ReportArgs},
    error::Result,
    invoker::Invoker,
    viewer::Viewer,
};

/// How many rows a table has.
const ROWS: usize = 40;

/// Prints the report.
pub(super) fn run(args: &ReportArgs) -> Result<ExitCode> {
    if args.open {
        let page = recorded::page(&args.file)?;
        Viewer::prepare(Invoker::find().as_ref())?.show(&page)?;
        return Ok(ExitCode::SUCCESS);
    }
    let profile = recorded::read(&args.file)?;
    let columns = if stdout().is_terminal() { tcgetwinsize(stdout()).ok() } else { None };
    let options = Options {
        by: match args.by {
            By::Function => report::By::Function,
            By::Module => report::By::Module,
            By::Process => report::By::Process,
        },
        tree: args.tree,
        rows: args.top.or((!args.tree).then_some(ROWS)).filter(|rows| *rows > 0),
        filter: args.filter.filter(),
        columns: columns.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0),
    };
    Ok(answer(&report::text(&profile, &options)))
}
