//! Profiles that were written before, by us or by another program: from bytes to what is in them.
//!
//! Files may be anybody's. What they can make us allocate is [limited](Limits), and what is wrong with them is
//! said with its place.

mod counted;
mod filter;
pub mod folded;
pub mod pprof;
mod wire;

use std::{borrow::Cow, sync::Arc};

pub use self::{counted::Counted, filter::Filter};

/// What a file may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Its bytes, decompressed.
    pub bytes: usize,
    /// Things in it: stacks with their frames, labels and values, and what these refer to. Each takes at most some
    /// 100 bytes of memory beside its text.
    pub things: usize,
}

/// Enough for a million stacks.
impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 1 << 30, things: 1 << 26 }
    }
}

/// Why a file is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is larger than is allowed.
    #[error("it has more than {limit} bytes, decompressed")]
    TooLarge {
        /// [`Limits::bytes`].
        limit: usize,
    },
    /// Its stacks take too much memory where they are counted.
    #[error("its stacks take more than {limit} bytes of memory")]
    Memory {
        /// What they may take.
        limit: usize,
    },
    /// There is more in it than is allowed.
    #[error("it has more than {limit} frames, labels and values")]
    TooMany {
        /// [`Limits::things`].
        limit: usize,
    },
    /// It can't be decompressed.
    #[error("it can't be decompressed after the first {bytes} bytes that came out: {why}")]
    Gzip {
        /// How much came out before.
        bytes: usize,
        /// What the decoder says.
        why: String,
    },
    /// A message is not as it must be.
    #[error("byte {at} of the decompressed profile: {what}")]
    Byte {
        /// Where it begins, from 0 on.
        at: usize,
        /// What is wrong.
        what: String,
    },
    /// It can't be written as samples.
    #[error("a stack has the value {value}: differences of profiles have no samples to write")]
    Negative {
        /// The first such value.
        value: i64,
    },
    /// A line is not as it must be.
    #[error("line {line}: {what}")]
    Line {
        /// Which, from 1 on.
        line: usize,
        /// What is wrong.
        what: String,
    },
}

/// A profile as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// What the values of a stack are.
    pub value_types: Vec<ValueType>,
    /// Which of them its writer would show first.
    pub default_value: usize,
    /// What stacks refer to.
    pub frames: Vec<Frame>,
    /// The stacks, in the order of the file. A stack may come twice.
    pub stacks: Vec<Stack>,
    /// When it was begun; nanoseconds since 1970, if it says so.
    pub begun_ns: Option<i64>,
    /// How long it took in nanoseconds, if it says so.
    pub duration_ns: Option<i64>,
    /// What was sampled, and how much of it lies between two samples, if it says so.
    pub period: Option<(ValueType, i64)>,
    /// What its writer says of it, for people.
    pub comments: Vec<String>,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueType {
    /// Such as `samples` or `cpu`.
    pub name: Arc<str>,
    /// Such as `count` or `nanoseconds`.
    pub unit: Arc<str>,
}

/// A function on a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Its name.
    pub name: Option<Arc<str>>,
    /// The source file.
    pub file: Option<Arc<str>>,
    /// The line there.
    pub line: Option<u32>,
    /// The file that the code is in, or what stands for it, such as `[vdso]`.
    pub module: Option<Arc<str>>,
    /// That file's build id in hex digits.
    pub build_id: Option<Arc<str>>,
    /// Where there is no name, the address that the file gives.
    pub address: Option<u64>,
    /// Whether it is the kernel's code.
    pub is_kernel: bool,
    /// Whether it was inlined into its caller.
    pub inlined: bool,
}

/// A stack, and what was sampled of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Places in [`Imported::frames`], innermost first.
    pub frames: Vec<u32>,
    /// Whose it is.
    pub labels: Vec<Label>,
    /// As many as there are [types](Imported::value_types). Differences of profiles have negative ones.
    pub values: Vec<i64>,
}

/// Something that is known of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// What, such as `pid`.
    pub key: Arc<str>,
    /// Its value.
    pub value: LabelValue,
}

/// What a label says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelValue {
    /// A text.
    Text(Arc<str>),
    /// A number.
    Number(i64),
}

impl Stack {
    /// What its label of this key says.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&LabelValue> {
        self.labels.iter().find(|it| &*it.key == key).map(|it| &it.value)
    }
}

impl LabelValue {
    /// The same as text.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Number(number) => Cow::Owned(number.to_string()),
        }
    }
}

/// What stands in the place of a name that there is not.
pub(crate) const UNKNOWN: &str = "[unknown]";

impl Frame {
    /// Whether its name is what stands for one that is not known: its file in brackets.
    #[must_use]
    pub(crate) fn is_unnamed(&self) -> bool {
        let Some(name) = self.name.as_deref().filter(|name| !name.trim().is_empty()) else {
            return true;
        };
        let module = self.module.as_deref().unwrap_or(UNKNOWN);
        let file = module.rsplit('/').next().unwrap_or(module).trim_matches(['[', ']']);
        name.strip_prefix('[').and_then(|it| it.strip_suffix(']')) == Some(file)
    }

    /// What people call it: its name, or else the file that it is in.
    #[must_use]
    pub fn shown_name(&self) -> &str {
        let name = self.name.as_deref().filter(|name| !name.trim().is_empty());
        name.or(self.module.as_deref()).unwrap_or(UNKNOWN)
    }
}

impl Imported {
    /// The process of a stack: as a label says, or else the outermost frame, as folded stacks have it.
    #[must_use]
    pub fn process_of<'a>(&'a self, stack: &'a Stack) -> Cow<'a, str> {
        let text = |key: &str| stack.label(key).map(LabelValue::text);
        let root = || self.frames_of(stack).next_back().map(|it| it.shown_name().into());
        let named = text("process").or_else(|| text("comm"));
        named.or_else(root).unwrap_or(Cow::Borrowed(UNKNOWN))
    }

    /// Adds another profile of the same values, taken before or after; `false`, and nothing is added, where its values are
    /// others, or both together have too many frames.
    pub fn append(&mut self, other: Self) -> bool {
        let Ok(offset) = u32::try_from(self.frames.len()) else { return false };
        let has_room =
            u32::try_from(other.frames.len()).is_ok_and(|it| offset.checked_add(it).is_some());
        if self.value_types != other.value_types || !has_room {
            return false;
        }
        self.frames.extend(other.frames);
        self.stacks.extend(other.stacks.into_iter().map(|mut stack| {
            stack.frames.iter_mut().for_each(|place| *place = place.saturating_add(offset));
            stack
        }));
        // What is said of one is not true of both.
        self.comments.retain(|it| other.comments.contains(it));
        self.begun_ns = [self.begun_ns, other.begun_ns].into_iter().flatten().min();
        let both = self.duration_ns.zip(other.duration_ns);
        self.duration_ns = both.map(|(one, other)| one.saturating_add(other));
        true
    }

    /// The frames of a stack, innermost first.
    pub fn frames_of(&self, stack: &Stack) -> impl DoubleEndedIterator<Item = &Frame> {
        let place = |place: &u32| usize::try_from(*place).ok();
        stack.frames.iter().filter_map(place).filter_map(|place| self.frames.get(place))
    }

    /// The sum of each value over all stacks.
    #[must_use]
    pub fn totals(&self) -> Vec<i128> {
        let mut totals = vec![0_i128; self.value_types.len()];
        for stack in &self.stacks {
            for (total, value) in totals.iter_mut().zip(&stack.values) {
                *total += i128::from(*value);
            }
        }
        totals
    }
}

/// How many things may still come.
#[derive(Debug)]
struct Budget {
    left: usize,
    limit: usize,
}

impl Budget {
    fn new(limit: usize) -> Self {
        Self { left: limit, limit }
    }

    /// Whether so many may still come.
    fn has(&self, things: usize) -> Result<(), Error> {
        if things > self.left { Err(Error::TooMany { limit: self.limit }) } else { Ok(()) }
    }

    /// Takes some of it.
    fn take(&mut self, things: usize) -> Result<(), Error> {
        let left = self.left.checked_sub(things);
        self.left = left.ok_or(Error::TooMany { limit: self.limit })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(function: &str, begun_ns: i64, unit: &str) -> Imported {
        Imported {
            value_types: vec![ValueType { name: "samples".into(), unit: unit.into() }],
            frames: vec![Frame { name: Some(function.into()), ..Frame::default() }],
            stacks: vec![Stack { frames: vec![0], values: vec![3], ..Stack::default() }],
            begun_ns: Some(begun_ns),
            duration_ns: Some(10),
            comments: vec!["profiler".into(), function.into()],
            ..Imported::default()
        }
    }

    #[test]
    fn profiles_that_come_one_after_another_are_one() {
        let mut all = profile("a", 20, "count");
        assert!(all.append(profile("b", 5, "count")));
        let names: Vec<_> =
            all.stacks.iter().map(|it| all.frames_of(it).next().unwrap().shown_name()).collect();
        assert_eq!((names, all.totals()), (vec!["a", "b"], vec![6]));
        assert_eq!((all.begun_ns, all.duration_ns), (Some(5), Some(20)));
        assert_eq!(all.comments, ["profiler"]);
        // What counts something else is no part of it.
        let before = all.clone();
        assert!(!all.append(profile("c", 0, "nanoseconds")));
        assert_eq!(all, before);
    }
}
