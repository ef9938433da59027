//! What the agent has printed as JSON.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::Result;

/// How `user_end` says that a stack is whole.
const WHOLE: &str = "complete";
/// How one ends that the kernel was freeing.
const GONE: &str = "memory_gone";
const STEP: Duration = Duration::from_millis(20);

/// A sample of user code.
pub(crate) struct Sample {
    pub(crate) time_ns: u64,
    pub(crate) pid: u32,
    pub(crate) user_frames: usize,
    /// Whether all of them have names.
    pub(crate) named: bool,
    /// How the stack has ended.
    end: String,
    /// Whether the agent has walked it, before tables were in the kernel.
    is_copied: bool,
}

/// How many of some samples have a whole stack, and how the others have ended, as the ledger counts them.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub(crate) struct Wholeness {
    /// Those that had a stack.
    pub(crate) samples: u64,
    pub(crate) whole: u64,
    /// Those in exec or exit whose stack was gone already. They are not among the others.
    gone: u64,
    cut: BTreeMap<String, u64>,
}

/// CLOCK_MONOTONIC, as samples have it.
pub(crate) fn now_ns() -> Result<u64> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` outlives the call.
    if unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(u64::try_from(now.tv_sec)? * 1_000_000_000 + u64::try_from(now.tv_nsec)?)
}

/// The samples of the tasks with this name that have user frames.
pub(crate) fn of(path: &Path, comm: &str) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for line in BufReader::new(File::open(path)?).lines() {
        samples.extend(Sample::parse(&serde_json::from_str(&line?)?, comm));
    }
    Ok(samples)
}

/// Waits until the agent has printed a whole stack of a task with this name that the kernel has walked.
pub(crate) fn wait_for_whole(path: &Path, comm: &str, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        let text = fs::read_to_string(path)?;
        // The last line may not be finished.
        let values = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        if values
            .filter_map(|value| Sample::parse(&value, comm))
            .any(|it| it.is_whole() && !it.is_copied)
        {
            return Ok(());
        }
        thread::sleep(STEP);
    }
    Err(format!("no whole stack of {comm} in {} s", limit.as_secs()).into())
}

/// Waits until the agent has printed anything: it has started.
pub(crate) fn wait_for_any(path: &Path, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if fs::metadata(path)?.len() > 0 {
            return Ok(());
        }
        thread::sleep(STEP);
    }
    Err(format!("no sample in {} s", limit.as_secs()).into())
}

impl Sample {
    fn parse(value: &Value, comm: &str) -> Option<Self> {
        if value.get("comm")?.as_str()? != comm {
            return None;
        }
        let frames = value.get("user")?.as_array()?;
        if frames.is_empty() {
            return None;
        }
        Some(Self {
            time_ns: value.get("time_ns")?.as_u64()?,
            pid: value.get("pid")?.as_u64()?.try_into().ok()?,
            user_frames: frames.len(),
            named: frames.iter().all(|it| it.get("symbol").is_some_and(Value::is_string)),
            end: value.get("user_end")?.as_str()?.to_owned(),
            is_copied: value.get("user_from_snapshot")?.as_bool()?,
        })
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.end == WHOLE
    }
}

impl Wholeness {
    pub(crate) fn of<'s>(samples: impl IntoIterator<Item = &'s Sample>) -> Self {
        let mut found = Self::default();
        found.add(samples);
        found
    }

    pub(crate) fn add<'s>(&mut self, samples: impl IntoIterator<Item = &'s Sample>) {
        for sample in samples {
            self.add_end(&sample.end);
        }
    }

    /// Counts a stack by how it has ended.
    pub(crate) fn add_end(&mut self, end: &str) {
        if end == GONE {
            self.gone += 1;
            return;
        }
        self.samples += 1;
        if end == WHOLE {
            self.whole += 1;
        } else {
            *self.cut.entry(end.to_owned()).or_default() += 1;
        }
    }

    /// The share of whole ones in percent; `None` where there are no samples.
    pub(crate) fn percent(&self) -> Option<f64> {
        percent(self.whole, self.samples)
    }

    /// `no_unwind_info 3, depth 1, beside 7 gone already`
    pub(crate) fn reasons(&self) -> String {
        let mut reasons: Vec<String> =
            self.cut.iter().map(|(name, count)| format!("{name} {count}")).collect();
        if self.gone > 0 {
            reasons.push(format!("beside {} gone already", self.gone));
        }
        reasons.join(", ")
    }
}

/// `None` of nothing.
pub(crate) fn percent(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| 100.0 * part as f64 / whole as f64)
}

/// The median depth.
pub(crate) fn depth(samples: &[Sample]) -> Option<usize> {
    let mut depths: Vec<usize> = samples.iter().map(|it| it.user_frames).collect();
    depths.sort_unstable();
    depths.get(depths.len() / 2).copied()
}
