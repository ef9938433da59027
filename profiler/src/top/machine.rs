//! What the CPUs of the machine do.

use std::{collections::BTreeMap, collections::VecDeque, fs};

/// How many shares are kept of each CPU: two a second.
const HISTORY: usize = 64;

/// What a CPU did, in ticks since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    user: u64,
    kernel: u64,
    idle: u64,
}

/// Shares of the time between two looks, of one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Shares {
    /// In programs.
    pub(super) user: f64,
    /// In the kernel, with interrupts.
    pub(super) kernel: f64,
    /// In nothing, or while another virtual machine had the CPU.
    pub(super) idle: f64,
}

/// What the CPUs do, time and again.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    last: BTreeMap<Option<u32>, Times>,
    /// Of all CPUs together; `None` before the second look.
    pub(super) all: Option<Shares>,
    /// How busy each CPU was, the latest last, as shares of one.
    pub(super) busy: BTreeMap<u32, VecDeque<f64>>,
}

impl Machine {
    /// Looks what has happened since the last time.
    pub(super) fn look(&mut self) {
        self.take(&fs::read_to_string("/proc/stat").unwrap_or_default());
    }

    /// The same from the text of the file.
    pub(super) fn take(&mut self, stat: &str) {
        let now = parse(stat);
        let of = |cpu: &Option<u32>| Some(shares(*self.last.get(cpu)?, *now.get(cpu)?));
        self.all = of(&None).flatten();
        self.busy.retain(|cpu, _| now.contains_key(&Some(*cpu)));
        for cpu in now.keys().filter_map(|it| *it) {
            let busy = of(&Some(cpu)).flatten().map_or(0.0, |it| it.user + it.kernel);
            let history = self.busy.entry(cpu).or_default();
            history.push_back(busy);
            history.drain(..history.len().saturating_sub(HISTORY));
        }
        self.last = now;
    }
}

/// The times of each CPU, and of all as `None`.
///
/// Format: `proc_stat(5)`: user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in user.
fn parse(stat: &str) -> BTreeMap<Option<u32>, Times> {
    let line = |line: &str| {
        let (cpu, rest) = line.strip_prefix("cpu")?.split_once(' ')?;
        let cpu = if cpu.is_empty() { None } else { Some(cpu.parse().ok()?) };
        let mut fields = rest.split_ascii_whitespace().map(|it| it.parse::<u64>().unwrap_or(0));
        let mut next = || fields.next().unwrap_or(0);
        let user = next().saturating_add(next());
        let system = next();
        let idle = next().saturating_add(next());
        let kernel = system.saturating_add(next()).saturating_add(next());
        Some((cpu, Times { user, kernel, idle: idle.saturating_add(next()) }))
    };
    stat.lines().filter_map(line).collect()
}

/// `None` if no time has passed.
fn shares(before: Times, now: Times) -> Option<Shares> {
    let user = now.user.saturating_sub(before.user) as f64;
    let kernel = now.kernel.saturating_sub(before.kernel) as f64;
    let idle = now.idle.saturating_sub(before.idle) as f64;
    let all = user + kernel + idle;
    (all > 0.0).then(|| Shares { user: user / all, kernel: kernel / all, idle: idle / all })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_do_what_they_did_since_the_last_look() {
        let mut machine = Machine::default();
        machine.take("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 50 0 25 400 25 0 0 0 0 0\nintr 7\n");
        assert_eq!(machine.all, None);
        machine.take("cpu  150 10 60 810 60 5 5 0 0 0\ncpu0 50 0 25 500 25 0 0 0\ncpu1 1 1 1\n");
        let shares = machine.all.unwrap();
        assert_eq!((shares.user, shares.kernel, shares.idle), (0.6, 0.2, 0.2));
        assert_eq!(machine.busy[&0], [0.0, 0.0]);
        machine.take("cpu0 150 0 25 600 25 0 0 0\n");
        assert_eq!((machine.all, machine.busy.len()), (None, 1));
        assert_eq!(machine.busy[&0].back(), Some(&0.5));
        (0..2 * HISTORY).for_each(|_| machine.take("cpu0 1 1 1 1\n"));
        assert_eq!(machine.busy[&0].len(), HISTORY);
    }

    #[test]
    fn what_is_no_cpu_is_left_out() {
        for text in ["", "cpu", "cpux 1 2 3", "cpu-1 1", "cpu0", "btime 1"] {
            assert!(parse(text).is_empty(), "{text}");
        }
    }
}
