//! `report`: what a recorded profile shows.

use std::process::ExitCode;

use profiler_profile::report::{self, Options, table};

use super::{answer, columns, recorded};
use crate::{cli::ReportArgs, error::Result, invoker::Invoker, viewer::Viewer};

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
    let options = Options {
        table: table::Options {
            by: args.by.into(),
            rows: args.top.or((!args.tree).then_some(ROWS)).filter(|rows| *rows > 0),
            columns: columns(),
        },
        tree: args.tree,
        filter: args.filter.filter(),
    };
    Ok(answer(&report::text(&profile, &options)))
}
