//! What the maps of the walk take of the kernel's memory, and how a limit is shared out among them.

use profiler_common::{
    python::{INTERPRETERS, Interpreter, MAX_WALK_BYTES},
    unwind::{
        rule::Rule,
        space::{Block, Space},
        table::{Chunk, RULES, TABLES},
    },
};

/// What the cache of a source takes on a CPU: as much as a per-CPU value can.
const CACHE_BYTES: u64 = 32 << 10;
/// What an array or a hash map takes beside its elements, at most.
const MAP_BYTES: u64 = 512;
/// The kernel's share of an element of a hash map, and what leads there: at most two heads of chains.
/// <https://github.com/torvalds/linux/blob/v6.12/kernel/bpf/hashtab.c#L77-L127>
const ELEMENT_BYTES: u64 = 48;
const CHAIN_BYTES: u64 = 16;
/// A process in the list of them: its key and value, too.
const SPACE_BYTES: u64 = ELEMENT_BYTES + ALIGNMENT + size_of::<Space>() as u64 + 2 * CHAIN_BYTES;
/// Keys and values take multiples of this.
const ALIGNMENT: u64 = 8;
/// Up to this size memory comes in powers of two, beyond it in pages.
/// <https://github.com/torvalds/linux/blob/v6.12/kernel/bpf/syscall.c#L340-L377>
const POWERS_UP_TO: u64 = 32 << 10;
const PAGE_BYTES: u64 = 4096;

/// What they may take by default.
pub const DEFAULT_BYTES: u64 = 256 << 20;

/// The least for what grows with the machine: some hundred processes, and tables of what they run.
const MIN_BYTES: u64 = 2 << 20;
/// Mappings of processes get at most this part of what is there, and the list of processes the same.
const SHARE: u64 = 8;
/// Processes that were forked and have called no exec since share blocks with their parents. So many for
/// each block, once there are more than a few.
const PROCESSES_PER_BLOCK: u32 = 4;

/// How large the walk's maps may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkMemory {
    /// All of them, in bytes.
    pub limit: u64,
    /// Processes whose mappings are known.
    pub spaces: u32,
    /// Blocks of mappings.
    pub blocks: u32,
    /// Bytes for tables.
    pub tables: u64,
}

impl WalkMemory {
    /// Shares out so many bytes, for a machine that can have so many CPUs, and a run with so many sources.
    /// Gives the least that would do if these do not.
    pub fn share(limit: u64, processes: u32, cpus: u32, sources: u32) -> Result<Self, u64> {
        let rest = limit.saturating_sub(fixed_bytes(cpus, sources));
        if rest < MIN_BYTES {
            return Err(fixed_bytes(cpus, sources).saturating_add(MIN_BYTES));
        }
        let share = rest / SHARE;
        let spaces = u32::try_from(share / SPACE_BYTES).unwrap_or(u32::MAX);
        let spaces = spaces.clamp(1, processes.max(1));
        let blocks = u32::try_from(share / size_of::<Block>() as u64).unwrap_or(u32::MAX);
        let most_blocks = (processes / PROCESSES_PER_BLOCK).max(MIN_BLOCKS);
        let blocks = blocks.clamp(1, most_blocks);
        let mappings = mappings_bytes(spaces, blocks);
        Ok(Self { limit, spaces, blocks, tables: rest.saturating_sub(mappings) })
    }

    /// What all but the tables takes, which does not change.
    #[must_use]
    pub fn other_bytes(&self) -> u64 {
        self.limit.saturating_sub(self.tables)
    }
}

/// Of a machine with few processes, none of which may share any.
const MIN_BLOCKS: u32 = 4096;

/// What a table takes.
#[must_use]
pub fn table_bytes(chunks: &[Chunk]) -> u64 {
    array_bytes(u32::try_from(chunks.len()).unwrap_or(u32::MAX), size_of::<Chunk>())
}

/// What takes the same whatever runs.
fn fixed_bytes(cpus: u32, sources: u32) -> u64 {
    let rules = array_bytes(RULES, size_of::<Rule>());
    let tables = array_bytes(TABLES, size_of::<u64>());
    let wanted = array_bytes(1, TABLES as usize);
    let interpreters = array_bytes(INTERPRETERS, size_of::<Interpreter>());
    // A hash map has an element more for each CPU.
    let of_source = CACHE_BYTES + u64::from(MAX_WALK_BYTES);
    let of_cpus = u64::from(cpus).saturating_mul(u64::from(sources) * of_source + SPACE_BYTES);
    // What stands in the place of a table that was taken out, and of one that there is none of.
    let stand_ins = 2 * array_bytes(1, size_of::<Chunk>());
    of_cpus.saturating_add(rules + tables + wanted + stand_ins + interpreters)
}

fn array_bytes(elements: u32, element: usize) -> u64 {
    allocated(MAP_BYTES + u64::from(elements) * (element as u64).next_multiple_of(ALIGNMENT))
}

/// What the list of processes and their mappings take. All elements of the list are there from the start:
/// before Linux 6.1 a program that runs in interrupts could not have used others.
fn mappings_bytes(spaces: u32, blocks: u32) -> u64 {
    MAP_BYTES + u64::from(spaces) * SPACE_BYTES + array_bytes(blocks, size_of::<Block>())
}

/// What the kernel takes to give so many bytes.
fn allocated(bytes: u64) -> u64 {
    if bytes <= POWERS_UP_TO {
        bytes.next_power_of_two()
    } else {
        bytes.next_multiple_of(PAGE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_kept_and_what_is_too_little_told() {
        for (cpus, sources) in [(1, 1), (2, 4), (64, 1), (8192, 2)] {
            let least = WalkMemory::share(0, 32_768, cpus, sources).unwrap_err();
            assert_eq!(WalkMemory::share(least - 1, 32_768, cpus, sources), Err(least));
            for limit in [least, least + 1, 64 << 20, 256 << 20, 4 << 30, u64::MAX] {
                for processes in [1, 1000, 32_768, u32::MAX] {
                    let Ok(memory) = WalkMemory::share(limit, processes, cpus, sources) else {
                        assert!(limit < least);
                        continue;
                    };
                    let WalkMemory { spaces, blocks, tables, .. } = memory;
                    let mappings = mappings_bytes(spaces, blocks);
                    assert_eq!(fixed_bytes(cpus, sources) + mappings + tables, limit);
                    assert!((1..=processes).contains(&spaces) && blocks >= 1, "{memory:?}");
                    // Most of it is for tables.
                    assert!(tables >= MIN_BYTES / 2, "{memory:?}");
                }
            }
        }
    }

    #[test]
    fn by_default_thousands_of_programs_have_their_place() {
        let memory = WalkMemory::share(256 << 20, 32_768, 64, 1).unwrap();
        assert_eq!((memory.spaces, memory.blocks), (32_768, 8192));
        assert!(memory.other_bytes() < 20 << 20, "{memory:?}");
    }

    #[test]
    fn small_tables_take_a_power_of_two() {
        let bytes = |chunks: usize| table_bytes(&vec![[0; 2048]; chunks]);
        assert_eq!([1, 2, 3, 4].map(bytes), [16 << 10, 32 << 10, 32 << 10, 36 << 10]);
    }
}
