//! Names for addresses, by blazesym, each looked up once.

use std::{fs, sync::Arc, time::Duration};

use blazesym::{
    Pid,
    symbolize::{
        CodeInfo, Input, Symbolized, Symbolizer as Blazesym,
        source::{Process as ProcessSource, Source},
    },
};
use profiler_common::build_id::BuildId;
use profiler_common::sample::{INTERRUPTED, RUNS_CODE};
use profiler_profile::{
    address::{Address, AddressKind},
    frame::{Frame, Missing, Origin, frames_bytes},
    ledger::memory::Cache,
    stack::Location,
};

use super::{
    debuginfod::Debuginfod,
    elf::{self, ElfFiles, Mapped as MappedCode, Unread},
    found,
    jit::{JitNames, With},
    kernel_symbols::{Found, KernelSymbols},
    names::Names,
    python::{
        memory::Process as Python,
        names::{Named, PythonNames, Wanted},
    },
};
use crate::{
    bpf::kernel_names::KernelNames,
    cache::Bounded,
    limits::budget::CacheBudget,
    parser::{Bars, Budget, Parser},
    perf::record::Record,
    process::{
        file::{FileKey, MappedFile, is_memory_name},
        space::Mapped,
        table::Process,
    },
    procfs::maps::{self, Backing, MappedId, Mapping},
    realtime::Role,
    sample::Addresses,
};

/// Bytes of a name that are kept.
const LIMIT_NAME: usize = 4096;
/// What may be taken to name an address, or for the table that a walk needs. Samples wait meanwhile.
const BUDGET: Budget = Budget { cpu: Duration::from_secs(4), wall: Duration::from_secs(15) };

/// What is looked up: an offset in a file names the same function in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Kernel(u64),
    File(FileKey, u64),
    Vdso(u64),
}

/// Names addresses. Belongs to one thread: blazesym's caches are not shared.
pub struct Symbolizer {
    blazesym: Blazesym,
    kernel: KernelSymbols,
    files: ElfFiles,
    parser: Parser,
    debuginfod: Option<Debuginfod>,
    jit: JitNames,
    python: PythonNames,
    /// By where the address is, and how many bytes before it were looked up.
    frames: Bounded<(Place, u64), Arc<[Frame]>>,
    modules: Modules,
    names: Names,
    own_vdso: Option<Mapping<MappedId>>,
    not_mapped: Arc<[Frame]>,
    /// Of the user stack at hand: whether what is known of each address will stay.
    all_known: bool,
    /// Of the user stack at hand: files that were asked whether they are as they were mapped.
    checked: Vec<(Arc<MappedFile>, Result<(), Missing>)>,
}

impl Symbolizer {
    /// A symbolizer that, with `lines`, also reads debug info, and keeps so many bytes of what it has
    /// read of files. Debug files that are not here are sent for, if there is someone to ask. Files that
    /// are given up are shared by `bars`.
    #[must_use]
    pub fn new(
        lines: bool,
        cache_bytes: usize,
        debuginfod: Option<Debuginfod>,
        bars: Arc<Bars>,
    ) -> Self {
        let own_maps = fs::read("/proc/self/maps").unwrap_or_default();
        let own_vdso = maps::parse(&own_maps).into_iter().find(|it| it.backing == Backing::Vdso);
        Self {
            blazesym: elf::blazesym(lines),
            kernel: KernelSymbols::new(lines),
            files: ElfFiles::new(lines, cache_bytes),
            parser: Parser::start_holding(bars, BUDGET, Role::Naming, cache_bytes),
            debuginfod,
            jit: JitNames::default(),
            python: PythonNames::default(),
            frames: Bounded::new(usize::MAX, frames_bytes),
            modules: Modules::default(),
            names: Names::default(),
            own_vdso,
            not_mapped: Arc::from([Frame::default()]),
            all_known: true,
            checked: Vec::new(),
        }
    }

    /// Keeps names within these limits.
    pub fn keep_within(&mut self, budget: &CacheBudget) {
        self.frames = Bounded::new(budget.frames, frames_bytes);
        self.jit.limit(budget.jit);
        self.python.limit(budget.python);
    }

    /// What its caches hold.
    #[must_use]
    pub fn caches(&self) -> Vec<Cache> {
        vec![
            self.kernel.account(),
            self.files.account(),
            self.frames.account("names of addresses"),
            self.jit.account(),
            self.python.account(),
        ]
    }

    /// Who parses files for this thread.
    pub fn parser(&mut self) -> &mut Parser {
        &mut self.parser
    }

    /// Has the kernel asked for the names of its code from now on, in place of reading all of them.
    pub fn ask_kernel(&mut self, names: KernelNames) {
        self.kernel.ask(names);
    }

    /// Reads all of the kernel's symbols now, with its debug info if lines are wanted.
    pub fn read_kernel_symbols(&mut self) {
        self.kernel.read();
    }

    /// Takes in which code the kernel has got or given up since.
    pub fn kernel_has_changed(&mut self, records: &[Record]) {
        self.kernel.change(records);
        // Among them are addresses that had no name, or another.
        self.frames.clear();
    }

    /// Whether the kernel has other modules by now, so that stacks have to be named again. It does not look
    /// each time.
    pub fn follow_kernel_modules(&mut self) -> bool {
        let has_changed = self.kernel.follow_modules();
        if has_changed {
            self.frames.clear();
        }
        has_changed
    }

    /// Takes the debug files that have come meanwhile. If there are any, what was found before may
    /// have better names now.
    pub fn take_debug_files(&mut self) -> bool {
        let mut is_any = self.files.has_better_names();
        while let Some((id, file)) = self.debuginfod.as_mut().and_then(Debuginfod::arrived) {
            is_any |= self.files.add_debug_file(&mut self.parser, id, file);
        }
        if is_any {
            self.frames.clear();
        }
        is_any
    }

    /// Names the kernel half of a stack.
    pub fn kernel_stack(&mut self, addresses: Addresses<'_>) -> Vec<Location> {
        let locations = addresses.iter().enumerate().map(|(depth, address)| {
            let code = address;
            let kind = if depth == 0 { AddressKind::Sampled } else { AddressKind::Return };
            let address = Address { value: code, kind };
            let frames = self.cached(Place::Kernel(code), address, |this, back| {
                let address = code;
                let found = match this.kernel.find(address.wrapping_sub(back)) {
                    Found::Told { symbol, start, is_bpf_program } => {
                        let (offset, origin) = (address.wrapping_sub(start), Origin::Kallsyms);
                        let module = is_bpf_program.then(|| this.modules.intern("[bpf]"));
                        let symbol = Some(symbol);
                        let frame = Frame { symbol, offset, module, origin, ..Frame::default() };
                        return Arc::from([frame]);
                    }
                    Found::Read(found) => Some(found),
                    Found::Nothing => None,
                };
                let unnamed = Unnamed { offset: 0, module: None, why: Origin::NoSymbol };
                this.modules.frames(found, back, Origin::Kallsyms, None, unnamed)
            });
            Location { address, frames }
        });
        locations.collect()
    }

    /// Names the user half of a stack taken at a time. Also says whether that will stay: not if an
    /// address is mapped to nothing, or to code without a name yet.
    pub fn user_stack(
        &mut self,
        process: &Process,
        addresses: Addresses<'_>,
        time_ns: u64,
    ) -> (Vec<Location>, bool) {
        self.all_known = true;
        // The kernel's walk of frame pointers may end with the zero that it found.
        let addresses = addresses.iter().map(|address| address & !RUNS_CODE);
        let mut addresses = addresses.filter(|&address| address != 0).peekable();
        let mut depth = 0_usize;
        let next = std::iter::from_fn(|| {
            let address = addresses.next()?;
            depth += 1;
            // A handler returns to the first instruction of what ends the signal: it has not called.
            let ends_signal = addresses.peek().is_some_and(|next| next & INTERRUPTED != 0);
            let (value, kind) = match (depth, ends_signal) {
                (1, _) => (address, AddressKind::Sampled),
                _ if address & INTERRUPTED != 0 => {
                    (address & !INTERRUPTED, AddressKind::Interrupted)
                }
                (_, true) => (address, AddressKind::Trampoline),
                (_, false) => (address, AddressKind::Return),
            };
            Some(Address { value, kind })
        });
        let addresses: Vec<Address> = next.collect();
        self.prefetch(process, &addresses, time_ns);
        let locations = addresses.into_iter().map(|address| {
            let frames = match process.space.find(address.lookup(), time_ns) {
                Some(mapping) => self.mapped(process, mapping, address),
                None => {
                    self.all_known = false;
                    Arc::clone(&self.not_mapped)
                }
            };
            Location { address, frames }
        });
        let locations = locations.collect();
        self.checked.clear();
        (locations, self.all_known)
    }

    /// Names what a process runs in Python.
    pub fn python(&mut self, process: Python<'_>, wanted: &[Wanted]) -> Named {
        let with = With { parser: &mut self.parser, interned: &mut self.names };
        self.python.find(with, process, wanted)
    }

    /// The user half of a process of which nothing is known.
    #[must_use]
    pub fn unknown_stack(&self, addresses: Addresses<'_>) -> Vec<Location> {
        let frames = &self.not_mapped;
        let addresses = addresses.iter().map(|address| address & !RUNS_CODE);
        let addresses = addresses.filter(|&address| address != 0).map(Address::sampled);
        addresses.map(|address| Location { address, frames: Arc::clone(frames) }).collect()
    }

    fn mapped(&mut self, process: &Process, mapping: &Mapped, address: Address) -> Arc<[Frame]> {
        match &mapping.backing {
            Backing::File(file) => {
                let frames = self.in_file(process.tgid, file, mapping, address);
                let unnamed = frames.iter().all(|frame| frame.symbol.is_none());
                if unnamed && is_memory_name(&mapping.name) {
                    return self.jit(process, mapping, address);
                }
                frames
            }
            Backing::Vdso => {
                let offset = address.value.wrapping_sub(mapping.start);
                self.cached(Place::Vdso(offset), address, |this, back| {
                    // The kernel maps the same vDSO everywhere, so ours will do; that of 32-bit
                    // processes has another size.
                    let bytes = mapping.end - mapping.start;
                    let own = this.own_vdso.as_ref().filter(|own| own.end - own.start == bytes);
                    let own = own.map(|own| own.start.wrapping_add(offset));
                    let looked_up = own.and_then(|own| {
                        let source = Source::Process(ProcessSource::new(Pid::Slf));
                        let input = Input::AbsAddr(own.wrapping_sub(back));
                        this.blazesym.symbolize_single(&source, input).ok()
                    });
                    let unnamed =
                        Unnamed { offset, module: Some(&mapping.name), why: Origin::NoSymbol };
                    this.modules.frames(looked_up, back, Origin::Vdso, None, unnamed)
                })
            }
            Backing::Anonymous => self.jit(process, mapping, address),
        }
    }

    /// Code of a file, whose names are the same wherever it is mapped.
    fn in_file(
        &mut self,
        tgid: u32,
        file: &Arc<MappedFile>,
        mapping: &Mapped,
        address: Address,
    ) -> Arc<[Frame]> {
        let (offset, back) = (mapping.file_offset_of(address.value), address.lookup_back());
        let key = file.key().map(|key| (Place::File(key, offset), back));
        if let Some(frames) = key.and_then(|key| self.frames.get(&key)) {
            return frames;
        }
        let unchanged = self.check(file);
        let (modules, build_id) = (&mut self.modules, file.build_id());
        let unnamed = |why| Unnamed { offset, module: Some(&*mapping.name), why };
        let code = MappedCode { file, tgid, name: &mapping.name };
        // Also of one whose symbols are kept: they may be read from the file as it is now.
        let (files, parser) = (&mut self.files, &mut self.parser);
        let find = |()| files.find(parser, code, offset.wrapping_sub(back));
        let found = unchanged.map_err(Unread::Missing).and_then(find).map(|looked_up| {
            let why = if looked_up.is_ok() { Origin::NoSymbol } else { Origin::BadFile };
            match looked_up.ok().flatten() {
                Some(found) => {
                    let module = Some(modules.intern(&mapping.name));
                    let of = Frame { module, build_id, ..Frame::default() };
                    found::frames(&found, back, &of, &mut self.names)
                }
                None => modules.frames(None, back, Origin::Elf, build_id, unnamed(why)),
            }
        });
        match (found, key) {
            (Ok(frames), Some(key)) => {
                let is_named = frames.iter().all(|frame| frame.origin.is_named());
                if let (Some(debuginfod), Some(id)) = (&mut self.debuginfod, build_id)
                    && !is_named
                    && self.files.wants_debug_file(file)
                {
                    debuginfod.ask(id);
                }
                self.frames.insert(key, Arc::clone(&frames));
                frames
            }
            (Ok(frames), None) => frames,
            (Err(why), _) => {
                let why = match why {
                    Unread::Missing(missing) => Origin::NoFile(missing),
                    Unread::Barred => Origin::Barred,
                    Unread::NoParser => Origin::NoParser,
                };
                // It may yet be opened for another process that maps it, or parsed.
                self.all_known &= why == Origin::Barred;
                self.modules.frames(None, back, Origin::Elf, build_id, unnamed(why))
            }
        }
    }

    /// Whether a file is as it was mapped: the kernel is asked once for a stack.
    fn check(&mut self, file: &Arc<MappedFile>) -> Result<(), Missing> {
        if let Some((_, known)) = self.checked.iter().find(|(it, _)| Arc::ptr_eq(it, file)) {
            return *known;
        }
        let unchanged = file.unchanged().map(|_| ());
        self.checked.push((Arc::clone(file), unchanged));
        unchanged
    }

    /// Looks up at once what is not known of a stack's addresses, which lie in files.
    fn prefetch(&mut self, process: &Process, addresses: &[Address], time_ns: u64) {
        let (mut wanted, mut jit) = (Vec::new(), Vec::new());
        for &address in addresses {
            let back = address.lookup_back();
            let Some(mapping) = process.space.find(address.lookup(), time_ns) else { continue };
            if mapping.backing == Backing::Anonymous || is_memory_name(&mapping.name) {
                jit.push(address.lookup());
            }
            if let Backing::File(file) = &mapping.backing
                && let Some(key) = file.key()
            {
                let offset = mapping.file_offset_of(address.value);
                let is_known = self.frames.get(&(Place::File(key, offset), back)).is_some();
                if !is_known && self.check(file).is_ok() {
                    let code = MappedCode { file, tgid: process.tgid, name: &mapping.name };
                    wanted.push((code, offset.wrapping_sub(back)));
                }
            }
        }
        self.files.prefetch(&mut self.parser, &wanted);
        let with = With { parser: &mut self.parser, interned: &mut self.names };
        self.jit.prefetch(with, process, &jit);
    }

    /// JIT code, of which the process itself says the names. They are not cached here:
    /// other code may take its place.
    fn jit(&mut self, process: &Process, mapping: &Mapped, address: Address) -> Arc<[Frame]> {
        let with = With { parser: &mut self.parser, interned: &mut self.names };
        let (start, symbol, origin) = match self.jit.find(with, process, address.lookup()) {
            Ok(found) => found,
            Err(origin) => {
                // The process may still write the name of what it has just made.
                self.all_known = false;
                let name = if mapping.name.is_empty() { "[anon]" } else { &mapping.name };
                let module = Some(self.modules.intern(name));
                let offset = mapping.file_offset_of(address.value);
                return Arc::from([Frame { offset, module, origin, ..Frame::default() }]);
            }
        };
        let module = Some(self.modules.intern("[JIT]"));
        let offset = address.value.wrapping_sub(start);
        Arc::from([Frame { symbol: Some(symbol), offset, module, origin, ..Frame::default() }])
    }

    fn cached(
        &mut self,
        place: Place,
        address: Address,
        look_up: impl FnOnce(&mut Self, u64) -> Arc<[Frame]>,
    ) -> Arc<[Frame]> {
        let key = (place, address.lookup_back());
        if let Some(frames) = self.frames.get(&key) {
            return frames;
        }
        let frames = look_up(self, address.lookup_back());
        self.frames.insert(key, Arc::clone(&frames));
        frames
    }
}

/// Names of modules, each kept once.
#[derive(Default)]
struct Modules(Names);

impl Modules {
    fn intern(&mut self, name: &str) -> Arc<str> {
        self.0.intern(name)
    }

    /// blazesym's answer as frames. The offset is that of the address itself, `back` bytes behind
    /// the one that was looked up.
    fn frames(
        &mut self,
        looked_up: Option<Symbolized<'_>>,
        back: u64,
        origin: Origin,
        build_id: Option<BuildId>,
        unnamed: Unnamed<'_>,
    ) -> Arc<[Frame]> {
        let Some(sym) = looked_up.and_then(Symbolized::into_sym) else {
            let Unnamed { offset, module, why } = unnamed;
            let module = module.map(|name| self.intern(name));
            return Arc::from([Frame {
                offset,
                module,
                build_id,
                origin: why,
                ..Frame::default()
            }]);
        };
        let own = sym.module.as_deref().map(|name| name.to_string_lossy());
        let module = unnamed.module.or(own.as_deref()).map(|name| self.intern(name));
        let has_source = sym.code_info.is_some() || !sym.inlined.is_empty();
        let outer = Frame {
            symbol: Some(cut(&sym.name)),
            offset: (sym.offset as u64).saturating_add(back),
            module,
            source: sym.code_info.as_deref().map(source),
            inlined: false,
            build_id,
            origin: if has_source { Origin::Dwarf } else { origin },
        };
        let inlined = sym.inlined.iter().rev().map(|inlined| Frame {
            symbol: Some(cut(&inlined.name)),
            source: inlined.code_info.as_ref().map(source),
            inlined: true,
            ..outer.clone()
        });
        inlined.chain(std::iter::once(outer.clone())).collect()
    }
}

/// What is shown where there is no name.
#[derive(Clone, Copy)]
struct Unnamed<'a> {
    /// In the module's file.
    offset: u64,
    module: Option<&'a str>,
    why: Origin,
}

/// A name as far as it is kept: a file may have one of any length.
fn cut(name: &str) -> Arc<str> {
    let end = (0..=LIMIT_NAME).rev().find(|&end| name.is_char_boundary(end));
    Arc::from(name.get(..end.unwrap_or_default()).unwrap_or(name))
}

fn source(info: &CodeInfo<'_>) -> (Arc<str>, Option<u32>) {
    (cut(&info.to_path().to_string_lossy()), info.line)
}
