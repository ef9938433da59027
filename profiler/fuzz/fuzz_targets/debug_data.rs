//! Any bytes are packed, or what was packed: never more than the limit, and a file of names which are
//! found again.
#![no_main]

use std::time::{Duration, Instant};

use profiler::{
    elf::symbols::{self, Functions},
    symbolize::debug_data,
};

const LIMIT_BYTES: usize = 1 << 20;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let unpacked = debug_data::unpack(bytes, LIMIT_BYTES, Instant::now() + Duration::from_secs(3));
    assert!(unpacked.as_ref().is_none_or(|it| it.len() <= LIMIT_BYTES));
    let Some(functions) = Functions::of_bytes(unpacked.as_deref().unwrap_or(bytes)) else { return };
    let write = |functions: &Functions| {
        let mut file = Vec::new();
        symbols::write(functions, &Functions::default(), &mut file).expect("memory takes it all");
        file
    };
    let file = write(&functions);
    let same = Functions::of_bytes(&file).expect("the file that was written can be read");
    assert_eq!(file, write(&same));
});
