//! Rows of tables: functions, processes, threads, and what calls a function and is called by it.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{
    Begun, Filter, Line, LineEntry, SpawnKind, Spawned,
    stacks::{Stacks, process_name},
};
use crate::{
    export::folded::task_name,
    frame::{Frame, Origin},
    process::Metadata,
    sample::Comm,
};

/// Samples of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionRow {
    /// Its number in [`Stacks::functions`].
    pub function: usize,
    /// In the function itself.
    pub own: u64,
    /// In it and in what it has called.
    pub total: u64,
}

/// Samples of a process.
#[derive(Clone, Debug, Default)]
pub struct ProcessRow {
    /// Its id.
    pub tgid: u32,
    /// What people call it, printable.
    pub name: String,
    /// Who it is, if that is known.
    pub metadata: Option<Arc<Metadata>>,
    /// Its samples.
    pub count: u64,
    /// What they stand for, in the unit of their source.
    pub value: u64,
    /// Those that were taken in the kernel.
    pub kernel: u64,
    /// Those in code without a name.
    pub unnamed: u64,
    /// Why these have none, and how many.
    pub why: Vec<(Origin, u64)>,
}

/// Samples of a thread.
#[derive(Clone, Debug, Default)]
pub struct ThreadRow {
    /// Its id.
    pub tid: u32,
    /// That of its process.
    pub tgid: u32,
    /// Its name, printable.
    pub name: String,
    /// That of its process, printable.
    pub process: String,
    /// Its samples.
    pub count: u64,
    /// What they stand for, in the unit of their source.
    pub value: u64,
}

/// Processes of a kind that have begun, with their samples.
#[derive(Clone, Debug)]
pub struct SpawnRow {
    /// What they are.
    pub kind: SpawnKind,
    /// How many there were.
    pub spawned: Spawned,
    /// Their samples in the window.
    pub count: u64,
    /// What these stand for, in the unit of their source.
    pub value: u64,
}

/// What is around a function on the stacks that have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// Its own samples.
    pub own: u64,
    /// Samples with it on the stack.
    pub total: u64,
    /// Functions that have called it, most samples first.
    pub callers: Vec<(usize, u64)>,
    /// Samples on whose stacks nothing has called it.
    pub outermost: u64,
    /// Functions that it has called, most samples first.
    pub callees: Vec<(usize, u64)>,
}

impl Stacks {
    /// A row for each function on these stacks.
    #[must_use]
    pub fn function_rows(&self, stacks: &[usize]) -> Vec<FunctionRow> {
        let rows = (0..self.functions().len())
            .map(|function| FunctionRow { function, ..FunctionRow::default() });
        let mut rows: Vec<FunctionRow> = rows.collect();
        // The last stack that a function was counted for: one that calls itself is on a stack once.
        let mut counted = vec![usize::MAX; rows.len()];
        for stack in stacks {
            let (calls, count) = (self.calls_of(*stack), self.count_of(*stack));
            for function in calls {
                let (Some(row), Some(last)) = (rows.get_mut(*function), counted.get_mut(*function))
                else {
                    continue;
                };
                if *last != *stack {
                    *last = *stack;
                    row.total = row.total.saturating_add(count);
                }
            }
            if let Some(row) = calls.last().and_then(|it| rows.get_mut(*it)) {
                row.own = row.own.saturating_add(count);
            }
        }
        rows.retain(|it| it.total > 0);
        rows
    }

    /// A row for each process of these stacks.
    #[must_use]
    pub fn process_rows(&self, stacks: &[usize]) -> Vec<ProcessRow> {
        // With the line that names it, which is done once.
        let mut rows: FxHashMap<u32, (ProcessRow, &Line)> = FxHashMap::default();
        for line in stacks.iter().filter_map(|it| self.lines().get(*it)) {
            let LineEntry { task, kernel, user, .. } = &*line.entry;
            let (row, named) =
                rows.entry(task.tgid).or_insert_with(|| (ProcessRow::default(), line));
            if task.main_comm != Comm::default() {
                *named = line;
            }
            row.tgid = task.tgid;
            row.count = row.count.saturating_add(line.count);
            row.value = row.value.saturating_add(line.value);
            if !kernel.is_empty() {
                row.kernel = row.kernel.saturating_add(line.count);
            }
            if let Some(metadata) = &task.process {
                row.metadata = Some(Arc::clone(metadata));
            }
            let innermost = user.frames().next().map(|(_, frame)| frame);
            if let Some(Frame { origin, .. }) = innermost.filter(|it| it.name().is_none()) {
                row.unnamed = row.unnamed.saturating_add(line.count);
                match row.why.iter_mut().find(|(known, _)| known == origin) {
                    Some((_, samples)) => *samples = samples.saturating_add(line.count),
                    None => row.why.push((*origin, line.count)),
                }
            }
        }
        let named = |(row, line)| ProcessRow { name: process_name(line), ..row };
        rows.into_values().map(named).collect()
    }

    /// A row for each thread of these stacks.
    #[must_use]
    pub fn thread_rows(&self, stacks: &[usize]) -> Vec<ThreadRow> {
        let mut rows: FxHashMap<(u32, u32), (u64, u64, &Line)> = FxHashMap::default();
        for line in stacks.iter().filter_map(|it| self.lines().get(*it)) {
            let task = &line.entry.task;
            let row = rows.entry((task.tgid, task.tid)).or_insert((0, 0, line));
            let (count, value) =
                (row.0.saturating_add(line.count), row.1.saturating_add(line.value));
            *row = (count, value, line);
        }
        let row = |((tgid, tid), (count, value, line)): ((u32, u32), (u64, u64, &Line))| {
            let name = task_name(&line.entry.task.comm.text());
            ThreadRow { tid, tgid, name, process: process_name(line), count, value }
        };
        rows.into_iter().map(row).collect()
    }

    /// A row for each kind of processes that have begun, with what these stacks have of them. Of those that are not
    /// known one by one any more, a filter takes none, and nobody knows their samples.
    #[must_use]
    pub fn spawn_rows(&self, stacks: &[usize], begun: &Begun, filter: &Filter) -> Vec<SpawnRow> {
        let mut sampled: FxHashMap<u32, (u64, u64)> = FxHashMap::default();
        for line in stacks.iter().filter_map(|it| self.lines().get(*it)) {
            let (count, value) = sampled.entry(line.entry.task.tgid).or_default();
            *count = count.saturating_add(line.count);
            *value = value.saturating_add(line.value);
        }
        let mut rows: FxHashMap<&SpawnKind, (Spawned, u64, u64)> = FxHashMap::default();
        if !filter.is_of_processes() {
            for (kind, spawned) in &begun.before {
                rows.insert(kind, (spawned.clone(), 0, 0));
            }
        }
        // The last that had a pid has the samples.
        for spawn in begun.spawns.iter().rev().filter(|it| filter.takes_spawn(it)) {
            let (spawned, count, value) = rows.entry(&spawn.kind).or_default();
            spawned.add(spawn);
            let of_it = sampled.remove(&spawn.tgid).unwrap_or_default();
            *count = count.saturating_add(of_it.0);
            *value = value.saturating_add(of_it.1);
        }
        let row = |(kind, (spawned, count, value)): (&SpawnKind, _)| SpawnRow {
            kind: kind.clone(),
            spawned,
            count,
            value,
        };
        rows.into_iter().map(row).collect()
    }

    /// What calls a function on these stacks, and what it calls. Of one that calls itself the outermost call counts for
    /// callers, and the innermost for callees.
    #[must_use]
    pub fn neighbours(&self, stacks: &[usize], function: usize) -> Neighbours {
        let mut found = Neighbours::default();
        let (mut callers, mut callees) = (FxHashMap::default(), FxHashMap::default());
        for stack in stacks {
            let (calls, count) = (self.calls_of(*stack), self.count_of(*stack));
            let Some(first) = calls.iter().position(|it| *it == function) else { continue };
            let last = calls.iter().rposition(|it| *it == function).unwrap_or(first);
            found.total = found.total.saturating_add(count);
            match first.checked_sub(1).and_then(|it| calls.get(it)) {
                Some(caller) => *callers.entry(*caller).or_insert(0_u64) += count,
                None => found.outermost = found.outermost.saturating_add(count),
            }
            match calls.get(last + 1) {
                Some(callee) => *callees.entry(*callee).or_insert(0_u64) += count,
                None => found.own = found.own.saturating_add(count),
            }
        }
        let sorted = |of: FxHashMap<usize, u64>| {
            let mut of: Vec<(usize, u64)> = of.into_iter().collect();
            let name = |it: usize| self.get(it).map(|it| &it.name);
            of.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| name(a.0).cmp(&name(b.0))));
            of
        };
        (found.callers, found.callees) = (sorted(callers), sorted(callees));
        found
    }
}
