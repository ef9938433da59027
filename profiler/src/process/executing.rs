//! Which processes want a CPU right now: what samples will show first.

use crate::procfs::{self, stat::Stat};

/// Threads of a process that are looked at, at most.
const THREADS: usize = 64;

/// The processes with a thread that runs, or waits for a CPU.
#[must_use]
pub fn now() -> Vec<u32> {
    procfs::processes().filter(|tgid| executes(*tgid)).collect()
}

fn executes(tgid: u32) -> bool {
    let Some(stat) = Stat::of(tgid) else { return false };
    let mut threads = procfs::threads(tgid).take(THREADS);
    stat.is_runnable()
        || stat.threads > 1
            && threads.any(|tid| Stat::of(tid).is_some_and(|stat| stat.is_runnable()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_executes() {
        assert!(now().contains(&std::process::id()));
    }
}
