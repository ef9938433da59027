//! Stacks merged from the outside, for a flame graph.

use std::{cmp::Ordering, iter, ops::Range, sync::Arc};

use rustc_hash::FxHashMap;

use super::{
    FunctionName,
    stacks::{Kind, Stacks, process_name},
};
use crate::sample::Comm;

/// Calls in one order from the outermost function on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What was called.
    pub name: Arc<FunctionName>,
    /// What it is part of.
    pub kind: Kind,
    /// The place of its caller; the root's is its own.
    pub parent: usize,
    /// Samples that ended here.
    pub own: u64,
    /// Samples that came through here, with those that ended.
    pub total: u64,
    /// The place behind all that it has called.
    end: usize,
}

/// Merged stacks. The first node is the root, and each process name a call of it. Behind a node stand its calls, by
/// name, each with those that it has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flame {
    nodes: Vec<Node>,
}

/// A stack that is merged: first the number of its process's name, then those of functions.
struct Merged<'a> {
    process: usize,
    calls: &'a [usize],
    count: u64,
}

impl Flame {
    /// That of these stacks.
    #[must_use]
    pub fn of(stacks: &Stacks, wanted: &[usize]) -> Self {
        let mut numbers: FxHashMap<Comm, usize> = FxHashMap::default();
        let mut processes = Vec::new();
        let mut merged = Vec::with_capacity(wanted.len());
        for stack in wanted {
            let Some(line) = stacks.lines().get(*stack) else { continue };
            let process = *numbers.entry(line.entry.task.process_comm()).or_insert_with(|| {
                processes.push(FunctionName { name: process_name(line), module: String::new() });
                processes.len() - 1
            });
            let (calls, count) = (stacks.calls_of(*stack), stacks.count_of(*stack));
            merged.push(Merged { process, calls, count });
        }
        let processes: Vec<Arc<FunctionName>> = processes.into_iter().map(Arc::new).collect();
        // In the order of their names: stacks with the same callers are beside each other then, and a picture stays as
        // it is while samples come.
        let by_process = ranks(&processes);
        let functions: Vec<&FunctionName> = stacks.functions().iter().map(|it| &*it.name).collect();
        let by_function = ranks(&functions);
        merged.sort_unstable_by(|a, b| {
            let of = |it: &Merged<'_>| by_process.get(it.process);
            of(a).cmp(&of(b)).then_with(|| order(a.calls, b.calls, &by_function))
        });

        let all = FunctionName { name: "all".into(), module: String::new() };
        let mut builder = Builder::new(Node::new(Arc::new(all), Kind::Process, 0));
        for Merged { process, calls, count } in merged {
            builder.close(builder.in_common(process, calls));
            if builder.open.len() == 1
                && let Some(name) = processes.get(process)
            {
                builder.call(process, Arc::clone(name), Kind::Process);
            }
            for function in calls.iter().skip(builder.open.len().saturating_sub(2)) {
                let Some(called) = stacks.get(*function) else { break };
                builder.call(*function, Arc::clone(&called.name), called.kind);
            }
            builder.count(count);
        }
        builder.close(0);
        Self { nodes: builder.nodes }
    }

    /// A node by its place.
    #[must_use]
    pub fn get(&self, place: usize) -> Option<&Node> {
        self.nodes.get(place)
    }

    /// The places of what a node has called, by name.
    pub fn calls(&self, place: usize) -> impl Iterator<Item = usize> {
        let end = self.nodes.get(place).map_or(0, |it| it.end);
        let next = move |at: usize| (at < end).then_some(at);
        iter::successors(next(place.saturating_add(1)), move |at| {
            self.nodes.get(*at).and_then(|it| next(it.end))
        })
    }

    /// The places of a node and of all below it.
    #[must_use]
    pub fn within(&self, place: usize) -> Range<usize> {
        place..self.nodes.get(place).map_or(place, |it| it.end)
    }

    /// All nodes; each stands behind its caller.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The names from the root's calls down to a node: what leads to it in another flame graph, too.
    #[must_use]
    pub fn path(&self, mut place: usize) -> Vec<FunctionName> {
        let mut path = Vec::new();
        while let Some(node) = self.nodes.get(place).filter(|_| place > 0) {
            path.push((*node.name).clone());
            place = node.parent;
        }
        path.reverse();
        path
    }

    /// The node that a path leads to, or how far there is one.
    #[must_use]
    pub fn follow(&self, path: &[FunctionName]) -> usize {
        let mut at = 0;
        for name in path {
            let is_called = |it: &usize| self.nodes.get(*it).is_some_and(|it| *it.name == *name);
            match self.calls(at).find(is_called) {
                Some(call) => at = call,
                None => break,
            }
        }
        at
    }

    /// Samples with a function of which this holds, each counted once.
    #[must_use]
    pub fn matching(&self, holds: impl Fn(&Node) -> bool) -> u64 {
        let mut within = vec![false; self.nodes.len()];
        let mut sum = 0_u64;
        for (place, node) in self.nodes.iter().enumerate() {
            let above = place > 0 && within.get(node.parent).copied().unwrap_or(false);
            let is_one = above || holds(node);
            if is_one && !above {
                sum = sum.saturating_add(node.total);
            }
            if let Some(it) = within.get_mut(place) {
                *it = is_one;
            }
        }
        sum
    }
}

/// The nodes so far, and those whose calls are not complete: the root, a process and functions.
struct Builder {
    nodes: Vec<Node>,
    open: Vec<Open>,
}

#[derive(Clone, Copy)]
struct Open {
    place: usize,
    /// The number of the process name or the function.
    number: usize,
}

impl Builder {
    fn new(root: Node) -> Self {
        Self { nodes: vec![root], open: vec![Open { place: 0, number: 0 }] }
    }

    /// How many of the open nodes a stack goes through, too.
    fn in_common(&self, process: usize, calls: &[usize]) -> usize {
        let stack = iter::once(&process).chain(calls);
        let open = self.open.iter().skip(1);
        1 + open.zip(stack).take_while(|(open, number)| open.number == **number).count()
    }

    /// Opens a call of the innermost open node.
    fn call(&mut self, number: usize, name: Arc<FunctionName>, kind: Kind) {
        let (place, parent) = (self.nodes.len(), self.open.last().map_or(0, |it| it.place));
        self.nodes.push(Node::new(name, kind, parent));
        self.open.push(Open { place, number });
    }

    /// Closes all but so many, and passes on to their callers what was counted.
    fn close(&mut self, left: usize) {
        let end = self.nodes.len();
        for Open { place, .. } in self.open.drain(left.min(self.open.len())..).rev() {
            let Some(node) = self.nodes.get_mut(place) else { continue };
            node.end = end;
            let (total, parent) = (node.total, node.parent);
            if place > 0
                && let Some(caller) = self.nodes.get_mut(parent)
            {
                caller.total = caller.total.saturating_add(total);
            }
        }
    }

    /// Samples that ended in the innermost open node.
    fn count(&mut self, count: u64) {
        let innermost = self.open.last().and_then(|it| self.nodes.get_mut(it.place));
        if let Some(node) = innermost {
            node.own = node.own.saturating_add(count);
            node.total = node.total.saturating_add(count);
        }
    }
}

impl Node {
    fn new(name: Arc<FunctionName>, kind: Kind, parent: usize) -> Self {
        Self { name, kind, parent, own: 0, total: 0, end: 0 }
    }
}

/// For each of these how many come before it where they are sorted.
fn ranks<T: Ord>(of: &[T]) -> Vec<usize> {
    let mut sorted: Vec<usize> = (0..of.len()).collect();
    sorted.sort_by_key(|it| of.get(*it));
    let mut ranks = vec![0; of.len()];
    for (rank, place) in sorted.into_iter().enumerate() {
        if let Some(it) = ranks.get_mut(place) {
            *it = rank;
        }
    }
    ranks
}

/// The order of two stacks of functions, by the rank of each.
fn order(a: &[usize], b: &[usize], ranks: &[usize]) -> Ordering {
    match iter::zip(a, b).find(|(a, b)| a != b) {
        Some((a, b)) => ranks.get(*a).cmp(&ranks.get(*b)),
        None => a.len().cmp(&b.len()),
    }
}
