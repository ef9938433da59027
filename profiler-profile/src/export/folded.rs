//! One line a distinct stack, for flame graphs: `process;outermost;…;innermost COUNT`.
//!
//! With several events, each line begins with its event: `page-faults;process;outermost;…`.
//!
//! Kernel frames end in `_[k]` and inlined ones in `_[i]`, as flamegraph.pl colours them.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use super::{
    about::About,
    format::{Export, Format, Processes},
    root::Root,
};
use crate::{
    frame::Frame,
    printable::printable,
    profile::{Entry, Profile},
    stack::Stack,
};

/// What stands in the place of a name that there is not.
pub(super) const UNKNOWN: &str = "[unknown]";
/// What the kernel's own code is in, as perf calls it.
pub(super) const KERNEL: &str = "[kernel.kallsyms]";

/// The format, by name.
pub const FORMAT: Format = Format {
    name: "folded",
    help: "One line per distinct stack with its count, at the end, for flame graphs",
    extensions: &["folded"],
    processes: Processes::Never,
    is_binary: false,
    viewers: "flamegraph.pl, inferno-flamegraph, speedscope.app",
    has_ledger: false,
    export: Export::Whole(write),
};

fn write(profile: &Profile, about: &About<'_>, to: &mut dyn Write) -> io::Result<()> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    let has_several = about.sources.len() > 1;
    for entry in profile.entries() {
        let line = line(entry, about.root);
        let event = &entry.source.name;
        let line = if has_several { format!("{};{line}", clean(event)) } else { line };
        let sum = lines.entry(line).or_default();
        *sum = sum.saturating_add(entry.count);
    }
    lines.iter().try_for_each(|(line, count)| writeln!(to, "{line} {count}"))
}

fn line(entry: &Entry, root: Root) -> String {
    let mut line = String::new();
    for name in root.frames(&entry.task) {
        line.push_str(&name.replace(';', ":"));
        line.push(';');
    }
    push(&mut line, &entry.user, "");
    push(&mut line, &entry.kernel, "_[k]");
    if line.pop().is_none() { UNKNOWN.into() } else { line }
}

fn push(line: &mut String, stack: &Stack, mark: &str) {
    for (_, frame) in stack.frames().rev() {
        line.push_str(&clean(&name(frame)));
        line.push_str(if frame.inlined { "_[i]" } else { mark });
        line.push(';');
    }
}

/// What a person calls the frame: without a symbol, its module in brackets.
pub(crate) fn name(frame: &Frame) -> String {
    match (frame.name(), frame.module.as_deref().filter(|module| !module.is_empty())) {
        (Some(symbol), _) => symbol.to_owned(),
        (None, Some(module)) => {
            let file = module.rsplit('/').next().unwrap_or(module);
            format!("[{}]", file.trim_matches(['[', ']']))
        }
        (None, None) => UNKNOWN.into(),
    }
}

/// What a thread or process is called, fit to be shown; one whose name nobody could see is unknown.
pub(crate) fn task_name(name: &str) -> String {
    if name.trim().is_empty() { UNKNOWN.into() } else { printable(name).into_owned() }
}

/// A semicolon ends a frame and a line break a stack, so names can't have them.
fn clean(name: &str) -> String {
    printable(name).replace(';', ":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        export::tests::{self, location},
        sample::{Comm, Task},
        store::Store,
    };
    use std::sync::Arc;

    fn stack(names: &[&str]) -> Arc<Stack> {
        let location = |name: &&str| {
            location(0, &[Frame { symbol: Some(Arc::from(*name)), ..Frame::default() }])
        };
        Store::default().intern(names.iter().map(location).collect())
    }

    #[test]
    fn outermost_first_and_the_kernel_on_top() {
        let entry = Entry {
            source: tests::sample().source,
            task: Task { comm: Comm(*b"a;b\0\0\0\0\0\0\0\0\0\0\0\0\0"), ..tests::sample().task },
            kernel: stack(&["read", "entry"]),
            user: stack(&["inner", "outer<T; 2>"]),
            count: 1,
            value: 1,
        };
        assert_eq!(line(&entry, Root::Process), "a:b;outer<T: 2>;inner;entry_[k];read_[k]");
    }

    #[test]
    fn threads_are_of_their_process() {
        let (comm, main_comm) =
            (Comm(*b"worker 1\0\0\0\0\0\0\0\0"), Comm(*b"server\0\0\0\0\0\0\0\0\0\0"));
        let entry = Entry {
            source: tests::sample().source,
            task: Task { comm, main_comm, ..tests::sample().task },
            kernel: stack(&[]),
            user: stack(&["main"]),
            count: 1,
            value: 1,
        };
        assert_eq!(line(&entry, Root::Process), "server;main");
    }

    #[test]
    fn a_name_that_nobody_could_see_is_none() {
        let entry = Entry {
            source: tests::sample().source,
            task: Task { comm: Comm(*b" \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), ..tests::sample().task },
            kernel: stack(&[]),
            user: stack(&["", "\u{a0}", "main"]),
            count: 1,
            value: 1,
        };
        assert_eq!(line(&entry, Root::Process), "[unknown];main;[unknown];[unknown]");
    }

    #[test]
    fn a_frame_without_a_symbol_shows_its_module() {
        let module = |name: &str| Frame { module: Some(Arc::from(name)), ..Frame::default() };
        assert_eq!(name(&module("/usr/lib/libc.so.6")), "[libc.so.6]");
        assert_eq!(name(&module("[vdso]")), "[vdso]");
        assert_eq!(name(&Frame::default()), "[unknown]");
        assert_eq!(name(&module("")), "[unknown]");
    }
}
