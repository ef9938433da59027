//! One block a sample, in the shape of the libbpf `profile` example:
//!
//! ```text
//! COMM: mysqld (pid=812 tid=840) @ CPU 3  12:30:01.123456
//! Kernel:
//!   0 [<ffffffffaa41d4d8>] mwait_idle_with_hints+0x48
//! Userspace:
//!   0 [<000055d0c1f3a2b0>] row_search_mvcc+0x120 [/usr/sbin/mysqld]
//! ```

use std::fmt::Write as _;

use jiff::{Timestamp, tz::TimeZone};

use super::{NamedSample, Output, Sink};
use crate::printable::printable;
use crate::{
    config::Config, error::Result, ledger::Ledger, sample::comm_text, symbolize::frame::Stack,
};

pub(super) struct Text {
    sink: Sink,
    kernel: bool,
    user: bool,
    clock: WallClock,
    block: String,
}

impl Text {
    pub(super) fn new(sink: Sink, config: &Config) -> Self {
        let (kernel, user) = (config.kernel_stacks, config.user_stacks);
        Self { sink, kernel, user, clock: WallClock::new(), block: String::new() }
    }
}

impl Output for Text {
    fn sample(&mut self, sample: &NamedSample<'_>) -> Result<()> {
        let raw = sample.raw;
        let block = &mut self.block;
        block.clear();
        let comm = comm_text(&raw.comm);
        let (comm, tgid, tid, cpu) = (printable(&comm), raw.tgid, raw.tid, raw.cpu);
        let _ = write!(block, "COMM: {comm} (pid={tgid} tid={tid}) @ CPU {cpu}  ");
        self.clock.write(raw.time_ns, block);
        block.push('\n');
        if self.kernel {
            half(block, "Kernel:\n", "No Kernel Stack\n", &sample.kernel);
        }
        if self.user {
            half(block, "Userspace:\n", "No Userspace Stack\n", &sample.user);
        }
        block.push('\n');
        self.sink.write(block)
    }

    fn flush(&mut self) -> Result<()> {
        self.sink.flush()
    }

    fn finish(&mut self, _: &Ledger) -> Result<()> {
        self.sink.flush()
    }
}

fn half(block: &mut String, title: &str, none: &str, stack: &Stack) {
    if stack.locations.is_empty() {
        block.push_str(none);
        return;
    }
    block.push_str(title);
    block.push_str(stack.text(render));
}

fn render(stack: &Stack) -> String {
    let mut text = String::new();
    for (depth, location) in stack.locations.iter().enumerate() {
        for frame in location.frames.iter() {
            let (symbol, module) = (frame.symbol.as_deref(), frame.module.as_deref());
            if frame.inlined {
                let _ = write!(text, "{:25}", "");
            } else {
                let _ = write!(text, "{depth:>3} [<{:016x}>] ", location.address);
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
    /// CLOCK_REALTIME minus CLOCK_MONOTONIC at the start, in nanoseconds.
    offset_ns: i128,
    second: i128,
    text: String,
}

impl WallClock {
    fn new() -> Self {
        let now = |clock| {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `time` outlives the call, and both clocks always exist.
            unsafe { libc::clock_gettime(clock, &raw mut time) };
            i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
        };
        let offset_ns = now(libc::CLOCK_REALTIME) - now(libc::CLOCK_MONOTONIC);
        Self { zone: TimeZone::system(), offset_ns, second: i128::MIN, text: String::new() }
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
