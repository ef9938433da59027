//! Where the text is wrong, and how.

use crate::cache::NoSuchOp;

/// Text that names no events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {problem}")]
pub struct SyntaxError {
    /// The first character in question, counted from 1.
    pub column: usize,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong at one place of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Something else has to be there.
    #[error("expected {what}, found {}", shown(*found))]
    Expected {
        /// What would be right.
        what: &'static str,
        /// What is there, if anything.
        found: Option<char>,
    },
    /// Parentheses in parentheses in parentheses.
    #[error("nested too deeply")]
    TooDeep,
    /// A number that no field can have.
    #[error("{what} is too large a number; the largest is {largest:#x}")]
    TooLarge {
        /// As it was typed.
        what: String,
        /// What would be right.
        largest: u64,
    },
    /// A length that no breakpoint has.
    #[error("a breakpoint is 1 to 8 bytes long, not {0}")]
    Length(u64),
    /// The processor's enum has no such event.
    #[error(transparent)]
    NoSuchOp(#[from] NoSuchOp),
    /// A letter that means nothing.
    #[error("no modifier `{letter}`; there are {known}", known = super::modifiers::KNOWN)]
    UnknownModifier {
        /// That letter.
        letter: char,
    },
    /// A letter of `perf`'s that asks for what we don't do.
    #[error("the modifier `{letter}` is not supported: {why}")]
    RefusedModifier {
        /// That letter.
        letter: char,
        /// What it asks for, and what to do.
        why: &'static str,
    },
    /// A letter that means nothing the second time.
    #[error("the modifier `{letter}` is there twice")]
    RepeatedModifier {
        /// That letter.
        letter: char,
    },
    /// `pppp`, or `pP`.
    #[error("give one of p, pp, ppp and P; with those of its group, an event has at most ppp")]
    TooPrecise,
    /// A modifier that the kernel takes for the first event of a group only.
    #[error("`{letter}` is for a group's first event, or for the group: `{{...}}:{letter}`")]
    LeaderOnly {
        /// That letter.
        letter: char,
    },
}

fn shown(found: Option<char>) -> String {
    match found {
        None => "the end".into(),
        Some(letter) if letter.is_control() => format!("`{}`", letter.escape_default()),
        Some(letter) => format!("`{letter}`"),
    }
}
