//! What the events are opened on.

use std::path::PathBuf;

use super::{Error, Result};
use crate::{
    cli::SamplingArgs,
    filter::Filter,
    perf::config::{EventChoice, Target, Tasks},
};

/// CPUs, or the tasks or cgroups that samples are to be of. What nothing else fires for needs no filter.
pub(super) fn resolve(
    args: &SamplingArgs,
    pids: &[u32],
    tids: &[u32],
    filter: &mut Filter,
) -> Result<Target> {
    if args.per_task {
        if pids.is_empty() && tids.is_empty() {
            let why = "whose tasks? Add -p, -t, or a command for `record`";
            return Err(Error::Usage(format!("--per-task: {why}")));
        }
        return Ok(Target::Tasks(Tasks {
            pids: pids.to_vec(),
            children: args.children,
            tids: tids.to_vec(),
            enable_on_exec: false,
        }));
    }
    if args.per_cgroup {
        if filter.cgroups.is_empty() {
            let why = "which cgroup? Add --cgroup, --container or --unit";
            return Err(Error::Usage(format!("--per-cgroup: {why}")));
        }
        return Ok(Target::Cgroups(outermost(std::mem::take(&mut filter.cgroups))));
    }
    Ok(Target::Cpus)
}

/// Refuses tracepoints and probes on anything but CPUs: whoever hits them runs the program, and filters say whose hits
/// count.
pub(super) fn check(target: &Target, events: &[EventChoice]) -> Result<()> {
    let option = match target {
        Target::Cpus => return Ok(()),
        Target::Tasks(_) => "--per-task",
        Target::Cgroups(_) => "--per-cgroup",
    };
    events.iter().try_for_each(|event| match event {
        EventChoice::Counted(_) => Ok(()),
        EventChoice::Traced(traced) => {
            let why = format!("{traced} is hit in all tasks, and filtered: leave {option} out");
            Err(Error::Usage(format!("{option}: {why}")))
        }
    })
}

/// Those that are not below another one, whose events fire for them, too.
fn outermost(mut folders: Vec<PathBuf>) -> Vec<PathBuf> {
    // An outer one comes before all that is below it.
    folders.sort();
    folders.dedup();
    let mut kept: Vec<PathBuf> = Vec::new();
    for folder in folders {
        if !kept.iter().any(|it| folder.starts_with(it)) {
            kept.push(folder);
        }
    }
    kept
}
