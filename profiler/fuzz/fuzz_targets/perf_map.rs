//! Any bytes give functions in which addresses are found.
#![no_main]

use profiler::parser::jit::perf_map::PerfMap;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut map = PerfMap::default();
    assert!(map.take(bytes) <= bytes.len());
    for address in [0, 0x1000, u64::MAX] {
        if let Some((start, name)) = map.find(address) {
            assert!(start <= address && !name.is_empty());
        }
    }
});
