//! What an address is called.

use std::{cell::OnceCell, fmt, rc::Rc};

use crate::{build_id::BuildId, process::file::Missing};

/// One function at one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The function's name, demangled.
    pub symbol: Option<Rc<str>>,
    /// Bytes from the start of the function; without a symbol, from the start of the module's file.
    pub offset: u64,
    /// The file, as the process names it, or the kernel's module.
    pub module: Option<Rc<str>>,
    /// Source file, and line where known.
    pub source: Option<(Rc<str>, Option<u32>)>,
    /// Whether the function was inlined into the one that follows.
    pub inlined: bool,
    /// The file's build id, where it has one.
    pub build_id: Option<BuildId>,
    /// Where the name comes from, or why there is none.
    pub origin: Origin,
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
    /// No name: the address lies in no mapping that we know.
    #[default]
    NotMapped,
    /// No name: the file can't be read.
    NoFile(Missing),
    /// No name: the file has no symbol there.
    NoSymbol,
    /// No name: the file is no ELF file, or one that can't be read.
    BadFile,
    /// No name: code made at run time, and the process says nothing of it.
    NoMap,
    /// The same, and an earlier process with its id has left a map.
    OldMap,
    /// The same, and of what the process says some can't be read.
    BadMap,
}

impl Origin {
    /// Whether there is a name.
    #[must_use]
    pub fn is_named(self) -> bool {
        matches!(
            self,
            Self::Elf | Self::Dwarf | Self::Kallsyms | Self::Vdso | Self::PerfMap | Self::Jitdump
        )
    }
}

impl Origin {
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
            Self::NotMapped => "not mapped",
            Self::NoFile(missing) => return missing.fmt(f),
            Self::NoSymbol => "no symbol",
            Self::BadFile => "no readable ELF file",
            Self::NoMap => "no map of code made at run time",
            Self::OldMap => "map older than the process",
            Self::BadMap => "malformed map of code made at run time",
        })
    }
}

/// One address of a stack and the functions there: those inlined first, innermost first, then the
/// one they were inlined into.
#[derive(Clone, Debug)]
pub struct Location {
    /// The address as sampled.
    pub address: u64,
    /// At least one frame.
    pub frames: Rc<[Frame]>,
}

/// One half of a stack, innermost address first, resolved once however often it is sampled.
#[derive(Debug, Default)]
pub struct Stack {
    /// Its addresses.
    pub locations: Vec<Location>,
    text: OnceCell<String>,
}

impl Stack {
    /// A stack of these locations.
    #[must_use]
    pub fn new(locations: Vec<Location>) -> Self {
        Self { locations, text: OnceCell::new() }
    }

    /// The stack as the run's output writes it: made once.
    pub fn text(&self, write: impl FnOnce(&Self) -> String) -> &str {
        self.text.get_or_init(|| write(self))
    }

    /// All frames, innermost first, with their addresses.
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = (u64, &Frame)> {
        self.locations
            .iter()
            .flat_map(|location| location.frames.iter().map(|frame| (location.address, frame)))
    }

    /// Whether the outermost function is one that nothing calls: a program's or a thread's entry.
    #[must_use]
    pub fn reaches_entry(&self) -> bool {
        const ENTRIES: [&str; 4] = ["_start", "_dl_start_user", "thread_start", "runtime.goexit"];
        // Threads begin in them, but they are also called: by whom is missing where they are all there is.
        const CLONES: [&str; 4] = ["__clone", "clone", "__clone3", "clone3"];
        let mut frames = self.frames();
        let outermost = frames.next_back().and_then(|(_, frame)| frame.symbol.as_deref());
        let has_callees = frames.next().is_some();
        outermost
            .map(|name| name.trim_end_matches(".abi0"))
            .is_some_and(|name| ENTRIES.contains(&name) || (has_callees && CLONES.contains(&name)))
    }
}
