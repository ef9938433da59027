//! Any bytes are samples, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok((sample, behind)) = profiler::sample::decode(rest) {
        assert!(behind.len() < rest.len());
        let _ = sample.kernel.iter().chain(sample.user.iter()).fold(0, u64::wrapping_add);
        let _ = profiler_profile::sample::Comm(sample.comm).text();
        rest = behind;
    }
});
