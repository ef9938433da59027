//! What an address is called.

use std::{fmt, sync::Arc};

use profiler_common::build_id::BuildId;

/// One function at one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The function's name, demangled.
    pub symbol: Option<Arc<str>>,
    /// Bytes from the start of the function; without a symbol, from the start of the module's file.
    pub offset: u64,
    /// The file, as the process names it, or the kernel's module.
    pub module: Option<Arc<str>>,
    /// Source file, and line where known.
    pub source: Option<(Arc<str>, Option<u32>)>,
    /// Whether the function was inlined into the one that follows.
    pub inlined: bool,
    /// The file's build id, where it has one.
    pub build_id: Option<BuildId>,
    /// Where the name comes from, or why there is none.
    pub origin: Origin,
}

impl Frame {
    /// The function's name. One that is empty or blank is none: nobody could see it.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.symbol.as_deref().filter(|name| !name.trim().is_empty())
    }
}

/// Where the name of a frame comes from, or why there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The symbol table of an ELF file.
    Elf,
    /// The debug info of an ELF file.
    Dwarf,
    /// The kernel's symbols, with those of its modules and BPF programs.
    Kallsyms,
    /// The vDSO's symbols.
    Vdso,
    /// The map of names that a process has written for the code it made.
    PerfMap,
    /// The dump that a process has written of the code it made.
    Jitdump,
    /// What CPython keeps of the code that it runs.
    Cpython,
    /// A profile that was written before.
    Imported,
    /// No name: the address lies in no mapping that we know.
    #[default]
    NotMapped,
    /// No name: the file can't be read.
    NoFile(Missing),
    /// No name: the file has no symbol there.
    NoSymbol,
    /// No name: the file is no ELF file, or one that can't be read.
    BadFile,
    /// No name: the file was given up, since parsing it takes too much, or it claims what it can't have.
    Barred,
    /// No name yet: there is no parser process.
    NoParser,
    /// No name: code made at run time, and the process says nothing of it.
    NoMap,
    /// The same, and an earlier process with its id has left a map.
    OldMap,
    /// The same, and of what the process says some can't be read.
    BadMap,
    /// No name: the process had ended, or ran another program, before its memory was read.
    ProcessGone,
    /// No name: the interpreter had given up the code by then. Other code may be in its place.
    CodeGone,
    /// No name: what the interpreter seems to run is no code, or damaged.
    NoCode,
    /// No name yet: the process's memory may not be read, or there is no time for it.
    Unread,
}

impl Origin {
    /// Whether there is a name.
    #[must_use]
    pub fn is_named(self) -> bool {
        matches!(
            self,
            Self::Elf
                | Self::Dwarf
                | Self::Kallsyms
                | Self::Vdso
                | Self::PerfMap
                | Self::Jitdump
                | Self::Cpython
                | Self::Imported
        )
    }
}

impl Origin {
    /// Whether it is of code that an interpreter runs.
    #[must_use]
    pub fn is_interpreted(self) -> bool {
        matches!(
            self,
            Self::Cpython | Self::ProcessGone | Self::CodeGone | Self::NoCode | Self::Unread
        )
    }

    /// What would give such frames a name.
    #[must_use]
    pub fn hint(self) -> Option<&'static str> {
        match self {
            Self::NoSymbol => Some("install its debug package, or use --debuginfod"),
            Self::NoMap => Some("have the runtime write a perf map or a jitdump"),
            Self::OldMap => Some("have the runtime write a map of its own, after it was started"),
            Self::BadFile => Some("see what `readelf -a` says of it"),
            Self::BadMap => Some(
                "try the runtime's other format (jitdump or perf map), or a newer version of it",
            ),
            Self::NotMapped => Some("the stack was followed through code without frame pointers"),
            Self::NoFile(Missing::Changed | Missing::Replaced) => Some("restart the program"),
            Self::NoFile(Missing::TooMany) => Some("raise `ulimit -n`"),
            Self::NoFile(Missing::Leased) => Some("see which program holds the lease: /proc/locks"),
            Self::NoFile(Missing::Unanswered) => Some("see why its file system does not answer"),
            _ => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Elf => "elf",
            Self::Dwarf => "dwarf",
            Self::Kallsyms => "kallsyms",
            Self::Vdso => "vdso",
            Self::PerfMap => "perf map",
            Self::Jitdump => "jitdump",
            Self::Cpython => "cpython",
            Self::Imported => "imported",
            Self::NotMapped => "not mapped",
            Self::NoFile(missing) => return missing.fmt(f),
            Self::NoSymbol => "no symbol",
            Self::BadFile => "no readable ELF file",
            Self::Barred => "file can't be parsed within its limits",
            Self::NoParser => "no parser process",
            Self::NoMap => "no map of code made at run time",
            Self::OldMap => "map older than the process",
            Self::BadMap => "malformed map of code made at run time",
            Self::ProcessGone => "process gone",
            Self::CodeGone => "code gone",
            Self::NoCode => "no code object",
            Self::Unread => "memory not read",
        })
    }
}

/// What an `Arc` has beside its value, and the allocator.
pub(crate) const COUNTS_BYTES: usize = 32;

/// What the frames of an address take of the heap. Names of modules are shared by all.
#[must_use]
pub fn frames_bytes(frames: &Arc<[Frame]>) -> usize {
    let text = |it: &Arc<str>| it.len() + COUNTS_BYTES;
    let of_frame = |frame: &Frame| {
        let source = frame.source.as_ref().map_or(0, |(path, _)| text(path));
        size_of::<Frame>() + frame.symbol.as_ref().map_or(0, text) + source
    };
    COUNTS_BYTES + frames.iter().map(of_frame).sum::<usize>()
}

/// Why a file can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Missing {
    /// The process is gone, and no file is at the path.
    Gone,
    /// Another file is at the path now.
    Replaced,
    /// It was written to since it was mapped.
    Changed,
    /// Not a regular file, such as a device.
    Special,
    /// Too many files are open.
    TooMany,
    /// It was asked for, and no answer has come yet.
    Unanswered,
    /// Its owner holds a lease on it (`F_SETLEASE`); it is asked for again.
    Leased,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "file gone",
            Self::Replaced => "file replaced",
            Self::Changed => "file changed",
            Self::Special => "no regular file",
            Self::TooMany => "too many open files",
            Self::Unanswered => "file system does not answer",
            Self::Leased => "file leased",
        })
    }
}
