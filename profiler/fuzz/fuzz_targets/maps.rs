//! Any bytes give mappings in which addresses are found.
#![no_main]

use profiler::procfs::maps;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mappings = maps::parse(bytes);
    for mapping in &mappings {
        assert!(mapping.start < mapping.end);
        assert!(maps::find(&mappings, mapping.start).is_some());
        let _ = mapping.file_offset_of(mapping.end);
    }
});
