//! Walks of copied stacks, where the eBPF program was not told in time what its own walk needs: what a
//! process has mapped that began a moment ago, or the table of a file.

#[cfg(test)]
mod any_stack;
#[cfg(target_env = "gnu")]
#[cfg(test)]
mod own_stack;

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use profiler_common::{
    sample::{COPY_BELOW, INTERRUPTED, RUNS_CODE, UserEnd},
    unwind::{
        Native,
        rule::{Cfa, Rule},
        step::{Arch as _, Caller, Memory, NO_LINK, Registers, step},
    },
};
use profiler_profile::ledger::memory::Cache;
use profiler_unwind::{NoTable, Rules, Standalone, Table};

use super::{builder, table_slots::Key};
use crate::{
    cache::Bounded,
    parser::Parser,
    process::space::{Mapped, Space},
    procfs::maps::Backing,
    sample::{Addresses, StackCopy},
    time_budget::TimeBudget,
};

/// Of so much time it may use the share at once: on a busy machine many programs are new at the start.
const SAVED: Duration = Duration::from_secs(20);

/// Makes the tables that it needs, and keeps them.
#[derive(Debug)]
pub struct Walker {
    or_frame_pointers: bool,
    frame_limit: usize,
    /// `None` of files that say nothing of their frames.
    tables: Bounded<Key, Option<Rc<Standalone>>>,
    /// Whoever runs a program chooses what there is to read, and samples wait meanwhile.
    time_budget: TimeBudget,
    walked: u64,
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
            tables: no_tables(usize::MAX),
            time_budget: TimeBudget::saving(SAVED, Instant::now()),
            walked: 0,
        }
    }

    /// Keeps tables within so many bytes.
    #[must_use]
    pub fn keeping(self, limit_bytes: usize) -> Self {
        Self { tables: no_tables(limit_bytes), ..self }
    }

    /// What it holds.
    #[must_use]
    pub fn account(&self) -> Cache {
        self.tables.account("unwind tables of copies")
    }

    /// How many stacks were walked.
    #[must_use]
    pub fn walked(&self) -> u64 {
        self.walked
    }

    /// Walks a stack again that the kernel has walked so far, to such an end, by what was mapped at a
    /// time, and by tables that `parser` makes. `None` if what it needs is not known here either, or if the kernel has come further than the
    /// copy goes. Frames that hold one of these records of an interpreter, innermost first, are marked.
    pub fn walk(
        &mut self,
        parser: &mut Parser,
        copy: &StackCopy<'_>,
        space: &Space,
        time_ns: u64,
        (so_far, cut): (Addresses<'_>, UserEnd),
        records: impl Iterator<Item = u64>,
    ) -> Option<Walked> {
        let mut records = records.peekable();
        let pc = so_far.iter().next()? & !RUNS_CODE;
        let register = |number: u16| copy.register(usize::from(number));
        let (sp, fp) = (register(Native::SP)?, register(Native::FP)?);
        let lr = if Native::CALL_PUSHES { NO_LINK } else { register(Native::RA)? };
        let mut frame = Registers { pc, sp, fp, lr };
        let (is_sampled, is_outside, is_above) = (true, false, false);
        let start = sp.wrapping_sub(COPY_BELOW as u64);
        let mut stack = Stack { copy, start, is_sampled, is_outside, is_above };
        let mut addresses = Vec::new();
        let (mut is_return, mut is_guess) = (0, false);
        let end = loop {
            let pc = frame.pc.wrapping_sub(is_return);
            let found = self.rule_at(parser, space, pc, time_ns);
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
                Ok(caller) => {
                    is_return = u64::from(caller == Caller::Called);
                    // As in the kernel.
                    if records.next_if(|record| *record < frame.sp).is_some()
                        && let Some(last) = addresses.last_mut()
                    {
                        *last |= RUNS_CODE;
                    }
                }
                Err(_) if stack.is_above && copy.is_cut() => break cut,
                Err(stop) => break UserEnd::of_stop(stop, is_guess, true),
            }
        };
        let addresses: Vec<u8> = addresses.iter().flat_map(|it| it.to_ne_bytes()).collect();
        // The kernel's walk is not bound to what was copied: a signal's handler may have a stack of its own.
        let so_far = so_far.as_bytes();
        if stack.is_outside && so_far.len() > addresses.len() && so_far.starts_with(&addresses) {
            return None;
        }
        self.walked += 1;
        Some(Walked { addresses, end })
    }

    /// The rule for an address.
    fn rule_at(
        &mut self,
        parser: &mut Parser,
        space: &Space,
        pc: u64,
        time_ns: u64,
    ) -> Result<Rule, UserEnd> {
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
        let Some(table) = self.table(parser, key, mapping)? else { return unknown };
        let number = table.find(offset).unwrap_or(Rules::UNKNOWN);
        table.rules().get(usize::from(number)).copied().ok_or(UserEnd::Unsupported)
    }

    /// The table of what is mapped there. Files that can't be read now may be another time, and so may
    /// any when reading has taken its share of the time.
    fn table(
        &mut self,
        parser: &mut Parser,
        key: Key,
        mapping: &Mapped,
    ) -> Result<Option<Rc<Standalone>>, UserEnd> {
        if let Some(table) = self.tables.get(&key) {
            return Ok(table);
        }
        let start = Instant::now();
        if !self.time_budget.is_left(start) {
            return Err(UserEnd::NotLoaded);
        }
        let table: Result<_, NoTable> = match &mapping.backing {
            Backing::File(file) => match builder::of_file(parser, file) {
                // As in the kernel. Another file with the same key may be as it was, so this is not kept.
                Some(Err(NoTable::Changed)) => return Ok(None),
                table => table.ok_or(UserEnd::NotLoaded)?,
            },
            Backing::Vdso => {
                let mut rules = Rules::new();
                let table = Table::of_vdso(&builder::vdso(), &mut rules);
                table.map(|table| Standalone::new(table, &rules))
            }
            Backing::Anonymous => return Ok(None),
        };
        let table = table.ok().map(Rc::new);
        self.tables.insert(key, table.clone());
        let end = Instant::now();
        self.time_budget.take(end, end.duration_since(start));
        Ok(table)
    }
}

/// None yet, and so many bytes for all.
fn no_tables(limit_bytes: usize) -> Bounded<Key, Option<Rc<Standalone>>> {
    Bounded::new(limit_bytes, |table| {
        let table = table.as_ref();
        table.map_or(0, |it| size_of_val(it.chunks()) + size_of_val(it.rules()))
    })
}

/// The copy as a step reads it.
struct Stack<'a> {
    copy: &'a StackCopy<'a>,
    /// The address of its first byte.
    start: u64,
    /// Whether the registers are still those of the sample.
    is_sampled: bool,
    /// Whether something was wanted that was not copied.
    is_outside: bool,
    /// The same, from above.
    is_above: bool,
}

impl Memory for Stack<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        if !address.is_multiple_of(8) {
            return None;
        }
        let offset = address.checked_sub(self.start);
        let word = offset.and_then(|offset| self.copy.word(offset));
        self.is_outside |= word.is_none();
        self.is_above |= word.is_none() && offset.is_some();
        word
    }

    fn register(&self, number: u8) -> Option<u64> {
        if self.is_sampled { self.copy.register(number.into()) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::maps::Mapping;
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
        walk_on([CODE], words, or_frame_pointers, limit)
    }

    /// The same, where the kernel has come so far.
    fn walk_on<const N: usize>(
        so_far: [u64; N],
        words: &[u64],
        or_frame_pointers: bool,
        limit: u32,
    ) -> Option<(Vec<u64>, UserEnd)> {
        walk_by(so_far, words, or_frame_pointers, limit, &[])
    }

    /// The same, with records of an interpreter.
    fn walk_by<const N: usize>(
        so_far: [u64; N],
        words: &[u64],
        or_frame_pointers: bool,
        limit: u32,
        records: &[u64],
    ) -> Option<(Vec<u64>, UserEnd)> {
        let records = records.iter().copied();
        let mut registers = [0; COPY_REGISTERS];
        registers[usize::from(Native::SP)] = STACK;
        registers[usize::from(Native::FP)] = STACK;
        let below = if words.is_empty() { 0 } else { COPY_BELOW / 8 };
        let bytes = registers.iter().chain(&[0; COPY_BELOW / 8][..below]).chain(words);
        let bytes: Vec<u8> = bytes.flat_map(|word| word.to_ne_bytes()).collect();
        let copy = StackCopy::new(&bytes).unwrap();
        let mut walker = Walker::new(limit, or_frame_pointers);
        let so_far = so_far.map(u64::to_ne_bytes);
        let so_far = (Addresses::new(so_far.as_flattened()), UserEnd::NotLoaded);
        let Walked { addresses, end } =
            walker.walk(&mut Parser::not_started(), &copy, &space(), 1, so_far, records)?;
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
    fn frames_with_a_record_of_an_interpreter_are_marked() {
        let words = [STACK + 16, CODE + 8, STACK + 32, CODE + 16, STACK + 48, 7];
        let marked = |records: &[u64]| {
            let (found, _) = walk_by([CODE | RUNS_CODE], &words, true, 127, records).unwrap();
            found.into_iter().map(|it| it & RUNS_CODE != 0).collect::<Vec<_>>()
        };
        assert_eq!(marked(&[]), [false; 3]);
        assert_eq!(marked(&[STACK + 8]), [true, false, false]);
        assert_eq!(marked(&[STACK + 16]), [false, true, false]);
        assert_eq!(marked(&[STACK + 8, STACK + 24]), [true, true, false]);
        // The walk does not come to the frame above the last.
        assert_eq!(marked(&[STACK + 24, STACK + 1000]), [false, true, false]);
    }

    #[test]
    fn behind_the_copy_it_ends_as_in_the_kernel() {
        // As many words as are copied at least, of a stack that goes on.
        let mut words = vec![0; 1026];
        words[..4].copy_from_slice(&[STACK + 16, CODE + 8, STACK + 8 * 1025, CODE + 16]);
        let found = walk(&words, true, 127);
        let here = vec![CODE, CODE + 8, CODE + 16];
        assert_eq!(found, Some((here.clone(), UserEnd::NotLoaded)));
        // Of one that ends there.
        let found = walk(&[STACK + 16, CODE + 8, STACK + 32, CODE + 16], true, 127);
        assert_eq!(found, Some((here.clone(), UserEnd::NoUnwindInfo)));
        // The kernel was told enough to come further, or went another way.
        let found = walk_on([CODE, CODE + 8, CODE + 16, CODE + 24], &words, true, 127);
        assert_eq!(found, None);
        let found = walk_on([CODE, CODE + 24, CODE + 16, CODE + 24], &words, true, 127);
        assert_eq!(found, Some((here, UserEnd::NotLoaded)));
        // A record below the stack is none.
        let found = walk(&[STACK - 16, CODE + 8], true, 127);
        assert_eq!(found, Some((vec![CODE, CODE + 8], UserEnd::NoUnwindInfo)));
        // Without a stack there is nothing behind it.
        assert_eq!(walk(&[], true, 127), Some((vec![CODE], UserEnd::NoUnwindInfo)));
    }

    #[test]
    fn what_was_not_copied_lies_above_or_on_another_stack() {
        let copy = [1; COPY_REGISTERS * 8 + 8];
        let copy = StackCopy::new(&copy).unwrap();
        let read = |address| {
            let (is_sampled, is_outside, is_above) = (false, false, false);
            let mut stack = Stack { copy: &copy, start: STACK, is_sampled, is_outside, is_above };
            (stack.word(address).is_some(), stack.is_outside, stack.is_above)
        };
        assert_eq!(read(STACK), (true, false, false));
        assert_eq!(read(STACK + 8), (false, true, true));
        assert_eq!(read(STACK - 8), (false, true, false));
        // That is nothing that could be read anywhere.
        assert_eq!(read(STACK + 4), (false, false, false));
    }

    #[test]
    fn what_is_mapped_nowhere_is_not_walked() {
        let copy = [0; COPY_REGISTERS * 8];
        let copy = StackCopy::new(&copy).unwrap();
        let mut walker = Walker::new(127, true);
        let at = (2 * CODE).to_ne_bytes();
        let found = walker.walk(
            &mut Parser::not_started(),
            &copy,
            &space(),
            1,
            (Addresses::new(&at), UserEnd::NotMapped),
            std::iter::empty(),
        );
        assert_eq!((found, walker.walked()), (None, 0));
    }
}
