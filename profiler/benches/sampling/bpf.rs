//! What the kernel says of the programs and events that a process has open, in `/proc/PID/fdinfo`.

use std::{collections::BTreeMap, fs, time::Duration};

use crate::Result;

/// `BPF_PROG_TYPE_PERF_EVENT`
const PERF_EVENT: u64 = 7;

/// What the kernel counts of a program's runs.
#[derive(Clone, Copy, Default)]
pub(crate) struct RunStats {
    time: Duration,
    count: u64,
}

impl RunStats {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            time: self.time.saturating_sub(before.time),
            count: self.count.saturating_sub(before.count),
        }
    }

    pub(crate) fn ns_per_run(self) -> Result<f64> {
        if self.count == 0 {
            return Err("the program did not run, or its runs were not counted".into());
        }
        Ok(self.time.as_nanos() as f64 / self.count as f64)
    }
}

/// The programs for events that a process has open.
pub(crate) struct Loaded {
    pid: u32,
    programs: BTreeMap<u64, RunStats>,
}

impl Loaded {
    pub(crate) fn by(pid: u32) -> Result<Self> {
        let mut programs = BTreeMap::new();
        for file in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
            // One that was closed in between is none.
            let text = fs::read_to_string(file?.path()).unwrap_or_default();
            if field(&text, "prog_type") != Some(PERF_EVENT) {
                continue;
            }
            let id = field(&text, "prog_id").ok_or("a program without an id")?;
            let time = Duration::from_nanos(field(&text, "run_time_ns").unwrap_or(0));
            // Two descriptors of one program say the same.
            programs.insert(id, RunStats { time, count: field(&text, "run_cnt").unwrap_or(0) });
        }
        Ok(Self { pid, programs })
    }

    pub(crate) fn runs_at_events(&self) -> bool {
        !self.programs.is_empty()
    }

    /// The runs of all of them until now. What a program calls is part of its own run.
    pub(crate) fn run_stats(&self) -> Result<RunStats> {
        let now = Self::by(self.pid)?;
        let add = |sum: RunStats, of: &RunStats| RunStats {
            time: sum.time + of.time,
            count: sum.count + of.count,
        };
        Ok(now.programs.values().fold(RunStats::default(), add))
    }
}

/// Whether a process has opened events.
pub(crate) fn has_events(pid: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files
        .filter_map(|file| fs::read_link(file.path()).ok())
        .any(|link| link.as_os_str() == "anon_inode:[perf_event]")
}

/// A number in the text of a `fdinfo`.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok();
    text.lines().find_map(value)
}
