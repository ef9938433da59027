//! `report`: what a recorded profile shows.

use std::process::ExitCode;

use profiler_profile::report::{self, Options, table};

use super::{answer, columns, recorded};
use crate::{cli::ReportArgs, error::Result};

/// How many rows a table has.
const ROWS: usize = 40;

/// Prints the report.
pub(super) fn run(args: &ReportArgs) -> Result<ExitCode> {
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
