//! profile-bee, a profiler to compare with: <https://crates.io/crates/profile-bee>.

use std::{collections::BTreeMap, fs, path::Path, process::Command, time::Duration};

use crate::{HZ, Result, samples::percent};

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

/// What it has found of a task's user stacks.
pub(crate) struct Found {
    /// The median depth; `None` if there are none.
    pub(crate) frames: Option<usize>,
    /// Those that have all of the program's own chain.
    pub(crate) whole_percent: Option<f64>,
}

impl Found {
    /// `depth` is what the program's own chain has.
    pub(crate) fn read(folded: &Path, comm: &str, depth: usize) -> Result<Self> {
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
        let all = counts.values().sum::<u64>();
        let whole = counts.range(depth..).map(|(_, count)| count).sum();
        let mut seen = 0;
        let median = counts.into_iter().find(|(_, count)| {
            seen += count;
            seen > all / 2
        });
        Ok(Self { frames: median.map(|it| it.0), whole_percent: percent(whole, all) })
    }
}
