//! profile-bee, a profiler to compare with: <https://crates.io/crates/profile-bee>.

use std::{collections::BTreeMap, fs, path::Path, process::Command, time::Duration};

use crate::{HZ, Result};

/// What the table says where it is not there.
pub(crate) const MISSING: &str =
    "profile-bee is not installed: `cargo xtask bench --with-profile-bee` builds it once";
/// From when its program is loaded until it has made its tables.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);

/// Where it looks for tracepoints.
const TRACEFS: &str = "/sys/kernel/tracing";

/// The file system that it needs; where it was not mounted, it is unmounted when this is dropped.
pub(crate) struct Tracefs {
    is_ours: bool,
}

impl Tracefs {
    pub(crate) fn mount() -> Result<Self> {
        if Path::new(TRACEFS).join("events").exists() {
            return Ok(Self { is_ours: false });
        }
        let status = Command::new("mount").args(["-t", "tracefs", "tracefs", TRACEFS]).status()?;
        if !status.success() {
            return Err(format!("cannot mount {TRACEFS}: mount ended with {status}").into());
        }
        Ok(Self { is_ours: true })
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.is_ours {
            // What stays mounted does no harm.
            let _ = Command::new("umount").arg(TRACEFS).status();
        }
    }
}

/// Samples the whole machine for a time, and writes folded stacks.
pub(crate) fn command(program: &Path, arguments: &str, time: Duration, output: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--frequency", &HZ.to_string(), "--time", &time.as_millis().to_string()]);
    command.args(arguments.split_whitespace()).arg("--output").arg(output);
    command
}

/// The median depth of a task's user stacks; `None` if there are none.
pub(crate) fn depth(folded: &Path, comm: &str) -> Result<Option<usize>> {
    let mut counts: BTreeMap<usize, u64> = BTreeMap::new();
    for line in fs::read_to_string(folded)?.lines() {
        let Some((stack, count)) = line.rsplit_once(' ') else { continue };
        let mut frames = stack.split(';');
        if frames.next() != Some(comm) {
            continue;
        }
        // Frames of the kernel are marked.
        let user = frames.filter(|frame| !frame.ends_with("_[k]")).count();
        *counts.entry(user).or_default() += count.parse::<u64>()?;
    }
    let half = counts.values().sum::<u64>() / 2;
    let mut seen = 0;
    Ok(counts.into_iter().find_map(|(depth, count)| {
        seen += count;
        (seen > half).then_some(depth)
    }))
}
