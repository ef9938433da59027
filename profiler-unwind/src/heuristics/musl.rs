//! musl's code around signal handlers, `main` and thread functions (x86-64), recognized by its bytes: musl has no
//! unwind information at all.

use std::ops::Range;

use profiler_common::unwind::rule::{Cfa, Rule};

/// What a handler returns to ends the signal: system call 15.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
const MOV_15_RAX: [u8; 7] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0];
const MOV_15_EAX: [u8; 5] = [0xb8, 15, 0, 0, 0];
/// With these before it, that is a move to another register.
const REX: Range<u8> = 0x40..0x50;

/// What was called gives a number or a pointer, which is handed on.
const MOV_EAX_EDI: [u8; 2] = [0x89, 0xc7];
const MOV_RAX_RDI: [u8; 3] = [0x48, 0x89, 0xc7];
const MOVSLQ_EAX_RDI: [u8; 3] = [0x48, 0x63, 0xf8];
const CALL: u8 = 0xe8;
const CALL_BYTES: usize = 5;
/// The most places of a file. musl has fewer than ten.
pub(crate) const MAX_PLACES: usize = 64;

/// The rules of such places in `bytes`, which are code without unwind information at an offset in the file. `exits`
/// has the offsets of functions that end a program or a thread.
pub(crate) fn rules(bytes: &[u8], offset: u64, exits: &[u64]) -> Vec<(Range<u64>, Rule)> {
    let mut found = Vec::new();
    for (at, pair) in bytes.windows(2).enumerate() {
        let place = match *pair {
            _ if pair == SYSCALL => signal_end(bytes, at).map(|it| (it, Cfa::SIGNAL)),
            [CALL, _] if !exits.is_empty() => {
                start(bytes, at, offset, exits).map(|it| (it, Cfa::END))
            }
            _ => None,
        };
        if let Some((Range { start, end }, cfa)) = place {
            let range = offset.saturating_add(start as u64)..offset.saturating_add(end as u64);
            found.push((range, Rule::of(cfa)));
            if found.len() == MAX_PLACES {
                break;
            }
        }
    }
    found
}

/// The end of a signal with its system call at `at`. A handler returns to its first byte, and return
/// addresses are looked up one byte before; while the kernel is at it, the program counter is behind.
fn signal_end(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let before = bytes.get(..at)?;
    let start = if before.ends_with(&MOV_15_RAX) {
        at.checked_sub(MOV_15_RAX.len())?
    } else if before.ends_with(&MOV_15_EAX) {
        let start = at.checked_sub(MOV_15_EAX.len())?;
        if start.checked_sub(1).and_then(|it| bytes.get(it)).is_some_and(|it| REX.contains(it)) {
            return None;
        }
        start
    } else {
        return None;
    };
    let end = at.checked_add(SYSCALL.len() + 1)?;
    Some(start.saturating_sub(1)..end.min(bytes.len()))
}

/// Where something is called by a pointer, and what it returns handed to one of `exits` by the call at
/// `at`: nothing that matters calls that.
fn start(bytes: &[u8], at: usize, offset: u64, exits: &[u64]) -> Option<Range<usize>> {
    let end = at.checked_add(CALL_BYTES)?;
    let distance = i32::from_le_bytes(*bytes.get(at..end)?.last_chunk()?);
    let target = offset.checked_add(end as u64)?.wrapping_add_signed(distance.into());
    if !exits.contains(&target) {
        return None;
    }
    let before = bytes.get(..at)?;
    let moves = [&MOV_RAX_RDI[..], &MOVSLQ_EAX_RDI, &MOV_EAX_EDI];
    let call = moves.iter().find_map(|it| before.strip_suffix(*it))?;
    // `call *%rbx`, `call *(%rbx)`, `call *8(%rbx)`
    let is_by_pointer = matches!(
        *call,
        [.., 0xff, 0xd0..=0xd7 | 0x10..=0x13 | 0x16..=0x17]
            | [.., 0xff, 0x50..=0x53 | 0x55..=0x57, _]
    );
    is_by_pointer.then(|| call.len().saturating_sub(1)..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(bytes: &[u8]) -> Vec<(Range<u64>, u8)> {
        let found = rules(bytes, 0x1000, &[0x1100]);
        found.into_iter().map(|(range, rule)| (range, rule.cfa)).collect()
    }

    #[test]
    fn the_end_of_a_signal_is_known() {
        // nop; mov $15, %rax; syscall; nop
        let musl = [&[0x90][..], &MOV_15_RAX, &SYSCALL, &[0x90; 4]].concat();
        assert_eq!(found(&musl), [(0x1000..0x100b, Cfa::SIGNAL)]);
        // Of 32 bits, and with nothing around it.
        let short = [&MOV_15_EAX[..], &SYSCALL].concat();
        assert_eq!(found(&short), [(0x1000..0x1007, Cfa::SIGNAL)]);
        // mov $15, %r8d; another system call; another instruction
        for other in [
            [&[0x41][..], &MOV_15_EAX, &SYSCALL].concat(),
            [&[0x90, 0xb8, 14, 0, 0, 0][..], &SYSCALL].concat(),
            [&MOV_15_RAX[..], &[0x0f, 0x0b]].concat(),
        ] {
            assert_eq!(found(&other), [], "{other:x?}");
        }
    }

    #[test]
    fn what_calls_main_or_a_threads_function_is_known() {
        let calls = |before: &[u8], target: i32| {
            let end = i32::try_from(before.len() + CALL_BYTES).unwrap();
            [before, &[CALL], &(target - end).to_le_bytes()].concat()
        };
        for (before, start) in [
            (&[0x90, 0xff, 0xd3, 0x89, 0xc7][..], 0x1002),
            (&[0x41, 0xff, 0xd4, 0x89, 0xc7], 0x1002),
            (&[0x90, 0xff, 0x13, 0x48, 0x89, 0xc7], 0x1002),
            (&[0xff, 0x50, 0x08, 0x48, 0x63, 0xf8], 0x1002),
        ] {
            let end = 0x1000 + before.len() as u64 + 5;
            assert_eq!(found(&calls(before, 0x100)), [(start..end, Cfa::END)], "{before:x?}");
            // Another function.
            assert_eq!(found(&calls(before, 0x101)), []);
        }
        // Not by a pointer; with something else.
        assert_eq!(found(&calls(&[0xe8, 0, 0, 0, 0, 0x89, 0xc7], 0x100)), []);
        assert_eq!(found(&calls(&[0xff, 0xd3, 0x31, 0xff], 0x100)), []);
        assert_eq!(found(&calls(&[], 0x100)), []);
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_harm(
            parts in prop::collection::vec(
                prop_oneof![
                    Just(MOV_15_RAX.to_vec()),
                    Just(SYSCALL.to_vec()),
                    Just(MOV_15_EAX.to_vec()),
                    Just(vec![0xff, 0xd3, 0x89, 0xc7, CALL]),
                    prop::collection::vec(any::<u8>(), 0..6),
                ],
                0..20,
            ),
            offset in prop_oneof![Just(0), Just(u64::MAX), any::<u64>()],
        ) {
            let bytes = parts.concat();
            for (range, _) in rules(&bytes, offset, &[0, u64::MAX, offset]) {
                prop_assert!(range.start >= offset && range.start <= range.end);
            }
        }
    }
}
