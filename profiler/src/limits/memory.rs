//! How much memory the agent may use: its cgroup's limit, and that of its address space.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::process::{Resource, getrlimit};

use crate::{
    error::{Error, Result},
    kernel,
};

/// The least memory, beside what each CPU takes: the agent's own, and its maps, which count as its memory since
/// Linux 5.11. Sampling one small program takes some 30 MiB.
const MIN_BYTES: u64 = 40 << 20;
/// What a CPU takes: its rings and caches in the kernel.
const CPU_BYTES: u64 = 1 << 20;
/// The least address space: the program, its maps and rings, the stacks of its threads, and files that it maps.
const MIN_ADDRESSES: u64 = 256 << 20;
/// Version 1 has no word for "no limit", but a number close to the largest.
const NO_LIMIT: u64 = 1 << 60;

/// Where cgroups are mounted: version 2 alone, and version 2 and 1 beside each other.
const UNIFIED: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
const OF_MEMORY: &str = "/sys/fs/cgroup/memory";

/// The memory that the agent's cgroups allow; `None` if there is no limit that can be read.
pub(crate) fn of_cgroup() -> Option<u64> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&cgroups).into_iter();
    limits.filter_map(|file| parse(&fs::read_to_string(file).ok()?)).min()
}

/// The files that have the limits of these cgroups and of those around them. In a container the path may be one
/// that is not to be seen from inside; then what is mounted is the container's own.
fn limit_files(cgroups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (mounts, name): (&[&str], _) = if controllers.is_empty() {
            (&UNIFIED, "memory.max")
        } else if controllers.split(',').any(|it| it == "memory") {
            (&[OF_MEMORY], "memory.limit_in_bytes")
        } else {
            continue;
        };
        let around = Path::new(path.trim_start_matches('/')).ancestors();
        for folder in around {
            files.extend(mounts.iter().map(|mount| Path::new(mount).join(folder).join(name)));
        }
    }
    files
}

fn parse(limit: &str) -> Option<u64> {
    limit.trim().parse().ok().filter(|bytes| *bytes < NO_LIMIT)
}

/// Fails where a run would be killed or end in the middle of its start for want of memory.
pub fn require() -> Result<()> {
    let too_little = |what: &str, bytes: u64, least: u64, next: String| {
        let (limit, least) = (bytes >> 20, least.div_ceil(1 << 20));
        let why = format!("{what} is limited to {limit}M: at least {least}M are needed here");
        Err(Error::system_with("cannot start", why, next))
    };
    let addresses = address_space();
    if addresses < MIN_ADDRESSES {
        let next = format!("ulimit -v {}", MIN_ADDRESSES >> 10);
        return too_little("address space", addresses, MIN_ADDRESSES, next);
    }
    match of_cgroup() {
        Some(bytes) if bytes < least() => {
            let next = "raise memory.max (version 1: memory.limit_in_bytes) of its cgroup: MemoryMax= \
                        in a unit, a container's or pod's memory limit";
            too_little("memory of its cgroup", bytes, least(), next.into())
        }
        _ => Ok(()),
    }
}

/// The least memory that a run can do with here.
pub(crate) fn least() -> u64 {
    let cpus = kernel::cpus("possible").map_or(1, |cpus| cpus.len() as u64);
    CPU_BYTES.saturating_mul(cpus).saturating_add(MIN_BYTES)
}

fn address_space() -> u64 {
    getrlimit(Resource::As).current.unwrap_or(u64::MAX)
}

/// A share of the memory for a cache: its default size, or where memory is limited, at most one part in `share` of it.
pub(crate) fn at_most(default: u64, limit: Option<u64>, share: u64) -> u64 {
    limit.map_or(default, |limit| default.min(limit / share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_looked_for_in_the_cgroup_and_around_it() {
        let files = |text: &str| {
            let files = limit_files(text).into_iter();
            files.map(|it| it.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            files("5:cpu,cpuacct:/a\n4:memory:/a/b\n1:name=systemd:/c\n"),
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ]
        );
        let unified = files("0::/a\n");
        assert!(unified.contains(&"/sys/fs/cgroup/a/memory.max".to_owned()), "{unified:?}");
        assert!(unified.contains(&"/sys/fs/cgroup/memory.max".to_owned()), "{unified:?}");
        assert!(files("0\nmemory\n::").iter().all(|it| it.ends_with("memory.max")));
    }

    #[test]
    fn no_limit_is_none() {
        assert_eq!(parse("67108864\n"), Some(64 << 20));
        assert_eq!(parse("max\n"), None);
        assert_eq!(parse("9223372036854771712\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_cache_has_its_share_of_a_limit() {
        assert_eq!(at_most(256 << 20, None, 8), 256 << 20);
        assert_eq!(at_most(256 << 20, Some(64 << 20), 8), 8 << 20);
        assert_eq!(at_most(256 << 20, Some(64 << 30), 8), 256 << 20);
    }
}
