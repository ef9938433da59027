//! The stacks of a snapshot as functions by number: what every view is made from.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{FunctionName, Line, Snapshot};
use crate::{
    export::folded::{name, task_name},
    frame::{Frame, Origin},
    printable::printable,
    stack::StackId,
};

/// What a function is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// No function: all processes of a name.
    Process,
    /// A program.
    User,
    /// A library.
    Library,
    /// Code that was made at run time.
    Made,
    /// Code that an interpreter runs.
    Interpreted,
    /// The kernel.
    Kernel,
}

/// A function. Those of one name in two files are two.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Function {
    /// What it is called.
    pub name: Arc<FunctionName>,
    /// What it is part of.
    pub kind: Kind,
    /// Whether it has a name of its own.
    pub is_named: bool,
}

/// The name and the module by where they lie, which tells most frames apart without a look at the text.
type Seen = (usize, usize, bool);

/// What an entry of a hash table takes beside itself, about.
const TABLE_BYTES: usize = 16;

/// After so many snapshots all is made anew, so that functions are forgotten that no stack has any more.
const ROUNDS: u64 = 240;

/// Half a stack that was in a snapshot before.
#[derive(Debug)]
struct Half {
    /// Its functions, outermost first.
    calls: Box<[usize]>,
    /// When it was there last.
    round: u64,
}

/// The stacks of a snapshot, by the place of their line.
#[derive(Debug, Default)]
pub struct Stacks {
    lines: Vec<Line>,
    functions: Vec<Function>,
    by_name: FxHashMap<Arc<FunctionName>, usize>,
    /// The functions of all stacks, outermost first, one stack behind the other, and where each ends.
    calls: Vec<usize>,
    ends: Vec<usize>,
    /// Most of a snapshot was in the one before. The second part says whether it is the kernel's half.
    halves: FxHashMap<(StackId, bool), Half>,
    round: u64,
}

impl Stacks {
    /// Those of a snapshot.
    #[must_use]
    pub fn of(snapshot: Snapshot) -> Self {
        let mut stacks = Self::default();
        stacks.take(snapshot);
        stacks
    }

    /// Those of the next snapshot of the same window. Functions may have other numbers.
    pub fn take(&mut self, snapshot: Snapshot) {
        self.round += 1;
        if self.round.is_multiple_of(ROUNDS) {
            *self = Self { round: self.round, ..Self::default() };
        }
        (self.calls, self.ends) = (Vec::new(), Vec::with_capacity(snapshot.lines.len()));
        let mut seen: FxHashMap<Seen, usize> = FxHashMap::default();
        for line in &snapshot.lines {
            for (half, is_kernel) in [(&line.entry.user, false), (&line.entry.kernel, true)] {
                let key = (half.id(), is_kernel);
                if !self.halves.contains_key(&key) {
                    let calls = half.frames().rev().map(|(_, frame)| {
                        let symbol = (place(frame.symbol.as_ref()), place(frame.module.as_ref()));
                        *seen.entry((symbol.0, symbol.1, is_kernel)).or_insert_with(|| {
                            number(
                                &mut self.functions,
                                &mut self.by_name,
                                of_frame(frame, is_kernel),
                            )
                        })
                    });
                    let calls = calls.collect();
                    self.halves.insert(key, Half { calls, round: self.round });
                }
                if let Some(half) = self.halves.get_mut(&key) {
                    half.round = self.round;
                    self.calls.extend_from_slice(&half.calls);
                }
            }
            self.ends.push(self.calls.len());
        }
        let round = self.round;
        self.halves.retain(|_, half| half.round == round);
        self.lines = snapshot.lines;
    }

    /// The samples that the stacks are of.
    #[must_use]
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Bytes that all of it takes, about, with the stacks that the window may have given up by now left out.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of_half = size_of::<((StackId, bool), Half)>() + TABLE_BYTES;
        let calls: usize = self.halves.values().map(|it| size_of_val(&*it.calls)).sum();
        let names = |it: &Function| it.name.name.len() + it.name.module.len();
        let texts: usize = self.functions.iter().map(names).sum();
        // Both share the name.
        let of_function = size_of::<Function>()
            + size_of::<(Arc<FunctionName>, usize)>()
            + size_of::<FunctionName>()
            + TABLE_BYTES;
        [
            size_of_val(&*self.lines),
            size_of_val(&*self.calls),
            size_of_val(&*self.ends),
            self.halves.len().saturating_mul(of_half),
            calls,
            self.functions.len().saturating_mul(of_function),
            texts,
        ]
        .into_iter()
        .fold(0, usize::saturating_add)
    }

    /// The functions of a stack, outermost first.
    #[must_use]
    pub fn calls_of(&self, stack: usize) -> &[usize] {
        let begin = stack.checked_sub(1).and_then(|it| self.ends.get(it)).copied().unwrap_or(0);
        let end = self.ends.get(stack).copied().unwrap_or(begin);
        self.calls.get(begin..end).unwrap_or_default()
    }

    /// How many samples have a stack.
    #[must_use]
    pub fn count_of(&self, stack: usize) -> u64 {
        self.lines.get(stack).map_or(0, |it| it.count)
    }

    /// A function by its number.
    #[must_use]
    pub fn get(&self, function: usize) -> Option<&Function> {
        self.functions.get(function)
    }

    /// All functions, by number.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The number of a function.
    #[must_use]
    pub fn find(&self, name: &FunctionName) -> Option<usize> {
        self.by_name.get(name).copied()
    }
}

/// The number of a function, which may be new.
fn number(
    functions: &mut Vec<Function>,
    by_name: &mut FxHashMap<Arc<FunctionName>, usize>,
    function: Function,
) -> usize {
    let next = functions.len();
    let place = *by_name.entry(Arc::clone(&function.name)).or_insert(next);
    if place == next {
        functions.push(function);
    }
    place
}

/// What a process is called at the outside of a stack, printable.
pub(super) fn process_name(line: &Line) -> String {
    task_name(&line.entry.task.process_name())
}

fn of_frame(frame: &Frame, is_kernel: bool) -> Function {
    let module = frame.module.as_deref().unwrap_or(if is_kernel { "[kernel]" } else { "" });
    let file = module.rsplit('/').next().unwrap_or(module);
    let is_made = matches!(
        frame.origin,
        Origin::PerfMap | Origin::Jitdump | Origin::NoMap | Origin::OldMap | Origin::BadMap
    );
    let kind = if is_kernel {
        Kind::Kernel
    } else if frame.origin.is_interpreted() {
        Kind::Interpreted
    } else if is_made {
        Kind::Made
    } else if file.split('.').skip(1).any(|it| it == "so") || file.starts_with("[vdso") {
        Kind::Library
    } else {
        Kind::User
    };
    let name = FunctionName {
        name: printable(&name(frame)).into_owned(),
        module: printable(module).into_owned(),
    };
    Function { name: Arc::new(name), kind, is_named: frame.name().is_some() }
}

/// Where a text lies in memory. What is held lies where nothing else does.
fn place(text: Option<&Arc<str>>) -> usize {
    text.map_or(0, |text| Arc::as_ptr(text).cast::<u8>().addr())
}
