//! One line a distinct stack, for flame graphs: `comm;outermost;…;innermost COUNT`.
//!
//! Kernel frames end in `_[k]` and inlined ones in `_[i]`, as flamegraph.pl colours them.

use std::collections::BTreeMap;

use super::{
    NamedSample, Output, Sink,
    profile::{Entry, Profile},
};
use crate::{
    error::Result,
    ledger::Ledger,
    printable::printable,
    sample::comm_text,
    symbolize::frame::{Frame, Stack},
};

pub(super) struct Folded {
    sink: Sink,
    profile: Profile,
}

impl Folded {
    pub(super) fn new(sink: Sink, max_stacks: usize) -> Self {
        Self { sink, profile: Profile::new(max_stacks) }
    }
}

impl Output for Folded {
    fn sample(&mut self, sample: &NamedSample<'_>) -> Result<()> {
        self.profile.add(sample);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn is_written_at_end(&self) -> bool {
        true
    }

    fn finish(&mut self, _: &Ledger) -> Result<()> {
        let mut lines: BTreeMap<String, u64> = BTreeMap::new();
        for entry in self.profile.entries() {
            *lines.entry(line(entry)).or_default() += entry.count;
        }
        if self.profile.beyond_limit > 0 {
            lines.insert("[stacks beyond --max-stacks]".into(), self.profile.beyond_limit);
        }
        for (line, count) in lines {
            self.sink.write(format!("{line} {count}\n"))?;
        }
        self.sink.flush()
    }
}

fn line(entry: &Entry) -> String {
    let mut line = clean(&comm_text(&entry.comm));
    push(&mut line, &entry.user, "");
    push(&mut line, &entry.kernel, "_[k]");
    line
}

fn push(line: &mut String, stack: &Stack, mark: &str) {
    for (_, frame) in stack.frames().rev() {
        line.push(';');
        line.push_str(&clean(&name(frame)));
        line.push_str(if frame.inlined { "_[i]" } else { mark });
    }
}

/// What a person calls the frame: without a symbol, its module in brackets.
pub(super) fn name(frame: &Frame) -> String {
    match (&frame.symbol, &frame.module) {
        (Some(symbol), _) => symbol.to_string(),
        (None, Some(module)) => {
            let file = module.rsplit('/').next().unwrap_or(module);
            format!("[{}]", file.trim_matches(['[', ']']))
        }
        (None, None) => "[unknown]".into(),
    }
}

/// A semicolon ends a frame and a line break a stack, so names can't have them.
fn clean(name: &str) -> String {
    printable(name).replace(';', ":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbolize::frame::Location;
    use std::rc::Rc;

    fn stack(names: &[&str]) -> Rc<Stack> {
        let location = |name: &&str| Location {
            address: 0,
            frames: Rc::from([Frame { symbol: Some(Rc::from(*name)), ..Frame::default() }]),
        };
        Rc::new(Stack::new(names.iter().map(location).collect()))
    }

    #[test]
    fn outermost_first_and_the_kernel_on_top() {
        let entry = Entry {
            comm: *b"a;b\0\0\0\0\0\0\0\0\0\0\0\0\0",
            kernel: stack(&["read", "entry"]),
            user: stack(&["inner", "outer<T; 2>"]),
            count: 1,
        };
        assert_eq!(line(&entry), "a:b;outer<T: 2>;inner;entry_[k];read_[k]");
    }

    #[test]
    fn a_frame_without_a_symbol_shows_its_module() {
        let module = |name: &str| Frame { module: Some(Rc::from(name)), ..Frame::default() };
        assert_eq!(name(&module("/usr/lib/libc.so.6")), "[libc.so.6]");
        assert_eq!(name(&module("[vdso]")), "[vdso]");
        assert_eq!(name(&Frame::default()), "[unknown]");
    }
}
