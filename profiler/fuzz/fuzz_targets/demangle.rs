//! Any bytes are a name: what comes of it is not longer than names may be.
#![no_main]

use profiler_symbols::demangle::{MAX_NAME_BYTES, demangle};

libfuzzer_sys::fuzz_target!(|name: &[u8]| {
    assert!(demangle(name).len() <= MAX_NAME_BYTES);
});
