//! One block a sample, in the shape of the libbpf `profile` example:
//!
//! ```text
//! COMM: mysqld (pid=812 tid=840) @ CPU 3  12:30:01.123456
//! Kernel:
//!   0 [<ffffffffaa41d4d8>] mwait_idle_with_hints+0x48
//! Userspace:
//!   0 [<000055d0c1f3a2b0>] row_search_mvcc+0x120 [/usr/sbin/mysqld]
//! ```

use std::{
    fmt::Write as _,
    io::{self, Write},
    sync::Arc,
};

use jiff::{Timestamp, tz::TimeZone};

use super::{
    Exporter, Row,
    folded::UNKNOWN,
    format::{Export, Format, Options, Processes},
    rendered::Rendered,
};
use crate::{ledger::memory::Cache, printable::printable, stack::Stack};

/// Samples as blocks of text for people, as they come.
struct Text {
    options: Options,
    clock: WallClock,
    rendered: Rendered<Arc<str>>,
    block: String,
}

/// The format, by name.
pub const FORMAT: Format = Format {
    name: "text",
    help: "A block of text per sample, streamed",
    extensions: &["txt"],
    processes: Processes::Never,
    is_binary: false,
    viewers: "less",
    has_ledger: false,
    export: Export::Stream(|options| Box::new(Text::new(options))),
};

impl Text {
    fn new(options: Options) -> Self {
        let rendered = Rendered::new(options.rendered_bytes);
        let clock = WallClock::new(options.real_time_ahead_ns, options.zone.clone());
        Self { options, clock, rendered, block: String::new() }
    }
}

impl Exporter for Text {
    fn add(&mut self, row: Row<'_>, to: &mut dyn Write) -> io::Result<()> {
        let Self { block, rendered, options, clock, .. } = self;
        block.clear();
        let comm = if row.task.is_unknown() { UNKNOWN.into() } else { row.task.comm.text() };
        let (comm, tgid, tid) = (printable(&comm), row.task.tgid, row.task.tid);
        let _ = write!(block, "COMM: {comm} (pid={tgid} tid={tid}) ");
        if let Some(moment) = row.moment {
            let _ = write!(block, "@ CPU {}  ", moment.cpu);
            clock.write(moment.time_ns, block);
        } else {
            let _ = write!(block, "x {}", row.count);
        }
        if options.names_events {
            let _ = write!(block, "  {}", printable(&row.source.name));
        }
        block.push('\n');
        if options.kernel_stacks {
            half(block, "Kernel:\n", "No Kernel Stack\n", row.kernel, rendered);
        }
        if options.user_stacks {
            half(block, "Userspace:\n", "No Userspace Stack\n", row.user, rendered);
        }
        block.push('\n');
        to.write_all(block.as_bytes())
    }

    fn account(&self) -> Vec<Cache> {
        vec![self.rendered.account()]
    }
}

fn half(
    block: &mut String,
    title: &str,
    none: &str,
    stack: &Stack,
    rendered: &mut Rendered<Arc<str>>,
) {
    if stack.is_empty() {
        block.push_str(none);
        return;
    }
    block.push_str(title);
    block.push_str(&rendered.get(stack, |stack| render(stack).into()));
}

fn render(stack: &Stack) -> String {
    let mut text = String::new();
    for (depth, location) in stack.locations().iter().enumerate() {
        for frame in location.frames.iter() {
            let (symbol, module) = (frame.name(), frame.module.as_deref());
            if frame.inlined {
                let _ = write!(text, "{:25}", "");
            } else {
                let _ = write!(text, "{depth:>3} [<{:016x}>] ", location.address.value);
            }
            match (symbol.map(printable), module.map(printable)) {
                (Some(symbol), _) if frame.inlined => {
                    let _ = write!(text, "{symbol} [inlined]");
                }
                (Some(symbol), Some(module)) => {
                    let _ = write!(text, "{symbol}+{:#x} [{module}]", frame.offset);
                }
                (Some(symbol), None) => {
                    let _ = write!(text, "{symbol}+{:#x}", frame.offset);
                }
                (None, Some(module)) => {
                    let (offset, why) = (frame.offset, frame.origin);
                    let _ = write!(text, "[unknown] [{module}+{offset:#x}] ({why})");
                }
                (None, None) => {
                    let _ = write!(text, "[unknown] ({})", frame.origin);
                }
            }
            if let Some((file, line)) = &frame.source {
                let _ = write!(text, " {}:{}", printable(file), line.unwrap_or_default());
            }
            text.push('\n');
        }
    }
    text
}

/// Turns CLOCK_MONOTONIC into local time of day. The zone's rules are asked once a second.
struct WallClock {
    zone: TimeZone,
    /// CLOCK_REALTIME minus CLOCK_MONOTONIC, in nanoseconds.
    offset_ns: i128,
    second: i128,
    text: String,
}

impl WallClock {
    /// The clock of a machine where CLOCK_REALTIME is so many nanoseconds ahead of CLOCK_MONOTONIC.
    fn new(offset_ns: i128, zone: TimeZone) -> Self {
        Self { zone, offset_ns, second: i128::MIN, text: String::new() }
    }

    fn write(&mut self, monotonic_ns: u64, to: &mut String) {
        let real_ns = self.offset_ns + i128::from(monotonic_ns);
        let second = real_ns.div_euclid(1_000_000_000);
        if second != self.second {
            self.second = second;
            self.text.clear();
            let time = Timestamp::from_nanosecond(second * 1_000_000_000).unwrap_or_default();
            let _ = write!(self.text, "{}", time.to_zoned(self.zone.clone()).strftime("%H:%M:%S"));
        }
        let micros = real_ns.rem_euclid(1_000_000_000) / 1_000;
        let _ = write!(to, "{}.{micros:06}", self.text);
    }
}
