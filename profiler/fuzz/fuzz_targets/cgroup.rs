//! Any text gives ids of the length that they have.
#![no_main]

use profiler::procfs::cgroup;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let path = cgroup::path(text).unwrap_or(text);
    assert!(cgroup::container(path).is_none_or(|it| it.id.len() == 64));
    assert!(cgroup::pod(path).is_none_or(|it| matches!(it.len(), 32 | 36)));
    assert!(cgroup::unit(path).is_none_or(|it| !it.contains('/')));
});
