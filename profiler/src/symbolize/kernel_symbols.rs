//! Names of the kernel's code: asked of the kernel one by one, or looked up in all that it has, which are read
//! when the first is needed.

use std::sync::Arc;

use blazesym::{
    MaybeDefault,
    symbolize::{
        Input, Symbolized, Symbolizer as Blazesym,
        source::{Kernel, Source},
    },
};
use profiler_profile::ledger::memory::{Cache, count};
use profiler_symbols::demangle::demangle;

use super::{elf, kernel_code::LaterCode, kernel_modules::KernelModules};
use crate::{bpf::kernel_names::KernelNames, heap, perf::record::Record};

/// What is known of an address.
pub(super) enum Found<'a> {
    /// The kernel has told its symbol, and where that starts.
    Told {
        /// Demangled.
        symbol: Arc<str>,
        start: u64,
        is_bpf_program: bool,
    },
    /// It was found among all symbols, or in debug info.
    Read(Symbolized<'a>),
    /// There is no symbol.
    Nothing,
}

/// The kernel's symbols.
pub(super) struct KernelSymbols {
    lines: bool,
    names: Option<KernelNames>,
    /// `None` until all symbols were read, and for ever if none has to be.
    all: Option<Blazesym>,
    /// What these take.
    bytes: usize,
    source: Source<'static>,
    /// `None` until the first address is looked up.
    modules: Option<KernelModules>,
    later: LaterCode,
}

impl KernelSymbols {
    /// The symbols, with the lines of the kernel's debug info if these are asked for.
    pub(super) fn new(lines: bool) -> Self {
        let mut kernel = Kernel { debug_syms: lines, ..Kernel::default() };
        if !lines {
            kernel.vmlinux = MaybeDefault::None;
        }
        Self {
            lines,
            names: None,
            all: None,
            bytes: 0,
            source: Source::Kernel(kernel),
            modules: None,
            later: LaterCode::default(),
        }
    }

    /// Has the kernel asked from now on. It tells no lines.
    pub(super) fn ask(&mut self, names: KernelNames) {
        self.names = Some(names).filter(|_| !self.lines);
    }

    /// Reads all symbols now, in place of when the first is needed.
    pub(super) fn read(&mut self) {
        self.modules.get_or_insert_with(KernelModules::now);
        self.all.get_or_insert_with(|| {
            let (all, bytes) = read_all(self.lines, &self.source);
            self.bytes = bytes;
            all
        });
    }

    /// Takes in which code the kernel has got or given up since.
    pub(super) fn change(&mut self, records: &[Record]) {
        for record in records {
            self.later.change(record);
        }
    }

    /// Whether the kernel has other modules by now, after which what was found no longer holds.
    pub(super) fn follow_modules(&mut self) -> bool {
        let Some(modules) = &mut self.modules else { return false };
        modules.follow(|| {
            if self.all.take().is_some() {
                let (all, bytes) = read_all(self.lines, &self.source);
                (self.all, self.bytes) = (Some(all), bytes);
            }
        })
    }

    /// What is kept of them.
    pub(super) fn account(&self) -> Cache {
        Cache {
            name: "kernel symbols",
            entries: u64::from(self.all.is_some()),
            bytes: count(self.bytes),
            ..Cache::default()
        }
    }

    /// What the address belongs to.
    pub(super) fn find(&mut self, address: u64) -> Found<'_> {
        if let Some((start, symbol)) = self.later.find(address) {
            return Found::Told { symbol, start, is_bpf_program: false };
        }
        self.modules.get_or_insert_with(KernelModules::now);
        match self.names.as_ref().map(|names| names.find(address)) {
            Some(Ok(Some(name))) => {
                return Found::Told {
                    start: address.wrapping_sub(name.offset),
                    is_bpf_program: is_bpf_program(&name.symbol),
                    symbol: Arc::from(demangle(name.symbol.as_bytes())),
                };
            }
            Some(Ok(None)) => return Found::Nothing,
            Some(Err(error)) => {
                tracing::debug!(
                    "the kernel does not tell names any more, so all are read: {error}"
                );
                self.names = None;
            }
            None => {}
        }
        self.read();
        let Some(all) = &self.all else { return Found::Nothing };
        let found = all.symbolize_single(&self.source, Input::AbsAddr(address));
        found.map_or(Found::Nothing, Found::Read)
    }
}

/// All symbols, and what they take of the heap.
fn read_all(lines: bool, source: &Source<'_>) -> (Blazesym, usize) {
    let blazesym = elf::blazesym(lines);
    // Whether there is anything at the address does not matter.
    let read = || drop(blazesym.symbolize_single(source, Input::AbsAddr(u64::MAX)));
    let bytes = heap::grown_by(read).1;
    (blazesym, bytes)
}

/// Whether the symbol is that of a BPF program: `bpf_prog_`, its tag, and its name, if it has one.
fn is_bpf_program(symbol: &str) -> bool {
    let tag = symbol.strip_prefix("bpf_prog_").and_then(|rest| rest.split('_').next());
    tag.is_some_and(|tag| tag.len() == 16 && tag.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bpf_programs_are_told_by_their_tag() {
        assert!(is_bpf_program("bpf_prog_6deef7357e7b4530_sample"));
        assert!(is_bpf_program("bpf_prog_6deef7357e7b4530"));
        for other in ["bpf_prog_load", "bpf_prog_6deef7357e7b453_f", "prog_6deef7357e7b4530"] {
            assert!(!is_bpf_program(other), "{other}");
        }
    }

    #[test]
    fn nothing_is_read_before_it_is_needed() {
        let mut symbols = KernelSymbols::new(false);
        symbols.change(&[Record::Ksymbol {
            start: 100,
            bytes: 10,
            name: (*b"later").into(),
            registered: true,
        }]);
        assert!(matches!(symbols.find(105), Found::Told { start: 100, .. }));
        assert!(!symbols.follow_modules());
        assert!(symbols.all.is_none() && symbols.modules.is_none());
        assert!(!matches!(symbols.find(1), Found::Told { .. }));
        assert!(symbols.all.is_some() && symbols.modules.is_some());
    }
}
