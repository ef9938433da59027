//! A code object of any version, in memory of any content, has a sane name or none. So has any line table its lines,
//! and what an interpreter may tell of itself.
#![no_main]

use profiler_python::{
    code,
    image::{Loaded, Types},
    lines::Lines,
    memory::{Fault, Memory},
    offsets::{Encoding, Offsets},
    slot,
    text::MAX_CHARS,
    version::Version,
};

/// Bytes that are everywhere, again and again, so that each pointer leads somewhere.
struct Everywhere<'a>(&'a [u8]);

impl Memory for Everywhere<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let bytes = self.0.len().max(1) as u64;
        if address % 61 == 0 || self.0.is_empty() {
            return Err(Fault::Unmapped);
        }
        let mut at = (address % bytes) as usize;
        for to in into {
            *to = self.0[at];
            at = if at + 1 == self.0.len() { 0 } else { at + 1 };
        }
        Ok(())
    }
}

libfuzzer_sys::fuzz_target!(|input: (u8, [u16; 4], u32, &[u8], &[u8])| {
    let (minor, [address, code, text, bytes], first_line, told, memory) = input;
    for encoding in [Encoding::Lnotab, Encoding::LineTable, Encoding::Locations] {
        let lines = Lines::decode(encoding, memory, first_line);
        assert!(lines.is_sane() && lines.find(first_line) != Some(0));
    }
    // What follows the cookie and the version.
    let minor = 8 + minor % 8;
    let version = Version::series(minor);
    let told = [b"xdebugpy", &u64::from(version.0).to_le_bytes(), told].concat();
    let offsets = Offsets::of_version(version).or_else(|_| Offsets::from_debug_offsets(&told));
    let Ok(offsets) = offsets else { return };
    let known = |at: u16| (at % 2 == 0).then_some(u64::from(at) * 8);
    let types = Types { code: known(code), text: known(text), bytes: known(bytes) };
    let loaded = Loaded { offsets, runtime: 0x10_0000, types };
    let memory = Everywhere(memory);
    let address = u64::from(address) * 8;
    if let Ok(check) = code::check_at(&memory, &loaded, address)
        && let Ok(code) = code::read(&memory, &loaded, address, check)
    {
        assert!((1..=4 * MAX_CHARS).contains(&code.name.len()) && code.lines.is_sane());
        assert!(code.file.len() <= 4 * MAX_CHARS);
    }
    let _ = slot::threads(&memory, &loaded);
});
