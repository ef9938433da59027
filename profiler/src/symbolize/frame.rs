//! What an address is called.

use std::{cell::OnceCell, rc::Rc};

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
        const ENTRIES: [&str; 7] =
            ["_start", "__clone", "clone", "__clone3", "clone3", "thread_start", "runtime.goexit"];
        let outermost = self.frames().next_back().and_then(|(_, frame)| frame.symbol.as_deref());
        outermost.is_some_and(|name| ENTRIES.contains(&name.trim_end_matches(".abi0")))
    }
}
