//! Where each thread has the address of its state, found by value.
//!
//! No version says where that is, and the compiler and the C library decide it. But the interpreter lists its
//! threads, each with its `pthread_self()`: near that, one word is the address of the thread's state, at the same
//! place in all threads.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    image::Loaded,
    memory::{Fault, Memory, is_object, word},
};

/// Interpreters and threads that are looked at.
const MAX_INTERPRETERS: usize = 64;
const MAX_THREADS: usize = 128;
/// Threads in which tables are looked into.
const MAX_TABLE_THREADS: usize = 4;
/// How far around `pthread_self()` the word is looked for: below are thread-local variables on x86-64, above is
/// what the C library keeps of the thread.
const BELOW: u64 = 2048;
const ABOVE: u64 = 4096;
/// How many bytes of a table are looked at: glibc's have 32 pairs of words, musl's one of 128 words.
const TABLE_BYTES: usize = 1024;
const PAGE: u64 = 4096;
const PAGE_BYTES: usize = 4096;

/// Where a thread has the address of its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot {
    /// From the thread pointer to a word.
    pub offset: i64,
    /// That word is the address of a table, which has the state's address here. Without it, the word is that
    /// address.
    pub in_table: Option<i32>,
}

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its address.
    pub state: u64,
    /// `pthread_self()`
    pub id: u64,
}

/// Why no slot is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NoSlot {
    /// The interpreter has no thread yet: ask again later.
    NoThreads,
    /// No word near the threads is the address of their state.
    NotFound,
    /// What has to be an interpreter or the state of a thread is none.
    Implausible,
    /// It can't be read.
    Unreadable(Fault),
}

/// The states of all threads that the interpreter lists.
pub fn threads(memory: &impl Memory, loaded: &Loaded) -> Result<Vec<Thread>, NoSlot> {
    let offsets = &loaded.offsets;
    let read =
        |at: u64, offset: u64| word(memory, at.wrapping_add(offset)).map_err(NoSlot::Unreadable);
    let (mut threads, mut looked_at) = (Vec::new(), 0);
    let mut interpreter = read(loaded.runtime, offsets.interpreters.into())?;
    for _ in 0..MAX_INTERPRETERS {
        if interpreter == 0 {
            break;
        }
        if !is_object(interpreter) {
            return Err(NoSlot::Implausible);
        }
        let mut state = read(interpreter, offsets.threads.into())?;
        // Also those that do not run count: a list may be a ring.
        while state != 0 && looked_at < MAX_THREADS {
            looked_at += 1;
            // Wrong offsets show here: each state refers to its interpreter.
            if !is_object(state) || read(state, offsets.thread.interpreter.into())? != interpreter {
                return Err(NoSlot::Implausible);
            }
            let id = read(state, offsets.thread.id.into())?;
            // It is zero until the thread runs.
            if is_object(id) {
                threads.push(Thread { state, id });
            }
            state = read(state, offsets.thread.next.into())?;
        }
        interpreter = read(interpreter, offsets.next_interpreter.into())?;
    }
    if threads.is_empty() { Err(NoSlot::NoThreads) } else { Ok(threads) }
}

/// Finds the slot. The thread pointer is so many bytes above `pthread_self()`: none on x86-64, and the size of the
/// C library's `struct pthread` on aarch64.
pub fn slot(memory: &impl Memory, loaded: &Loaded, pointer_above: u64) -> Result<Slot, NoSlot> {
    let threads = threads(memory, loaded)?;
    let mut states = BTreeMap::<u64, BTreeSet<u64>>::new();
    for thread in threads {
        states.entry(thread.id).or_default().insert(thread.state);
    }
    let (mut votes, mut readable) = (BTreeMap::<Slot, usize>::new(), 0);
    for (id, states) in &states {
        let direct = direct(memory, *id, states)?;
        readable += usize::from(direct.is_some());
        for offset in direct.unwrap_or_default() {
            *votes.entry(Slot { offset, in_table: None }).or_default() += 1;
        }
    }
    let mut found = best(&votes, readable);
    if found.is_none() {
        votes.clear();
        let mut asked = 0;
        for (id, states) in states.iter().take(MAX_TABLE_THREADS) {
            for slot in in_tables(memory, *id, states)? {
                *votes.entry(slot).or_default() += 1;
            }
            asked += 1;
        }
        found = best(&votes, asked);
    }
    let found = found.ok_or(NoSlot::NotFound)?;
    Ok(Slot { offset: found.offset.wrapping_sub_unsigned(pointer_above), ..found })
}

/// The one that most threads have, and at least half of them. A state is at several places: of those that are as
/// good, the first above `pthread_self()` is that of the C library's key, which holds also while the thread has
/// let go of the GIL. Where there is none, the lowest.
fn best(votes: &BTreeMap<Slot, usize>, threads: usize) -> Option<Slot> {
    let most = votes.values().copied().max().filter(|most| most * 2 >= threads)?;
    let with_most = || votes.iter().filter(|(_, count)| **count == most).map(|(slot, _)| *slot);
    with_most().find(|slot| slot.offset >= 0).or_else(|| with_most().next())
}

/// What lies around an id: words with their offsets. `None` if nothing of it can be read.
fn around(memory: &impl Memory, id: u64) -> Result<Option<Vec<(i64, u64)>>, NoSlot> {
    let (begin, end) = (id.saturating_sub(BELOW), id.saturating_add(ABOVE));
    let (mut words, mut is_any) = (Vec::new(), false);
    let mut page = begin & !(PAGE - 1);
    let mut bytes = [0; PAGE_BYTES];
    while page < end {
        match memory.read(page, &mut bytes) {
            Ok(()) => {
                is_any = true;
                let places = (page..).step_by(8).zip(bytes.as_chunks().0);
                let near = places.filter(|(at, _)| (begin..end).contains(at));
                words.extend(near.map(|(at, word)| {
                    (at.wrapping_sub(id).cast_signed(), u64::from_le_bytes(*word))
                }));
            }
            Err(Fault::Unmapped) => {}
            Err(fault) => return Err(NoSlot::Unreadable(fault)),
        }
        let Some(next) = page.checked_add(PAGE) else { break };
        page = next;
    }
    Ok(is_any.then_some(words))
}

/// Where around an id one of these states is.
fn direct(
    memory: &impl Memory,
    id: u64,
    states: &BTreeSet<u64>,
) -> Result<Option<Vec<i64>>, NoSlot> {
    let words = around(memory, id)?;
    let is_state = |word: &(i64, u64)| states.contains(&word.1);
    Ok(words.map(|it| it.into_iter().filter(is_state).map(|(offset, _)| offset).collect()))
}

/// The same for tables that are referred to from there.
fn in_tables(memory: &impl Memory, id: u64, states: &BTreeSet<u64>) -> Result<Vec<Slot>, NoSlot> {
    let mut found = Vec::new();
    let mut bytes = [0; TABLE_BYTES];
    for (offset, table) in around(memory, id)?.unwrap_or_default() {
        if !is_object(table) {
            continue;
        }
        match memory.read(table, &mut bytes) {
            Ok(()) => {}
            Err(Fault::Unmapped) => continue,
            Err(fault) => return Err(NoSlot::Unreadable(fault)),
        }
        let words = (0..).step_by(8).zip(bytes.as_chunks().0);
        let there = words.filter(|(_, word)| states.contains(&u64::from_le_bytes(**word)));
        found.extend(there.map(|(at, _)| Slot { offset, in_table: Some(at) }));
    }
    Ok(found)
}
