//! The rule of a function's frame, by how much of the stack it has taken.

use profiler_common::unwind::rule::{Cfa, Rule, Saved};

/// What is known of functions that do not keep to their stack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Usual,
    /// It goes to the system's stack and back, with the frame pointer where it was.
    Moves,
    /// It goes to the system's stack for good, and calls what is the outermost frame there.
    Leaves,
    /// The same all over: the outermost frame of a goroutine or a thread, the end of a signal, or what
    /// was called on another stack.
    Whole(u8),
}

/// The rule of a frame that has taken so many bytes of the stack, where a call pushes the return address.
pub(super) fn rule(taken: u32, kind: Kind) -> Rule {
    let Some(cfa_offset) = taken.checked_add(8).and_then(|it| i32::try_from(it).ok()) else {
        return Rule::of(Cfa::UNSUPPORTED);
    };
    let by_sp = Rule { cfa_offset, ra: Saved::AT_CFA, ra_words: -1, ..Rule::of(Cfa::SP) };
    match (taken, kind) {
        // A function that takes nothing of the stack leaves the frame pointer, too.
        (0, _) => by_sp,
        (_, Kind::Moves) => {
            Rule { cfa: Cfa::FP, cfa_offset: 16, fp: Saved::AT_CFA, fp_words: -2, ..by_sp }
        }
        (_, Kind::Leaves) => Rule::of(Cfa::END),
        _ => Rule { fp: Saved::AT_CFA, fp_words: -2, ..by_sp },
    }
}

/// The same where a call leaves the return address in the link register: a function that takes anything of
/// the stack saves that at the bottom of its frame, and the frame pointer right below.
pub(super) fn rule_with_link(taken: u32, kind: Kind) -> Rule {
    let entered = Rule { ra: Saved::SAME, ..Rule::of(Cfa::SP) };
    let words = i16::try_from(taken / 8).ok().filter(|_| taken.is_multiple_of(8));
    let Some(words) = words else { return Rule::of(Cfa::UNSUPPORTED) };
    let saved = Rule {
        // No more than fits into 16 bits, and three.
        cfa_offset: i32::from(words) * 8,
        ra: Saved::AT_CFA,
        ra_words: -words,
        fp: Saved::AT_CFA,
        fp_words: (-words).saturating_sub(1),
        ..entered
    };
    match (taken, kind) {
        (0, _) => entered,
        (_, Kind::Moves) => Rule { cfa: Cfa::FP, cfa_offset: saved.cfa_offset + 8, ..saved },
        (_, Kind::Leaves) => Rule::of(Cfa::END),
        _ => saved,
    }
}
