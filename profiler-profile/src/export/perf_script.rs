//! The text of `perf script`, one block a sample, which stackcollapse-perf.pl and other programs read:
//!
//! ```text
//! mysqld 812/840 [003] 7.123456: 10000000 cpu-clock:
//!         ffffffffaa41d4d8 vfs_read+0x48 ([kernel.kallsyms])
//!             55d0c1f3a2b0 row_search_mvcc+0x120 (/usr/sbin/mysqld)
//!
//! ```
//!
//! Frames are indented by a tab. The fields are those of `perf script -F
//! comm,pid,tid,cpu,time,period,event,ip,sym,symoff,dso`, and times are of CLOCK_MONOTONIC. Their layout is perf's
//! (`tools/perf/builtin-script.c` in Linux), which has no escapes. So what would be read as another field is
//! altered: a space in the name of a file, and a number in that of a thread. Samples that were counted have neither a
//! time nor a CPU; both are 0 then, and the period is what they stand for together.

use std::{
    borrow::Cow,
    fmt::Write as _,
    io::{self, Write},
    sync::Arc,
};

use super::{
    Exporter, Row,
    folded::{KERNEL, UNKNOWN},
    format::{Export, Format, Processes},
    rendered::Rendered,
};
use crate::{
    frame::{Frame, Origin},
    ledger::memory::Cache,
    printable::printable,
    sample::Comm,
    stack::Stack,
};

/// The format, by name.
pub const FORMAT: Format = Format {
    name: "perf",
    help: "The text of `perf script`, streamed, for the programs that collapse its stacks",
    extensions: &["perf.txt"],
    processes: Processes::Never,
    is_binary: false,
    viewers: "stackcollapse-perf.pl, profiler.firefox.com",
    has_ledger: false,
    export: Export::Stream(|options| Box::new(PerfScript::new(options.rendered_bytes))),
};

/// Samples as `perf script` shows them, as they come.
struct PerfScript {
    rendered: Rendered<Arc<str>>,
    block: String,
}

impl PerfScript {
    /// Keeps so many bytes of stacks that are rendered.
    fn new(rendered_bytes: usize) -> Self {
        Self { rendered: Rendered::new(rendered_bytes), block: String::new() }
    }
}

impl Exporter for PerfScript {
    fn add(&mut self, row: Row<'_>, to: &mut dyn Write) -> io::Result<()> {
        let Self { rendered, block } = self;
        let Row { task, source, value, .. } = row;
        block.clear();
        let (tgid, tid) = (task.tgid, task.tid);
        let (time_ns, cpu) = row.moment.map_or((0, 0), |it| (it.time_ns, it.cpu));
        let (seconds, micros) = (time_ns / 1_000_000_000, time_ns / 1_000 % 1_000_000);
        let event = printable(&source.name).replace(' ', "_");
        let _ = writeln!(
            block,
            "{} {tgid}/{tid} [{cpu:03}] {seconds}.{micros:06}: {value} {event}: ",
            command(&task.comm)
        );
        for (half, no_module) in [(row.kernel, KERNEL), (row.user, UNKNOWN)] {
            let is_made = |(_, frame): (u64, &Frame)| is_made(frame);
            if half.frames().any(is_made) {
                // The file that perf names is that of the process.
                block.push_str(&render(half, no_module, tgid));
            } else {
                // A half has either kernel addresses or user addresses, and is always rendered as the same.
                block.push_str(&rendered.get(half, |half| render(half, no_module, tgid).into()));
            }
        }
        block.push('\n');
        to.write_all(block.as_bytes())
    }

    fn account(&self) -> Vec<Cache> {
        vec![self.rendered.account()]
    }
}

/// The thread's name as far as the line that it begins can have it.
fn command(comm: &Comm) -> String {
    let text = comm.text();
    let text = printable(text.trim());
    let is_number = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'/')
    };
    if text.is_empty() {
        UNKNOWN.to_owned()
    } else if let Some(rest) = text.strip_prefix('#') {
        // It would be a comment.
        format!("\\x23{rest}")
    } else if text.split(' ').skip(1).any(is_number) {
        // The first number behind a space is the id. Those who collapse stacks write spaces in this way, too.
        text.replace(' ', "_")
    } else if text.chars().count() == 1 {
        // The pattern of stackcollapse-perf.pl wants two characters before the space.
        format!("{text} ")
    } else {
        text.into_owned()
    }
}

/// Whether the code was made at run time, and its name is from a file that the process has written.
fn is_made(frame: &Frame) -> bool {
    matches!(frame.origin, Origin::PerfMap | Origin::Jitdump)
}

fn render(stack: &Stack, no_module: &str, tgid: u32) -> String {
    let mut text = String::new();
    for (address, frame) in stack.frames() {
        let _ = write!(text, "\t{address:>16x} ");
        match frame.name().map(printable) {
            Some(name) if frame.inlined => {
                let _ = writeln!(text, "{name} (inlined)");
                continue;
            }
            Some(name) => {
                let _ = write!(text, "{name}+{:#x}", frame.offset);
            }
            None => text.push_str(UNKNOWN),
        }
        let module = match frame.module.as_deref().filter(|module| !module.is_empty()) {
            _ if is_made(frame) => Cow::Owned(format!("/tmp/perf-{tgid}.map")),
            // As perf calls it; what is in brackets is taken for the kernel's.
            Some("[anon]") => Cow::Borrowed("//anon"),
            Some(module) => Cow::Owned(printable(module).replace(' ', "\\x20")),
            None => Cow::Borrowed(no_module),
        };
        let _ = writeln!(text, " ({module})");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        export::tests,
        sample::{Sample, Task},
        store::Store,
    };

    fn function(name: &str, module: Option<&str>) -> Frame {
        let (symbol, module) = (Some(Arc::from(name)), module.map(Arc::from));
        Frame { symbol, module, offset: 0x1f, ..Frame::default() }
    }

    fn comm(text: &str) -> Comm {
        let mut comm = Comm::default();
        comm.0.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte);
        comm
    }

    fn written(samples: &[Sample]) -> String {
        let (mut perf, mut written) = (PerfScript::new(1 << 20), Vec::new());
        for sample in samples {
            perf.add(sample.into(), &mut written).unwrap();
        }
        String::from_utf8(written).unwrap()
    }

    #[test]
    fn a_block_is_as_perf_shows_it() {
        let mut store = Store::default();
        let read = function("vfs_read", None);
        let module = function("ext4_read", Some("[ext4]"));
        let kernel = store.intern(vec![
            tests::location(0xffff_ffff_aa41_d4d8, &[read]),
            tests::location(0xffff_ffff_c041_d4d8, &[module]),
        ]);
        let inlined =
            Frame { inlined: true, ..function("operator()(int) const", Some("/bin/a b")) };
        let unnamed = Frame { symbol: None, ..function("", Some("/lib/libc.so.6")) };
        let made =
            Frame { origin: Origin::PerfMap, ..function("LazyCompile:~f a.js:1", Some("[JIT]")) };
        let user = store.intern(vec![
            tests::location(0x55d0_c1f3_a2b0, &[inlined, function("a\nb", Some("/bin/a b"))]),
            tests::location(0x1000, &[unnamed]),
            tests::location(0x2000, &[made]),
            tests::location(0x3000, &[function("", Some("[anon]"))]),
            tests::location(0x4000, &[Frame::default()]),
        ]);
        let of = tests::sample();
        let task = Task { comm: comm("V8 Worker"), ..of.task.clone() };
        let whole = Sample { time_ns: 7_123_456_789, task, kernel, user, ..of.clone() };
        assert_eq!(
            written(&[whole, of]),
            "V8 Worker 4/5 [006] 7.123456: 3 cycles: \n\
             \tffffffffaa41d4d8 vfs_read+0x1f ([kernel.kallsyms])\n\
             \tffffffffc041d4d8 ext4_read+0x1f ([ext4])\n\
             \t    55d0c1f3a2b0 operator()(int) const (inlined)\n\
             \t    55d0c1f3a2b0 a\\nb+0x1f (/bin/a\\x20b)\n\
             \t            1000 [unknown] (/lib/libc.so.6)\n\
             \t            2000 LazyCompile:~f a.js:1+0x1f (/tmp/perf-4.map)\n\
             \t            3000 [unknown] (//anon)\n\
             \t            4000 [unknown] ([unknown])\n\
             \n\
             a  4/5 [006] 0.000000: 3 cycles: \n\
             \n"
        );
    }

    #[test]
    fn a_thread_may_have_any_name() {
        for (name, written) in [
            ("mysqld", "mysqld"),
            ("V8 Worker 7x", "V8 Worker 7x"),
            ("node 12 3", "node_12_3"),
            ("12 a", "12 a"),
            ("a 1/2", "a_1/2"),
            ("#1", "\\x231"),
            (" \n", "[unknown]"),
            ("", "[unknown]"),
            ("a\x1b[2J", "a\\x1b[2J"),
            ("a", "a "),
        ] {
            assert_eq!(command(&comm(name)), written);
        }
    }
}
