//! What was typed, as a tree: the grammar of `perf list` and `perf record -e`, and of probes.
//!
//! | | |
//! |---|---|
//! | `cycles`, `page-faults` | events that have the same name everywhere ([`Generic`]) |
//! | `LLC-load-misses` | cache events ([`CacheEvent`]) |
//! | `r1a8` | the processor's number for an event, in hexadecimal |
//! | `4:0x1a8` | `type` and `config` |
//! | `mem-loads` | an event of some PMU, by its name in sysfs |
//! | `cpu/event=0x3c,umask=1/` | an event of this PMU, or of those that the pattern matches |
//! | `sched:sched_switch`, `sched:*` | tracepoints |
//! | `mem:0x1000/8:rw` | a breakpoint: address, length, and access |
//! | `kprobe:do_exit+0x10`, `kretprobe:do_exit` | a function of the kernel, or its return |
//! | `uprobe:/bin/sh:main`, `uretprobe:/bin/sh:0x4000` | a function of a file, or an offset in it |
//!
//! Behind each there may be terms, `cycles/period=1000,name=c/`, and modifiers, `cycles:u`. Several are
//! separated by commas. `{cycles,instructions}:u` is a group, which is on the PMU as a whole or not at all.

mod cursor;
mod display;
mod error;
pub mod filter;
mod modifiers;
mod parser;
#[cfg(test)]
mod tests;

pub use error::{Problem, SyntaxError};
pub use modifiers::{Modifiers, Precise};
pub use parser::parse;
pub(crate) use parser::{parse_terms, raw};

use crate::{cache::CacheEvent, generic::Generic};

/// All that one option names. There is at least one.
///
/// [`Display`](std::fmt::Display) gives text that reads as the same tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events(pub Vec<Item>);

/// One of what commas separate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// `cycles:u`
    Event(Event),
    /// `{cycles,instructions}:u`
    Group(Group),
}

/// Events that are counted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// A word right before the brace.
    pub name: Option<String>,
    /// The leader first. There is at least one.
    pub events: Vec<Event>,
    /// What is added to the modifiers of each event.
    pub modifiers: Modifiers,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What fires.
    pub what: What,
    /// What is between the slashes.
    pub terms: Vec<Term>,
    /// The letters at the end.
    pub modifiers: Modifiers,
}

/// What fires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A name that is the same on every machine.
    Generic(Generic),
    /// A cache event.
    Cache(CacheEvent),
    /// `rHEX`: the processor's number.
    Raw(u64),
    /// `TYPE:CONFIG`, both as in `perf_event_attr`.
    Numeric {
        /// `perf_event_attr.type`
        kind: u32,
        /// `perf_event_attr.config`
        config: u64,
    },
    /// A name that only a machine can know.
    Name(String),
    /// `PMU/terms/`: a PMU, or a pattern for some. Also an event of a PMU that is followed by terms.
    Pmu(String),
    /// `SYSTEM:NAME`: a tracepoint, or patterns for some.
    Tracepoint {
        /// The folder in tracefs.
        system: String,
        /// The event in it.
        name: String,
    },
    /// `mem:ADDRESS`: an access to memory.
    Breakpoint {
        /// Where.
        address: u64,
        /// 1 to 8 bytes, if it was said.
        length: Option<u8>,
        /// What kind of access.
        access: Access,
    },
    /// `kprobe:`, `kretprobe:`
    Kprobe {
        /// Where in the kernel.
        place: Place,
        /// Whether the function's return is meant.
        returns: bool,
    },
    /// `uprobe:`, `uretprobe:`
    Uprobe {
        /// The file.
        path: String,
        /// Where in it.
        place: Place,
        /// Whether the function's return is meant.
        returns: bool,
    },
}

/// Which accesses a breakpoint is for. At least one is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// `r`
    pub read: bool,
    /// `w`
    pub write: bool,
    /// `x`
    pub execute: bool,
}

/// A place in code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A function, and the bytes after its start.
    Symbol {
        /// Without quotes.
        name: String,
        /// In bytes.
        offset: u64,
    },
    /// An address of the kernel, or an offset in a file.
    Address(u64),
}

/// One term: `umask=0x1`, `inv`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Before the equals sign.
    pub name: String,
    /// Behind it.
    pub value: Option<Value>,
}

/// What a term is set to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number, typed in decimal.
    Decimal(u64),
    /// A number, typed in hexadecimal.
    Hex(u64),
    /// Anything else, without quotes.
    Text(String),
}
