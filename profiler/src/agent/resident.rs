//! What the agent and its parser processes have in RAM.

use profiler_profile::ledger::memory::{Memory, Resident};

use crate::{kernel::OwnStatus, procfs::status};

/// Tells it, also where no more files can be opened: of this process at least.
#[derive(Debug)]
pub(super) struct ResidentMemory {
    /// `None` without `/proc`.
    own: Option<OwnStatus>,
}

impl ResidentMemory {
    /// Opens what this process is read from.
    pub(super) fn open() -> Self {
        Self { own: OwnStatus::open().ok() }
    }

    /// What this process and these parser processes have in RAM now.
    pub(super) fn read(&self, parsers: &[u32]) -> Memory {
        let agent = self.own.as_ref().and_then(|own| parse(&own.read())).unwrap_or_default();
        let mut memory = Memory { agent, ..Memory::default() };
        let parsers = parsers.iter().filter_map(|pid| parse(&status::read(pid)?));
        for resident in parsers {
            memory.parsers.add(resident);
            memory.parser_processes += 1;
        }
        memory
    }
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
        let memory = ResidentMemory::open();
        assert!(memory.read(&[]).agent.anon_bytes > 0);
        assert!(memory.read(&[]).agent.anon_bytes > 0, "once more");
        assert_eq!(memory.read(&[std::process::id()]).parser_processes, 1);
        assert_eq!(memory.read(&[u32::MAX]).parser_processes, 0);
    }
}
