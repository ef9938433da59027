//! Any file has a build id of a length that can be, or none.
#![no_main]

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt as _,
    sync::LazyLock,
};

static SCRATCH: LazyLock<File> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("fuzz-build-id-{}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    let file = file.expect("cannot make a scratch file");
    fs::remove_file(path).expect("cannot remove the scratch file");
    file
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    SCRATCH.set_len(0).and_then(|()| SCRATCH.write_all_at(bytes, 0)).expect("cannot write");
    assert!(profiler_elf::build_id(&SCRATCH).is_none_or(|id| (1..=20).contains(&id.as_bytes().len())));
});
