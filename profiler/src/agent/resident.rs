//! What the agent and its parser processes have in RAM.

use std::fmt::Display;

use profiler_profile::ledger::memory::{Memory, Resident};

use crate::procfs::status;

/// What this process and these parser processes have in RAM now.
pub(super) fn memory(parsers: &[u32]) -> Memory {
    let mut memory = Memory { agent: of("self").unwrap_or_default(), ..Memory::default() };
    for resident in parsers.iter().filter_map(of) {
        memory.parsers.add(resident);
        memory.parser_processes += 1;
    }
    memory
}

/// What `/proc/PID/status` says; `None` if the process is gone, or no line tells.
fn of(process: impl Display) -> Option<Resident> {
    parse(&status::read(process)?)
}

fn parse(status: &str) -> Option<Resident> {
    let bytes = |name: &str| status::number(status, name)?.checked_mul(1 << 10);
    Some(Resident {
        anon_bytes: bytes("RssAnon")?,
        file_bytes: bytes("RssFile")?,
        shmem_bytes: bytes("RssShmem")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_resident() {
        let status =
            "Name:\ta\nVmRSS:\t  70 kB\nRssAnon:\t  20 kB\nRssFile:\t  40 kB\nRssShmem:\t  10 kB\n";
        let resident = parse(status).unwrap();
        assert_eq!(resident.bytes(), 70 << 10);
        assert_eq!(resident.anon_bytes, 20 << 10);
        assert_eq!(parse("Name:\ta kernel thread\n"), None);
        assert!(memory(&[]).agent.anon_bytes > 0);
        assert_eq!(memory(&[std::process::id()]).parser_processes, 1);
        assert_eq!(memory(&[u32::MAX]).parser_processes, 0);
    }
}
