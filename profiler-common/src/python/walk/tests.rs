//! Walks over made-up memory of each way in which frames are kept.

extern crate std;

use std::{collections::BTreeMap, vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::python::FRAME_BYTES;

const STATE: u64 = 0x5000_0000;
const THREAD: u64 = 0x7f00_0000;
const STACK: u64 = 0x7ffc_0000;
const FRAMES: u64 = 0x6000_0000;
const CODES: u64 = 0x4000_0000;
/// Between things of a kind.
const APART: u64 = 0x1000;

/// By words, as they were written; all others can't be read.
#[derive(Default)]
struct Words {
    words: BTreeMap<u64, u64>,
    read: [u64; FRAME_WORDS],
}

impl Words {
    fn set(&mut self, address: u64, value: u64) {
        self.words.insert(address, value);
    }

    /// One byte of a word.
    fn set_byte(&mut self, address: u64, value: u8) {
        let shift = (address & 7) * 8;
        let word = self.words.entry(address & !7).or_default();
        *word = *word & !(0xff << shift) | u64::from(value) << shift;
    }
}

impl Memory for Words {
    fn word(&mut self, address: u64) -> Option<u64> {
        self.words.get(&address).copied()
    }

    fn frame(&mut self, address: u64, bytes: u16) -> Option<&[u64; FRAME_WORDS]> {
        assert!(bytes <= FRAME_BYTES);
        self.read = [0xdead; FRAME_WORDS];
        let words = usize::from(bytes).div_ceil(8);
        for (word, at) in self.read.iter_mut().take(words).zip((0..).step_by(8)) {
            *word = *self.words.get(&address.checked_add(at)?)?;
        }
        Some(&self.read)
    }

    fn checked(&mut self, address: u64) -> Option<[u64; CHECKED_WORDS]> {
        let mut words = [0; CHECKED_WORDS];
        for (word, at) in words.iter_mut().zip((0..).step_by(8)) {
            *word = *self.words.get(&address.checked_add(at)?)?;
        }
        Some(words)
    }
}

/// As in 3.12 and later: from there the frame itself is the record.
const BY_FRAME: Layout = Layout {
    slot: 808,
    slot_in_table: DIRECT,
    state_frame: 72,
    state_cframe: NONE,
    cframe_frame: NONE,
    cframe_back: NONE,
    code: 0,
    back: 8,
    instruction: 56,
    owner: 70,
    entry_owner: 3,
    entry: entry::FRAME,
    first_instruction: 200,
    check: 112,
    checked_name: NONE,
    frame_bytes: 80,
    reserved: 0,
};
/// As in 3.11.
const BY_CFRAME: Layout = Layout {
    slot: -24,
    state_frame: NONE,
    state_cframe: 56,
    cframe_frame: 8,
    cframe_back: 16,
    code: 32,
    back: 48,
    owner: 68,
    entry_owner: 1,
    entry: entry::CFRAME,
    first_instruction: 184,
    checked_name: 120,
    ..BY_FRAME
};
/// As in 3.10, and as with many keys.
const EACH_BY_CFRAME: Layout = Layout {
    slot_in_table: 24,
    state_frame: 24,
    state_cframe: 48,
    cframe_frame: NONE,
    cframe_back: 8,
    code: 32,
    back: 24,
    instruction: 96,
    owner: 0,
    entry: entry::EACH_CFRAME,
    first_instruction: 0,
    check: 96,
    checked_name: 112,
    frame_bytes: 112,
    ..BY_FRAME
};
/// As in 3.8.
const EACH: Layout = Layout {
    slot_in_table: DIRECT,
    state_cframe: NONE,
    instruction: 104,
    entry: entry::EACH,
    ..EACH_BY_CFRAME
};
const LAYOUTS: [&Layout; 4] = [&BY_FRAME, &BY_CFRAME, &EACH_BY_CFRAME, &EACH];

/// A thread that runs these functions at these instructions, a list for each call of the evaluator, innermost
/// first; and what a walk of it has to find.
fn thread(layout: &Layout, calls: &[Vec<(u64, u32)>]) -> (Words, Vec<Frame>) {
    let mut memory = Words::default();
    let mut found = Vec::new();
    // Where the address of what comes next belongs.
    let mut next_frame = STATE + u64::from(layout.state_frame);
    let mut next_cframe = STATE + u64::from(layout.state_cframe);
    let mut state_at = THREAD.wrapping_add(layout.slot.cast_unsigned());
    if layout.slot_in_table != DIRECT {
        memory.set(state_at, STATE + 0x800);
        state_at = STATE + 0x800 + u64::from(layout.slot_in_table.unsigned_abs());
    }
    memory.set(state_at, STATE);
    let mut frames = (FRAMES..).step_by(0x1000);
    let mut records = (STACK..).step_by(0x100);
    let mut add_frame = |memory: &mut Words, next: &mut u64| {
        let at = frames.next().unwrap();
        memory.set(*next, at);
        for offset in (0..u64::from(layout.frame_bytes)).step_by(8) {
            memory.set(at + offset, 0x7777);
        }
        if layout.entry >= entry::CFRAME {
            memory.set_byte(at + u64::from(layout.owner), 0);
        }
        *next = at + u64::from(layout.back);
        at
    };
    for call in calls {
        for (number, &(code, instruction)) in call.iter().enumerate() {
            let is_last = number + 1 == call.len();
            let has_record = match layout.entry {
                entry::EACH_CFRAME => true,
                entry::CFRAME => is_last,
                _ => false,
            };
            let mut record = 0;
            let is_first = number == 0 || layout.entry == entry::EACH_CFRAME;
            if layout.state_cframe != NONE && is_first {
                let cframe = records.next().unwrap();
                memory.set(next_cframe, cframe);
                next_cframe = cframe + u64::from(layout.cframe_back);
                if layout.state_frame == NONE && next_frame == STATE + u64::from(NONE) {
                    next_frame = cframe + u64::from(layout.cframe_frame);
                }
            }
            if has_record {
                record = next_cframe - u64::from(layout.cframe_back);
            }
            let at = add_frame(&mut memory, &mut next_frame);
            // Some versions keep marks in the lowest bits.
            let mark = if layout.entry == entry::FRAME { (code / APART) & 7 } else { 0 };
            memory.set(at + u64::from(layout.code), code | mark);
            let pointer = match layout.first_instruction {
                0 => u64::from(instruction) | 0x5555 << 32,
                first => code + u64::from(first) + 2 * u64::from(instruction),
            };
            memory.set(at + u64::from(layout.instruction), pointer);
            if layout.entry == entry::CFRAME && is_last {
                memory.set_byte(at + u64::from(layout.owner), 1);
            }
            let words = [8, 16, 24, 32].map(|word| code + word);
            for (word, at) in words.into_iter().zip((code + u64::from(layout.check)..).step_by(8)) {
                memory.set(at, word);
            }
            let mut name_hash = 0;
            if layout.checked_name != NONE {
                let name = words[usize::from((layout.checked_name - layout.check) / 8)];
                name_hash = code ^ 0x1234;
                memory.set(name + u64::from(TEXT_HASH), name_hash);
            }
            found.push(Frame::Code { code, instruction, check: check(&words, name_hash) });
            if has_record || layout.entry == entry::EACH {
                found.push(Frame::Entry { record });
            }
        }
        if layout.entry == entry::FRAME {
            let at = add_frame(&mut memory, &mut next_frame);
            memory.set_byte(at + u64::from(layout.owner), 3);
            found.push(Frame::Entry { record: at });
        }
    }
    memory.set(next_frame, 0);
    if layout.state_cframe != NONE {
        memory.set(next_cframe, 0);
    }
    (memory, found)
}

/// Up to so many frames, and why there are no more.
fn walk(layout: &Layout, memory: &mut Words, most: usize) -> (Vec<Frame>, Option<Stop>) {
    let mut found = Vec::new();
    let mut chain = match begin(layout, THREAD, memory) {
        Ok(chain) => chain,
        Err(stop) => return (found, Some(stop)),
    };
    for _ in 0..most {
        match step(layout, &mut chain, memory) {
            Ok(Step { code, entry }) => found.extend(code.into_iter().chain(entry)),
            Err(stop) => return (found, Some(stop)),
        }
    }
    (found, None)
}

#[test]
fn a_thread_without_a_state_or_frames_runs_none() {
    for layout in LAYOUTS {
        let nothing = (Vec::new(), Some(Stop::Complete));
        let mut memory = Words::default();
        assert_eq!(walk(layout, &mut memory, 9).1, Some(Stop::Unreadable));
        memory.set(THREAD.wrapping_add(layout.slot.cast_unsigned()), 0);
        assert_eq!(walk(layout, &mut memory, 9), nothing);
    }
    let (mut memory, _) = thread(&BY_FRAME, &[]);
    assert_eq!(walk(&BY_FRAME, &mut memory, 9), (Vec::new(), Some(Stop::Complete)));
}

#[test]
fn an_instruction_outside_of_the_code_is_not_known() {
    let calls = [vec![(CODES, 5)]];
    let (mut memory, _) = thread(&BY_FRAME, &calls);
    for (pointer, expected) in [
        (CODES + 200 + 2 * u64::from(NO_INSTRUCTION - 1), NO_INSTRUCTION - 1),
        (CODES + 200 + 2 * u64::from(NO_INSTRUCTION), NO_INSTRUCTION),
        // Before the first, as in a frame that has only just begun, and elsewhere.
        (CODES + 198, NO_INSTRUCTION),
        (0, NO_INSTRUCTION),
        (u64::MAX, NO_INSTRUCTION),
    ] {
        memory.set(FRAMES + 56, pointer);
        let (found, _) = walk(&BY_FRAME, &mut memory, 1);
        assert!(
            matches!(found[..], [Frame::Code { instruction, .. }] if instruction == expected),
            "{pointer:x} {found:?}"
        );
    }
}

#[test]
fn a_code_object_that_can_not_be_read_has_no_check() {
    let (mut memory, _) = thread(&BY_FRAME, &[vec![(CODES, 5)]]);
    memory.words.remove(&(CODES + 120));
    let (found, stop) = walk(&BY_FRAME, &mut memory, 9);
    assert_eq!(found[0], Frame::Code { code: CODES, instruction: 5, check: 0 });
    assert_eq!(stop, Some(Stop::Complete));
}

#[test]
fn a_chain_ends_where_it_leads_nowhere() {
    for layout in LAYOUTS {
        let (mut memory, frames) = thread(layout, &[vec![(CODES, 1), (CODES + APART, 2)]]);
        for wild in [1, FRAMES + 4, u64::MAX, u64::MAX - 7, 0xffff_8000_0000_0000] {
            memory.set(FRAMES + u64::from(layout.back), wild);
            let (found, stop) = walk(layout, &mut memory, 9);
            assert_eq!(stop, Some(Stop::Unreadable), "{wild:x}");
            assert_eq!(found[0], frames[0]);
        }
        // And one that leads to itself only where the caller has enough.
        memory.set(FRAMES + u64::from(layout.back), FRAMES);
        assert_eq!(walk(layout, &mut memory, 100).1, None);
    }
}

proptest! {
    #[test]
    fn all_frames_are_found(calls in prop::collection::vec(
        prop::collection::vec((0..40_u64, 0..NO_INSTRUCTION), 1..6), 1..8))
    {
        let calls: Vec<Vec<(u64, u32)>> = calls.into_iter().map(|call| {
            call.into_iter().map(|(code, instruction)| (CODES + code * APART, instruction)).collect()
        }).collect();
        for layout in LAYOUTS {
            let (mut memory, frames) = thread(layout, &calls);
            prop_assert_eq!(walk(layout, &mut memory, 100), (frames, Some(Stop::Complete)));
        }
    }

    #[test]
    fn any_memory_and_layout_can_be_walked(
        layout in any_layout(),
        words in prop::collection::vec((0..64_u64, 0..64_u64), 0..64),
    ) {
        // All addresses lie close to each other, so that most lead somewhere.
        let mut memory = Words::default();
        for (at, value) in words {
            memory.set(THREAD + at * 8, if value == 0 { 0 } else { THREAD + value * 8 });
        }
        let (found, _) = walk(&layout, &mut memory, 50);
        prop_assert!(found.len() <= 100);
    }
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let field = || prop_oneof![0..64_u16, Just(NONE), any::<u16>()];
    let slot = prop_oneof![-64_i64..512, any::<i64>()];
    let table = prop_oneof![Just(DIRECT), -64..512, any::<i32>()];
    let fields = prop::array::uniform11(field());
    let bytes = (any::<u8>(), any::<u8>(), 0..=FRAME_BYTES);
    (slot, table, fields, bytes).prop_map(|(slot, slot_in_table, fields, bytes)| {
        let [state_frame, state_cframe, cframe_frame, cframe_back, code, back, ..] = fields;
        let [.., instruction, owner, first_instruction, check, checked_name] = fields;
        let (entry_owner, entry, frame_bytes) = bytes;
        Layout {
            slot,
            slot_in_table,
            state_frame,
            state_cframe,
            cframe_frame,
            cframe_back,
            code,
            back,
            instruction,
            owner,
            entry_owner,
            entry,
            first_instruction,
            check,
            checked_name,
            frame_bytes,
            reserved: 0,
        }
    })
}
