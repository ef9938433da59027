//! Comparing what a file's headers claim with what the file has on disk.
//!
//! A sparse file takes no space and can claim sections of any size: a reader would exhaust its memory, or read
//! for hours. Only headers are read here, within a budget.

use std::{fs::File, os::unix::fs::MetadataExt as _};

use profiler_elf::largest_section;

/// Sections up to this size are not checked: readers can bear them.
const SMALL_BYTES: u64 = 64 << 20;
/// A file system may compress what it stores, but not as well as this.
const PACKED: u64 = 64;
/// Bytes of a block, as `st_blocks` counts them.
const BLOCK_BYTES: u64 = 512;

/// Whether each section of the file can be as large as it claims. A file that is not ELF claims nothing.
pub(super) fn are_plausible(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return true };
    let allocated = metadata.blocks().saturating_mul(BLOCK_BYTES);
    // Some file systems do not say.
    let most = match allocated {
        0 => metadata.len(),
        _ => metadata.len().min(allocated.saturating_mul(PACKED)),
    };
    largest_section(file).is_none_or(|bytes| bytes <= most.max(SMALL_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_testing::elf::sparse_with_symbols;
    use std::io::Write as _;

    #[test]
    fn a_sparse_file_can_not_claim_what_it_does_not_have() {
        for claimed in [20 << 30, 4 << 40] {
            let file = tempfile::tempfile().unwrap();
            sparse_with_symbols(&file, claimed);
            assert!(file.metadata().unwrap().blocks() * BLOCK_BYTES <= 64 << 10);
            assert!(!are_plausible(&file), "{claimed}");
        }
        let small = tempfile::tempfile().unwrap();
        sparse_with_symbols(&small, 1 << 20);
        assert!(are_plausible(&small));
    }

    #[test]
    fn real_files_are_plausible() {
        assert!(are_plausible(&File::open("/proc/self/exe").unwrap()));
        let mut text = tempfile::tempfile().unwrap();
        text.write_all(b"no ELF file").unwrap();
        assert!(are_plausible(&text));
    }
}
