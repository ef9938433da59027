//! Stacks merged from the outside, for a flame graph.

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
    pub name: FunctionName,
    /// What it is part of.
    pub kind: Kind,
    /// The place of its caller; the root's is its own.
    pub parent: usize,
    /// Samples that ended here.
    pub own: u64,
    /// Samples that came through here, with those that ended.
    pub total: u64,
    /// The places of what it has called, by name.
    pub children: Vec<usize>,
}

/// Merged stacks. The first node is the root, and each process name a call of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flame {
    nodes: Vec<Node>,
}

/// What tells a call from the others of its caller.
#[derive(PartialEq, Eq, Hash)]
enum Call {
    Process(Comm),
    Function(usize),
}

impl Flame {
    /// That of these stacks.
    #[must_use]
    pub fn of(stacks: &Stacks, wanted: &[usize]) -> Self {
        let all = FunctionName { name: "all".into(), module: String::new() };
        let mut flame = Self { nodes: vec![Node::new(all, Kind::Process, 0)] };
        let mut known: FxHashMap<(usize, Call), usize> = FxHashMap::default();
        for stack in wanted {
            let (Some(line), count) = (stacks.lines().get(*stack), stacks.count_of(*stack)) else {
                continue;
            };
            flame.count(0, count);
            let mut at = *known
                .entry((0, Call::Process(line.entry.task.process_comm())))
                .or_insert_with(|| {
                    let name = FunctionName { name: process_name(line), module: String::new() };
                    flame.add(Node::new(name, Kind::Process, 0))
                });
            flame.count(at, count);
            for function in stacks.calls_of(*stack) {
                let Some(called) = stacks.get(*function) else { continue };
                at = *known
                    .entry((at, Call::Function(*function)))
                    .or_insert_with(|| flame.add(Node::new(called.name.clone(), called.kind, at)));
                flame.count(at, count);
            }
            if let Some(node) = flame.nodes.get_mut(at) {
                node.own = node.own.saturating_add(count);
            }
        }
        flame.sort();
        flame
    }

    fn add(&mut self, node: Node) -> usize {
        let place = self.nodes.len();
        if let Some(parent) = self.nodes.get_mut(node.parent) {
            parent.children.push(place);
        }
        self.nodes.push(node);
        place
    }

    fn count(&mut self, place: usize, count: u64) {
        if let Some(node) = self.nodes.get_mut(place) {
            node.total = node.total.saturating_add(count);
        }
    }

    /// So that a picture stays as it is while samples come.
    fn sort(&mut self) {
        for place in 0..self.nodes.len() {
            let mut children = self
                .nodes
                .get_mut(place)
                .map(|it| std::mem::take(&mut it.children))
                .unwrap_or_default();
            children.sort_by(|a, b| {
                let of = |place: usize| self.nodes.get(place).map(|it| (&it.name, it.kind));
                of(*a).cmp(&of(*b))
            });
            if let Some(node) = self.nodes.get_mut(place) {
                node.children = children;
            }
        }
    }

    /// A node by its place.
    #[must_use]
    pub fn get(&self, place: usize) -> Option<&Node> {
        self.nodes.get(place)
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
            path.push(node.name.clone());
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
            let children = self.nodes.get(at).map_or(&[][..], |it| &it.children);
            let is_called = |it: &&usize| self.nodes.get(**it).is_some_and(|it| it.name == *name);
            match children.iter().find(is_called) {
                Some(child) => at = *child,
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

impl Node {
    fn new(name: FunctionName, kind: Kind, parent: usize) -> Self {
        Self { name, kind, parent, own: 0, total: 0, children: Vec::new() }
    }
}
