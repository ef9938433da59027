//! `report`: what a recorded profile shows.

use std::{path::Path, process::ExitCode};

use profiler_profile::{
    import::Imported,
    report::{self, Options, table},
};

use super::{answer, columns, recorded, stored};
use crate::{cli::ReportArgs, error::Result, invoker::Invoker, viewer::Viewer, windows::folder};

/// How many rows a table has.
const ROWS: usize = 40;

/// What is read by default.
const FILE: &str = "profile.pb.gz";

/// Prints the report.
pub(super) fn run(args: &ReportArgs) -> Result<ExitCode> {
    if args.open {
        let page = match stored(args)? {
            Some(profile) => recorded::page_of(Path::new("the windows"), &profile)?,
            None => recorded::page(file(args))?,
        };
        Viewer::prepare(Invoker::find().as_ref())?.show(&page)?;
        return Ok(ExitCode::SUCCESS);
    }
    let profile = match stored(args)? {
        Some(profile) => profile,
        None => recorded::read(file(args))?,
    };
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

fn file(args: &ReportArgs) -> &Path {
    args.file.as_deref().unwrap_or(Path::new(FILE))
}

/// What the agent has sampled between two times, if these are asked for.
fn stored(args: &ReportArgs) -> Result<Option<Imported>> {
    if args.from.is_none() && args.to.is_none() {
        return Ok(None);
    }
    let folder = args.file.as_deref().unwrap_or(Path::new(folder::DEFAULT));
    stored::read(folder, args.from, args.to).map(Some)
}
