//! Walks of copied stacks, where the eBPF program was not told in time what its own walk needs: what a
//! process has mapped that began a moment ago, or the table of a file.

use std::rc::Rc;

use profiler_common::{
    sample::{INTERRUPTED, UserEnd},
    unwind::{
        Native,
        rule::{Cfa, Rule},
        step::{Arch as _, Caller, Memory, Registers, step},
    },
};
use rustc_hash::FxHashMap;

use super::{Rules, Table, builder, places::Key};
use crate::{
    process::{
        maps::Backing,
        space::{Mapped, Space},
    },
    sample::StackCopy,
};

/// What tables may take; beyond it all are made again.
const LIMIT_BYTES: usize = 64 << 20;

/// Makes the tables that it needs, and keeps them.
#[derive(Debug)]
pub struct Walker {
    or_frame_pointers: bool,
    frame_limit: usize,
    /// `None` of files that say nothing of their frames.
    tables: FxHashMap<Key, Option<Rc<Described>>>,
    bytes: usize,
    walked: u64,
}

#[derive(Debug)]
struct Described {
    table: Table,
    rules: Rules,
}

/// A stack as it was walked.
#[derive(Debug, PartialEq, Eq)]
pub struct Walked {
    /// The addresses, innermost first, in the machine's byte order.
    pub addresses: Vec<u8>,
    /// How it has ended.
    pub end: UserEnd,
}

impl Walker {
    /// One that finds so many frames at most, also by frame pointers where there is no table.
    #[must_use]
    pub fn new(frame_limit: u32, or_frame_pointers: bool) -> Self {
        Self {
            or_frame_pointers,
            frame_limit: usize::try_from(frame_limit).unwrap_or(usize::MAX),
            tables: FxHashMap::default(),
            bytes: 0,
            walked: 0,
        }
    }

    /// How many stacks were walked.
    #[must_use]
    pub fn walked(&self) -> u64 {
        self.walked
    }

    /// Walks up from an address, by what was mapped at a time. `None` if what it needs is not known here
    /// either; `cut` is how a walk ends that has come to the end of the copy.
    pub fn walk(
        &mut self,
        pc: u64,
        copy: &StackCopy<'_>,
        space: &Space,
        time_ns: u64,
        cut: UserEnd,
    ) -> Option<Walked> {
        let register = |number: u16| copy.register(usize::from(number));
        let (sp, fp) = (register(Native::SP)?, register(Native::FP)?);
        let lr = if Native::CALL_PUSHES { 0 } else { register(Native::RA)? };
        let mut frame = Registers { pc, sp, fp, lr };
        let mut stack = Stack { copy, start: sp, is_sampled: true, is_behind: false };
        let mut addresses = Vec::new();
        let (mut is_return, mut is_guess) = (0, false);
        let end = loop {
            let found = self.rule_at(space, frame.pc.wrapping_sub(is_return), time_ns);
            let rule = match found {
                Ok(rule) => rule,
                // The frame pointer did not lead to code, so this is no frame.
                Err(UserEnd::NotMapped) if is_guess => break UserEnd::NoUnwindInfo,
                Err(_) => return None,
            };
            if addresses.len() >= self.frame_limit {
                break UserEnd::Depth;
            }
            let is_interrupted = is_return == 0 && !stack.is_sampled;
            addresses.push(if is_interrupted { frame.pc | INTERRUPTED } else { frame.pc });
            is_guess = rule.cfa == Cfa::UNKNOWN;
            if is_guess && !self.or_frame_pointers {
                break UserEnd::NoUnwindInfo;
            }
            let stepped = step::<Native>(&rule, &mut frame, &mut stack);
            stack.is_sampled = false;
            match stepped {
                Ok(caller) => is_return = u64::from(caller == Caller::Called),
                Err(_) if stack.is_behind && !copy.is_empty() => break cut,
                Err(stop) => break UserEnd::of_stop(stop, is_guess, true),
            }
        };
        self.walked += 1;
        let addresses = addresses.iter().flat_map(|it| it.to_ne_bytes()).collect();
        Some(Walked { addresses, end })
    }

    /// The rule for an address.
    fn rule_at(&mut self, space: &Space, pc: u64, time_ns: u64) -> Result<Rule, UserEnd> {
        let unknown = Ok(Rule::of(Cfa::UNKNOWN));
        let mapping = space.find(pc, time_ns).ok_or(UserEnd::NotMapped)?;
        let (key, offset) = match &mapping.backing {
            Backing::Anonymous => return unknown,
            // The kernel gives its address for its offset.
            Backing::Vdso => (Key::Vdso, pc.wrapping_sub(mapping.start)),
            Backing::File(file) => {
                (Key::File(file.key().ok_or(UserEnd::NotLoaded)?), mapping.file_offset_of(pc))
            }
        };
        let Some(described) = self.described(key, mapping)? else { return unknown };
        let number = described.table.find(offset).unwrap_or(Rules::UNKNOWN);
        described.rules.get(number).copied().ok_or(UserEnd::Unsupported)
    }

    /// The table of what is mapped there. Files that can't be read now may be another time.
    fn described(&mut self, key: Key, mapping: &Mapped) -> Result<Option<Rc<Described>>, UserEnd> {
        if let Some(described) = self.tables.get(&key) {
            return Ok(described.clone());
        }
        let mut rules = Rules::new();
        let table = match &mapping.backing {
            Backing::File(file) => {
                let file = file.unchanged().map_err(|_| UserEnd::NotLoaded)?;
                Table::of_file(file, &mut rules).ok()
            }
            Backing::Vdso => Table::of_vdso(&builder::vdso(), &mut rules).ok(),
            Backing::Anonymous => None,
        };
        let bytes = table.as_ref().map_or(0, |it| size_of_val(it.chunks()));
        self.bytes += bytes + rules.len() * size_of::<Rule>();
        if self.bytes > LIMIT_BYTES {
            self.tables.clear();
            self.bytes = bytes;
        }
        let described = table.map(|table| Rc::new(Described { table, rules }));
        self.tables.insert(key, described.clone());
        Ok(described)
    }
}

/// The copy as a step reads it.
struct Stack<'a> {
    copy: &'a StackCopy<'a>,
    /// The address of its first byte.
    start: u64,
    /// Whether the registers are still those of the sample.
    is_sampled: bool,
    /// Whether something was wanted that lies above the copy.
    is_behind: bool,
}

impl Memory for Stack<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.start)?;
        if !address.is_multiple_of(8) {
            return None;
        }
        let word = self.copy.word(offset);
        self.is_behind |= word.is_none();
        word
    }

    fn register(&self, number: u8) -> Option<u64> {
        if self.is_sampled { self.copy.register(number.into()) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::maps::Mapping;
    use profiler_common::sample::COPY_REGISTERS;

    const STACK: u64 = 0x7fff_0000;
    const CODE: u64 = 0x1000;

    /// Code without a file, as one that is made at run time.
    fn space() -> Space {
        let (backing, name) = (Backing::Anonymous, "".into());
        Space::new(vec![Mapping { start: CODE, end: 2 * CODE, file_offset: 0, backing, name }], 0)
    }

    /// Walks a stack of these words from the first instruction of the code.
    fn walk(words: &[u64], or_frame_pointers: bool, limit: u32) -> Option<(Vec<u64>, UserEnd)> {
        let mut registers = [0; COPY_REGISTERS];
        registers[usize::from(Native::SP)] = STACK;
        registers[usize::from(Native::FP)] = STACK;
        let bytes: Vec<u8> =
            registers.iter().chain(words).flat_map(|word| word.to_ne_bytes()).collect();
        let copy = StackCopy::new(&bytes).unwrap();
        let mut walker = Walker::new(limit, or_frame_pointers);
        let Walked { addresses, end } =
            walker.walk(CODE, &copy, &space(), 1, UserEnd::NotLoaded)?;
        let addresses = addresses.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        Some((addresses.collect(), end))
    }

    #[test]
    fn frame_pointers_lead_up_to_what_is_no_code() {
        let words = [STACK + 16, CODE + 8, STACK + 32, CODE + 16, STACK + 48, 7];
        let found = walk(&words, true, 127);
        assert_eq!(found, Some((vec![CODE, CODE + 8, CODE + 16], UserEnd::NoUnwindInfo)));
        assert_eq!(walk(&words, true, 2), Some((vec![CODE, CODE + 8], UserEnd::Depth)));
        assert_eq!(walk(&words, false, 127), Some((vec![CODE], UserEnd::NoUnwindInfo)));
    }

    #[test]
    fn behind_the_copy_it_ends_as_in_the_kernel() {
        let words = [STACK + 16, CODE + 8, STACK + 32];
        let found = walk(&words, true, 127);
        assert_eq!(found, Some((vec![CODE, CODE + 8], UserEnd::NotLoaded)));
        // A record below the stack is none.
        let found = walk(&[STACK - 16, CODE + 8], true, 127);
        assert_eq!(found, Some((vec![CODE, CODE + 8], UserEnd::NoUnwindInfo)));
        // Without a stack there is nothing behind it.
        assert_eq!(walk(&[], true, 127), Some((vec![CODE], UserEnd::NoUnwindInfo)));
    }

    #[test]
    fn what_is_mapped_nowhere_is_not_walked() {
        let copy = [0; COPY_REGISTERS * 8];
        let copy = StackCopy::new(&copy).unwrap();
        let mut walker = Walker::new(127, true);
        let found = walker.walk(2 * CODE, &copy, &space(), 1, UserEnd::NotMapped);
        assert_eq!((found, walker.walked()), (None, 0));
    }
}
