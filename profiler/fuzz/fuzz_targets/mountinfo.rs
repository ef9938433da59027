//! Any text of mounts gives a device that stands in it, or none.
#![no_main]

use profiler::procfs::mounts;

libfuzzer_sys::fuzz_target!(|input: (&str, &str)| {
    let (text, path) = input;
    if let Some(device) = mounts::device_in(text, path) {
        let is_third = |line: &str| line.split(' ').nth(2) == Some(device);
        assert!(text.lines().any(is_third) && path.starts_with('/'));
    }
});
