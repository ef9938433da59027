//! Memory, tables and files of those who want to be read wrong.

#![allow(clippy::indexing_slicing, clippy::unwrap_used)]

use std::{cell::Cell, fs::File, io::Write as _};

use profiler_common::python::FRAME_BYTES;
use profiler_python::{
    code::{self, Code, Unnamed},
    image::{Image, Loaded, Types},
    lines::Lines,
    memory::{Bounded, Fault, Memory},
    offsets::{Encoding, Offsets},
    slot::{self, Slot},
    text::MAX_CHARS,
    version::Version,
};
use proptest::prelude::*;

/// Bytes that are everywhere, again and again: each pointer leads somewhere. Of every so many addresses one is not
/// mapped.
struct Everywhere<'a> {
    bytes: &'a [u8],
    hole: u64,
    reads: Cell<u64>,
}

impl Memory for Everywhere<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.reads.set(self.reads.get() + 1);
        if address.is_multiple_of(self.hole) {
            return Err(Fault::Unmapped);
        }
        let start = usize::try_from(address % self.bytes.len() as u64).unwrap();
        for (to, from) in into.iter_mut().zip(self.bytes.iter().cycle().skip(start)) {
            *to = *from;
        }
        Ok(())
    }
}

fn loaded(minor: u8, types: [u64; 3]) -> Loaded {
    let offsets = match minor {
        0..=12 => Offsets::of_version(Version::series(minor)).unwrap(),
        _ => Offsets::from_debug_offsets(&told(minor, |_| {})).unwrap(),
    };
    let [code, text, bytes] = types.map(|it| (it % 3 != 0).then_some(it));
    Loaded { offsets, runtime: 0x40_0000, types: Types { code, text, bytes } }
}

/// Debug offsets that make sense, with some changed.
fn told(minor: u8, change: impl FnOnce(&mut [u64])) -> Vec<u8> {
    let numbers: &[u64] = match minor {
        13 => &[
            0, 0, 0, 8, 0, 632, 8, 0, 7264, 7344, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 8, 16, 72, 152,
            160, 0, 0, 88, 8, 0, 56, 72, 70, 208, 112, 120, 128, 136, 68, 52, 96, 104, 200, 16, 8,
            416, 24, 0, 168, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 33, 16, 32, 64, 32, 16, 40,
        ],
        _ => &[
            0, 0, 0, 8, 0, 632, 8, 0, 7264, 7344, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 8, 16,
            72, 152, 160, 0, 0, 88, 8, 0, 56, 80, 74, 64, 76, 208, 112, 120, 128, 136, 68, 52, 96,
            104, 208, 0, 16, 8, 416, 24, 0, 168, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 33, 16, 32, 64, 32, 16, 40,
        ],
    };
    let mut numbers = numbers.to_vec();
    numbers[0] = u64::from_le_bytes(*b"xdebugpy");
    numbers[1] = u64::from(Version::series(minor).0);
    change(&mut numbers);
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
    bytes.resize(1024, 0);
    bytes
}

fn is_sane(code: &Code) -> bool {
    (1..=4 * MAX_CHARS).contains(&code.name.len())
        && code.file.len() <= 4 * MAX_CHARS
        && code.lines.is_sane()
}

/// Words that lead to each other, are small, or are anything.
fn memory() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        (0x1000_u64..0x1_0000).prop_map(|it| it & !7),
        0_u64..300,
        any::<u64>(),
        (0_u64..6, any::<u8>()).prop_map(|(at, it)| u64::from(it) << (8 * at)),
    ];
    let words = prop::collection::vec(word, 1..400);
    words.prop_map(|it| it.iter().flat_map(|it| it.to_le_bytes()).collect())
}

proptest! {
    #[test]
    fn any_memory_has_sane_names_or_none(
        minor in 8_u8..=14,
        bytes in memory(),
        hole in 1_u64..5000,
        types in prop::array::uniform3(0x1000_u64..0x1100),
        address in (0x1000_u64..0x1_0000).prop_map(|it| it & !7),
    ) {
        let loaded = loaded(minor, types);
        let memory = Everywhere { bytes: &bytes, hole, reads: Cell::new(0) };
        if let Ok(check) = code::check_at(&memory, &loaded, address) {
            if let Ok(code) = code::read(&memory, &loaded, address, check) {
                prop_assert!(is_sane(&code));
            }
            let other = code::read(&memory, &loaded, address, check ^ 2);
            prop_assert_eq!(other, Err(Unnamed::Reused));
        }
        prop_assert!(memory.reads.get() < 100, "{}", memory.reads.get());
        let no_more = Bounded::new(&memory, 4000);
        let _ = code::read(&no_more, &loaded, address, 1);
    }

    #[test]
    fn any_table_has_lines_in_order(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        first_line: u32,
        instruction: u32,
    ) {
        for encoding in [Encoding::Lnotab, Encoding::LineTable, Encoding::Locations] {
            let lines = Lines::decode(encoding, &bytes, first_line);
            prop_assert!(lines.is_sane());
            prop_assert_ne!(lines.find(instruction), Some(0));
        }
    }

    #[test]
    fn offsets_that_are_told_are_in_range_or_refused(
        minor in 13_u8..=14,
        at in 2_usize..70,
        number in prop_oneof![0_u64..200, 0_u64..10_000, any::<u64>()],
    ) {
        let told = told(minor, |numbers| {
            if let Some(it) = numbers.get_mut(at) {
                *it = number;
            }
        });
        if let Ok(offsets) = Offsets::from_debug_offsets(&told) {
            let layout = offsets.layout(Slot { offset: 8, in_table: None });
            prop_assert!(layout.frame_bytes <= FRAME_BYTES);
            for offset in [layout.code, layout.back, layout.instruction] {
                prop_assert!(offset + 8 <= layout.frame_bytes);
            }
            prop_assert!(layout.owner < layout.frame_bytes);
            prop_assert!(layout.state_frame < 4096 && layout.check < 4096);
        }
    }

    #[test]
    fn what_is_cut_off_is_no_offsets(minor in 13_u8..=14, len in 0_usize..500) {
        let whole = told(minor, |_| {});
        let cut = whole.get(..len).unwrap();
        prop_assert!(Offsets::from_debug_offsets(cut).is_err());
    }

    #[test]
    fn a_file_with_changed_bytes_is_no_harm(
        changes in prop::collection::vec((0_usize..900, any::<u8>()), 0..20),
    ) {
        let mut bytes = interpreter();
        for (at, byte) in changes {
            if let Some(it) = bytes.get_mut(at) {
                *it = byte;
            }
        }
        let _ = Image::of_file(&file(&bytes));
    }
}

proptest! {
    // Each looks at thousands of words.
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_list_of_threads_ends(
        minor in 8_u8..=14,
        bytes in memory(),
        hole in 1_u64..5000,
    ) {
        let loaded = loaded(minor, [1; 3]);
        let memory = Everywhere { bytes: &bytes, hole, reads: Cell::new(0) };
        if let Ok(threads) = slot::threads(&memory, &loaded) {
            prop_assert!((1..=128).contains(&threads.len()));
            let _ = slot::slot(&Bounded::new(&memory, 1 << 20), &loaded, 0);
        } else {
            prop_assert!(memory.reads.get() < 1000, "{}", memory.reads.get());
        }
    }
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// A file that has nothing but a section `.PyRuntime`.
fn interpreter() -> Vec<u8> {
    let told = told(13, |_| {});
    let names = b"\0.PyRuntime\0.shstrtab\0";
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend([3_u16, 62].map(u16::to_le_bytes).concat());
    elf.extend(1_u32.to_le_bytes());
    elf.extend([0_u64, 64, 0x100].map(u64::to_le_bytes).concat());
    elf.extend(0_u32.to_le_bytes());
    elf.extend([64_u16, 56, 2, 64, 3, 2].map(u16::to_le_bytes).concat());
    for (flags, at, address, bytes) in [(5_u32, 0_u64, 0_u64, 0x1000_u64), (6, 0x400, 0x2400, 1024)]
    {
        elf.extend([1, flags].map(u32::to_le_bytes).concat());
        elf.extend([at, address, address, bytes, bytes, 0x1000].map(u64::to_le_bytes).concat());
    }
    elf.resize(0x100, 0);
    let sections = [
        (0_u32, 0_u32, 0_u64, 0_u64, 0_u64),
        (1, 1, 0x2400, 0x400, 1024),
        (12, 3, 0, 0x300, names.len() as u64),
    ];
    for (name, kind, address, offset, bytes) in sections {
        elf.extend([name, kind].map(u32::to_le_bytes).concat());
        elf.extend([0, address, offset, bytes].map(u64::to_le_bytes).concat());
        elf.extend([0_u32, 0].map(u32::to_le_bytes).concat());
        elf.extend([8_u64, 0].map(u64::to_le_bytes).concat());
    }
    elf.resize(0x300, 0);
    elf.extend(names);
    elf.resize(0x400, 0);
    elf.extend(told);
    elf
}

#[test]
fn an_interpreter_without_symbols_is_known_by_its_section() {
    let image = Image::of_file(&file(&interpreter())).unwrap().unwrap();
    assert_eq!(image.offsets.version.minor(), Some(13));
    let loaded = image.loaded_at(0x7f00_0000_0000, 0).unwrap();
    assert_eq!(loaded.runtime, 0x7f00_0000_2400);
    assert_eq!(loaded.types, Types::default());
    assert_eq!(image.loaded_at(0x7f00_0000_0000, 0x10_0000), None);
}

#[test]
fn an_unknown_version_has_a_reason() {
    let told = told(13, |numbers| numbers[1] = u64::from(Version::series(30).0));
    let why = Offsets::from_debug_offsets(&told).unwrap_err();
    assert_eq!(why.to_string(), "Python 3.30.0 is not known");
    for minor in [6, 7, 13, 16] {
        assert!(Offsets::of_version(Version::series(minor)).is_err());
    }
    // Before the first release candidate structures still change.
    assert!(Offsets::of_version(Version(0x030c_00b1)).is_err());
}
