//! Stacks merged from the outside: what flame graphs are drawn from.

use std::{marker::PhantomData, sync::Arc};

use rustc_hash::FxHashMap;

use super::{
    folded::{name, task_name},
    root::Root,
};
use crate::{frame::Frame, printable::printable, profile::Entry};

/// What a node stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// The root.
    All,
    /// All processes of one name.
    Process,
    /// A function in user space.
    User,
    /// One that was inlined.
    Inlined,
    /// A function of the kernel.
    Kernel,
    /// One that was inlined.
    InlinedKernel,
    /// A function that an interpreter runs.
    Interpreted,
}

/// What calls and is called. Functions of one name in two files are two.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Function {
    /// What a person calls it, [printable].
    pub(super) name: String,
    /// The file that it is in, [printable]; empty if there is none.
    pub(super) module: String,
    /// What it is.
    pub(super) kind: Kind,
}

/// Calls in one order from the outermost function on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// The place of its function in [`Tree::functions`].
    pub(super) function: usize,
    /// The place of its caller in [`Tree::nodes`]; the root's is its own.
    pub(super) parent: usize,
    /// How many callers it has; 0 is the root.
    pub(super) depth: usize,
    /// Samples that ended here.
    pub(super) own: u64,
    /// Samples that came through here, with those that ended.
    pub(super) total: u64,
}

/// Merged stacks. The same samples give the same tree, in whatever order they come.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tree {
    /// All functions, sorted.
    pub(super) functions: Vec<Function>,
    /// Each before those that it calls, which are sorted by function. The first is the root.
    pub(super) nodes: Vec<Node>,
}

fn user_kind(frame: &Frame) -> Kind {
    match frame {
        Frame { origin, .. } if origin.is_interpreted() => Kind::Interpreted,
        Frame { inlined: true, .. } => Kind::Inlined,
        _ => Kind::User,
    }
}

/// Where samples ended that were given to a [`Builder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End(usize);

/// The name and the module by where they lie, which tells most frames apart without a look at the text.
type Seen = (usize, usize, Kind);

/// Takes stacks, of which it makes a tree once it has them all: sorted, those that begin alike lie together.
#[derive(Debug)]
pub(super) struct Builder<'a> {
    functions: FxHashMap<Function, usize>,
    seen: FxHashMap<Seen, usize>,
    /// The functions of all stacks, outermost first, one stack behind the other.
    calls: Vec<usize>,
    /// Where each of them ends there, and its samples.
    stacks: Vec<(usize, u64)>,
    /// What was seen must not go away.
    entries: PhantomData<&'a Entry>,
}

impl<'a> Builder<'a> {
    /// No stacks yet.
    pub(super) fn new() -> Self {
        Self {
            functions: FxHashMap::default(),
            seen: FxHashMap::default(),
            calls: Vec::new(),
            stacks: Vec::new(),
            entries: PhantomData,
        }
    }

    /// Adds the samples of an entry.
    pub(super) fn add(&mut self, entry: &'a Entry, root: Root) -> End {
        for name in root.frames(&entry.task) {
            self.process(name);
        }
        for (_, frame) in entry.user.frames().rev() {
            self.call(frame, user_kind(frame));
        }
        for (_, frame) in entry.kernel.frames().rev() {
            self.call(frame, if frame.inlined { Kind::InlinedKernel } else { Kind::Kernel });
        }
        self.end(entry.count)
    }

    fn end(&mut self, samples: u64) -> End {
        self.stacks.push((self.calls.len(), samples));
        End(self.stacks.len() - 1)
    }

    fn process(&mut self, name: String) {
        let module = String::new();
        let function = self.function(Function { name, module, kind: Kind::Process });
        self.calls.push(function);
    }

    fn call(&mut self, frame: &Frame, kind: Kind) {
        let seen = (place(frame.symbol.as_ref()), place(frame.module.as_ref()), kind);
        let function = if let Some(function) = self.seen.get(&seen) {
            *function
        } else {
            let module = printable(frame.module.as_deref().unwrap_or_default()).into_owned();
            let name = printable(&name(frame)).into_owned();
            let function = self.function(Function { name, module, kind });
            self.seen.insert(seen, function);
            function
        };
        self.calls.push(function);
    }

    fn function(&mut self, function: Function) -> usize {
        let next = self.functions.len();
        *self.functions.entry(function).or_insert(next)
    }

    /// The tree, and where the stacks end in it.
    pub(super) fn finish(mut self) -> (Tree, Ends) {
        let root = Function { name: "all".into(), module: String::new(), kind: Kind::All };
        let root = self.function(root);
        let mut functions: Vec<(Function, usize)> = self.functions.into_iter().collect();
        functions.sort_unstable();
        let mut ranks = vec![0; functions.len()];
        for (rank, (_, id)) in functions.iter().enumerate() {
            put(&mut ranks, *id, rank);
        }
        for call in &mut self.calls {
            *call = at(&ranks, *call);
        }
        let starts = std::iter::once(0).chain(self.stacks.iter().map(|(end, _)| *end));
        let stacks = starts.zip(&self.stacks).enumerate();
        let mut stacks: Vec<(&[usize], usize, u64)> = stacks
            .map(|(id, (start, (end, own)))| {
                (self.calls.get(start..*end).unwrap_or_default(), id, *own)
            })
            .collect();
        stacks.sort_unstable();

        let mut nodes =
            vec![Node { function: at(&ranks, root), parent: 0, depth: 0, own: 0, total: 0 }];
        let mut ends = vec![0; stacks.len()];
        // The nodes from the root to where the last stack ended, and its calls.
        let (mut path, mut last): (Vec<usize>, &[usize]) = (vec![0], &[]);
        for (calls, id, own) in stacks {
            let same = calls.iter().zip(last).take_while(|(one, other)| one == other).count();
            path.truncate(same + 1);
            for function in calls.iter().skip(same).copied() {
                let parent = path.last().copied().unwrap_or_default();
                path.push(nodes.len());
                nodes.push(Node { function, parent, depth: path.len() - 1, own: 0, total: 0 });
            }
            let end = path.last().copied().unwrap_or_default();
            if let Some(node) = nodes.get_mut(end) {
                node.own = node.own.saturating_add(own);
            }
            put(&mut ends, id, end);
            last = calls;
        }
        for place in (0..nodes.len()).rev() {
            let Some(node) = nodes.get_mut(place) else { continue };
            node.total = node.total.saturating_add(node.own);
            let Node { parent, total, .. } = *node;
            if place > 0
                && let Some(parent) = nodes.get_mut(parent)
            {
                parent.total = parent.total.saturating_add(total);
            }
        }
        let functions = functions.into_iter().map(|(function, _)| function).collect();
        (Tree { functions, nodes }, Ends(ends))
    }
}

/// Where stacks end in the tree that was made of them.
pub(super) struct Ends(Vec<usize>);

impl Ends {
    /// The place of the node.
    pub(super) fn of(&self, end: End) -> usize {
        at(&self.0, end.0)
    }
}

impl Tree {
    /// What came through each node, of some that ended.
    pub(super) fn totals(&self, ended: impl IntoIterator<Item = (usize, u64)>) -> Vec<u64> {
        let mut totals = vec![0_u64; self.nodes.len()];
        let add = |totals: &mut [u64], place, count| {
            let sum = at(totals, place).saturating_add(count);
            put(totals, place, sum);
        };
        for (place, count) in ended {
            add(&mut totals, place, count);
        }
        for (place, node) in self.nodes.iter().enumerate().skip(1).rev() {
            let total = at(&totals, place);
            add(&mut totals, node.parent, total);
        }
        totals
    }

    /// All samples.
    pub(super) fn total(&self) -> u64 {
        self.nodes.first().map_or(0, |root| root.total)
    }
}

/// The name of the tower that samples belong to.
pub(super) fn process_name(entry: &Entry) -> String {
    task_name(&entry.task.process_name())
}

/// The name of a thread.
pub(super) fn thread_name(entry: &Entry) -> String {
    task_name(&entry.task.comm.text())
}

/// Where a text lies in memory. What is held lies where nothing else does.
fn place(text: Option<&Arc<str>>) -> usize {
    text.map_or(0, |text| Arc::as_ptr(text).cast::<u8>().addr())
}

fn at<T: Copy + Default>(list: &[T], place: usize) -> T {
    list.get(place).copied().unwrap_or_default()
}

fn put<T>(list: &mut [T], place: usize, value: T) {
    if let Some(it) = list.get_mut(place) {
        *it = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        export::tests::{location, sample},
        sample::Comm,
        stack::Stack,
        store::Store,
    };

    fn comm(name: &[u8]) -> Comm {
        let mut comm = Comm::default();
        comm.0[..name.len()].copy_from_slice(name);
        comm
    }

    /// A frame by its name; `i:` stands before one that was inlined.
    fn frame(name: &str) -> Frame {
        let inlined = name.starts_with("i:");
        let symbol = Some(Arc::from(name.trim_start_matches("i:")));
        Frame { symbol, module: Some(Arc::from("/bin/a")), inlined, ..Frame::default() }
    }

    /// Half a stack, innermost first.
    fn stack(names: &[&str]) -> Arc<Stack> {
        Store::default().intern(names.iter().map(|name| location(0, &[frame(name)])).collect())
    }

    fn entry(name: &[u8], user: &[&str], kernel: &[&str], count: u64) -> Entry {
        let of = sample();
        let task = crate::sample::Task { comm: comm(name), ..of.task };
        let (user, kernel) = (stack(user), stack(kernel));
        Entry { source: of.source, task, kernel, user, count, value: count }
    }

    /// A line for each node: its depth in blanks, name, kind, own samples and total.
    fn lines(entries: &[Entry]) -> Vec<String> {
        let mut builder = Builder::new();
        for entry in entries {
            builder.add(entry, Root::Process);
        }
        let (tree, _) = builder.finish();
        let line = |node: &Node| {
            let Function { name, kind, .. } = &tree.functions[node.function];
            format!("{:1$}{name} {kind:?} {2} {3}", "", node.depth, node.own, node.total)
        };
        tree.nodes.iter().map(line).collect()
    }

    #[test]
    fn stacks_are_merged_from_the_outside_and_sorted_by_name() {
        let entries = [
            entry(b"web", &["read", "serve", "main"], &["i:copy", "vfs_read"], 5),
            entry(b"web", &["i:parse", "serve", "main"], &[], 3),
            entry(b"web", &["serve", "main"], &[], 2),
            entry(b"cc", &["main"], &[], 1),
            entry(b"cc", &[], &["idle"], 4),
            entry(b"", &[], &[], 7),
        ];
        let expected = [
            "all All 0 22",
            " [unknown] Process 7 7",
            " cc Process 0 5",
            "  idle Kernel 4 4",
            "  main User 1 1",
            " web Process 0 10",
            "  main User 0 10",
            "   serve User 2 10",
            "    parse Inlined 3 3",
            "    read User 0 5",
            "     vfs_read Kernel 0 5",
            "      copy InlinedKernel 5 5",
        ];
        assert_eq!(lines(&entries), expected);
        let backwards: Vec<Entry> = entries.iter().rev().cloned().collect();
        assert_eq!(lines(&backwards), expected);
    }

    #[test]
    fn a_name_in_two_files_is_two_functions() {
        let mut other = entry(b"a", &["run"], &[], 1);
        let elsewhere = Frame { module: Some(Arc::from("/bin/b")), ..frame("run") };
        other.user = Store::default().intern(vec![location(0, &[elsewhere])]);
        // The same name at another place in memory is the same.
        let same = [entry(b"a", &["run"], &[], 1), entry(b"a", &["run"], &[], 2), other];
        let expected = ["all All 0 4", " a Process 0 4", "  run User 3 3", "  run User 1 1"];
        assert_eq!(lines(&same), expected);
    }

    #[test]
    fn recursion_is_a_tower() {
        let recursive = entry(b"a", &["f", "f", "f"], &[], 2);
        let expected = ["all All 0 2", " a Process 0 2", "  f User 0 2", "   f User 0 2"];
        assert_eq!(lines(std::slice::from_ref(&recursive))[..4], expected);
        assert_eq!(lines(&[recursive])[4], "    f User 2 2");
    }

    #[test]
    fn names_are_made_printable() {
        let bad = entry(b"a\n\xff\x1b", &["x\u{202e}<y>;\"&'"], &[], 1);
        let expected =
            ["all All 0 1", " a\\n\u{fffd}\\x1b Process 0 1", "  x\\u{202e}<y>;\"&' User 1 1"];
        assert_eq!(lines(&[bad]), expected);
    }

    #[test]
    fn ends_are_known_in_the_tree() {
        let entries = [entry(b"b", &["f"], &[], 1), entry(b"a", &["g"], &[], 2)];
        let mut builder = Builder::new();
        let end =
            [builder.add(&entries[0], Root::Process), builder.add(&entries[1], Root::Process)];
        let (tree, ends) = builder.finish();
        let own = |end| tree.nodes[ends.of(end)].own;
        assert_eq!((own(end[0]), own(end[1]), tree.total()), (1, 2, 3));
    }

    #[test]
    fn of_nobody_there_is_no_process() {
        let nobody = Entry { task: crate::sample::Task::default(), ..entry(b"", &["f"], &[], 2) };
        assert_eq!(lines(&[nobody]), ["all All 0 2", " f User 2 2"]);
    }

    #[test]
    fn a_tree_without_samples_is_a_root() {
        assert_eq!(lines(&[]), ["all All 0 0"]);
    }
}
