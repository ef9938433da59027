//! Any bytes, behind a header or not, are a jitdump that is taken in two pieces as it is in one, or an
//! error.
#![no_main]

use profiler::parser::jit::jitdump::JitDump;

libfuzzer_sys::fuzz_target!(|input: (bool, u8, &[u8])| {
    let (with_header, cut, bytes) = input;
    let machine: u32 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let header = [0x4a69_5444, 1, 40, machine, 0, 0, 0, 0, 0, 0].map(u32::to_ne_bytes).concat();
    let bytes = if with_header { [&header, bytes].concat() } else { bytes.to_vec() };

    let mut whole = JitDump::default();
    let Ok(taken) = whole.take(&bytes, bytes.len() as u64) else { return };
    assert!(taken <= bytes.len() as u64);

    let mut pieces = JitDump::default();
    let cut = bytes.len().min(cut.into());
    let first = pieces.take(&bytes[..cut], cut as u64).unwrap();
    let rest = &bytes[usize::try_from(first).unwrap()..];
    assert_eq!(first + pieces.take(rest, rest.len() as u64).unwrap(), taken);
    for address in [0, 0x1000, u64::MAX] {
        let found = whole.find(address);
        assert_eq!(found, pieces.find(address));
        assert!(found.is_none_or(|(start, name)| start <= address && !name.is_empty()));
    }
});
