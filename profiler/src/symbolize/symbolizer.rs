//! Names for addresses, by blazesym, each looked up once.

use std::{fs, rc::Rc, sync::Arc};

use blazesym::{
    MaybeDefault, Pid,
    symbolize::{
        CodeInfo, Input, Symbolized, Symbolizer as Blazesym,
        source::{Kernel, Process as ProcessSource, Source},
    },
};
use profiler_common::sample::INTERRUPTED;
use rustc_hash::FxHashMap;

use super::{
    cache::Generations,
    debuginfod::Debuginfod,
    elf::{self, ElfFiles},
    frame::{Frame, Location, Origin, Stack},
    kernel_code::LaterCode,
    kernel_modules::KernelModules,
    made::MadeCode,
};
use crate::{
    build_id::BuildId,
    perf::record::{MappedId, Record},
    process::{
        file::{FileKey, MappedFile},
        maps::{self, Backing, Mapping},
        space::Mapped,
        table::Process,
    },
    sample::Addresses,
};

/// Addresses whose frames are kept.
const CACHED_ADDRESSES: usize = 64 << 10;
/// Bytes of a name that are kept.
const LIMIT_NAME: usize = 4096;
/// Names of modules that are kept once for all frames.
const MODULES: usize = 4096;
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
    lines: bool,
    kernel: Source<'static>,
    /// `None` while its symbols have not been read.
    kernel_modules: Option<KernelModules>,
    later: LaterCode,
    files: ElfFiles,
    debuginfod: Option<Debuginfod>,
    made: MadeCode,
    frames: Generations<(Place, bool), Rc<[Frame]>>,
    modules: Modules,
    own_vdso: Option<Mapping<MappedId>>,
    not_mapped: Rc<[Frame]>,
    /// Of the user stack at hand: whether what is known of each address will stay.
    all_known: bool,
}

impl Symbolizer {
    /// A symbolizer that, with `lines`, also reads debug info, and keeps so many bytes of what it has
    /// read of files. Debug files that are not here are sent for, if there is someone to ask.
    #[must_use]
    pub fn new(lines: bool, cache_bytes: usize, debuginfod: Option<Debuginfod>) -> Self {
        let mut kernel = Kernel { debug_syms: lines, ..Kernel::default() };
        if !lines {
            kernel.vmlinux = MaybeDefault::None;
        }
        let own_maps = fs::read("/proc/self/maps").unwrap_or_default();
        let own_vdso = maps::parse(&own_maps).into_iter().find(|it| it.backing == Backing::Vdso);
        Self {
            blazesym: elf::blazesym(lines),
            lines,
            kernel: Source::Kernel(kernel),
            kernel_modules: None,
            later: LaterCode::default(),
            files: ElfFiles::new(lines, cache_bytes),
            debuginfod,
            made: MadeCode::default(),
            frames: Generations::new(CACHED_ADDRESSES),
            modules: Modules::default(),
            own_vdso,
            not_mapped: Rc::from([Frame::default()]),
            all_known: true,
        }
    }

    /// Reads the kernel's symbols, so that the first sample need not wait for it.
    pub fn read_kernel_symbols(&mut self) {
        self.kernel_modules = Some(KernelModules::now());
        read_symbols(&self.blazesym, &self.kernel);
    }

    /// Takes in which code the kernel has got or given up since.
    pub fn kernel_has_changed(&mut self, records: &[Record]) {
        for record in records {
            self.later.change(record);
        }
        // Among them are addresses that had no name, or another.
        self.frames = Generations::new(CACHED_ADDRESSES);
    }

    /// Reads the kernel's symbols again if it has other modules by now; whether it has. It does not look
    /// each time.
    pub fn follow_kernel_modules(&mut self) -> bool {
        let Some(modules) = &mut self.kernel_modules else { return false };
        let has_changed = modules.follow(|| {
            self.blazesym = elf::blazesym(self.lines);
            read_symbols(&self.blazesym, &self.kernel);
        });
        if has_changed {
            self.frames = Generations::new(CACHED_ADDRESSES);
        }
        has_changed
    }

    /// Takes the debug files that have come meanwhile. If there are any, what was found before may
    /// have better names now.
    pub fn take_debug_files(&mut self) -> bool {
        let mut is_any = false;
        while let Some((id, file)) = self.debuginfod.as_mut().and_then(Debuginfod::arrived) {
            is_any |= self.files.add_debug_file(id, &file);
        }
        if is_any {
            self.frames = Generations::new(CACHED_ADDRESSES);
        }
        is_any
    }

    /// Names the kernel half of a stack.
    pub fn kernel_stack(&mut self, addresses: Addresses<'_>) -> Stack {
        let locations = addresses.iter().enumerate().map(|(depth, address)| {
            // The first is where the CPU was; the others are return addresses, whose call lies
            // before them and may be the last instruction of its function.
            let is_return = depth > 0;
            let frames = self.cached(Place::Kernel(address), is_return, |this, back| {
                if let Some((start, name)) = this.later.find(address.wrapping_sub(back)) {
                    let (offset, origin) = (address.wrapping_sub(start), Origin::Kallsyms);
                    let symbol = Some(name);
                    return Rc::from([Frame { symbol, offset, origin, ..Frame::default() }]);
                }
                let looked_up = this
                    .blazesym
                    .symbolize_single(&this.kernel, Input::AbsAddr(address.wrapping_sub(back)));
                let unnamed = Unnamed { offset: 0, module: None, why: Origin::NoSymbol };
                this.modules.frames(looked_up.ok(), back, Origin::Kallsyms, None, unnamed)
            });
            Location { address, frames }
        });
        Stack::new(locations.collect())
    }

    /// Names the user half of a stack taken at a time. Also says whether that will stay: not if an
    /// address is mapped to nothing, or to code without a name yet.
    pub fn user_stack(
        &mut self,
        process: &Process,
        addresses: Addresses<'_>,
        time_ns: u64,
    ) -> (Stack, bool) {
        self.all_known = true;
        // The kernel's walk of frame pointers may end with the zero that it found.
        let mut addresses = addresses.iter().filter(|&address| address != 0).peekable();
        let mut depth = 0_usize;
        let next = std::iter::from_fn(|| {
            let address = addresses.next()?;
            depth += 1;
            // A handler returns to the first instruction of what ends the signal: it has not called.
            let ends_signal = addresses.peek().is_some_and(|next| next & INTERRUPTED != 0);
            let is_return = depth > 1 && address & INTERRUPTED == 0 && !ends_signal;
            Some((if depth > 1 { address & !INTERRUPTED } else { address }, is_return))
        });
        let locations = next.map(|(address, is_return)| {
            let looked_up = address.wrapping_sub(u64::from(is_return));
            let frames = match process.space.find(looked_up, time_ns) {
                Some(mapping) => self.mapped(process, mapping, address, is_return),
                None => {
                    self.all_known = false;
                    Rc::clone(&self.not_mapped)
                }
            };
            Location { address, frames }
        });
        let locations = locations.collect();
        (Stack::new(locations), self.all_known)
    }

    /// The user half of a process of which nothing is known.
    #[must_use]
    pub fn unknown_stack(&self, addresses: Addresses<'_>) -> Stack {
        let frames = &self.not_mapped;
        let locations = addresses.iter().filter(|&address| address != 0);
        let locations = locations.map(|address| Location { address, frames: Rc::clone(frames) });
        Stack::new(locations.collect())
    }

    fn mapped(
        &mut self,
        process: &Process,
        mapping: &Mapped,
        address: u64,
        is_return: bool,
    ) -> Rc<[Frame]> {
        match &mapping.backing {
            Backing::File(file) => {
                let frames = self.in_file(process.tgid, file, mapping, address, is_return);
                let unnamed = frames.iter().all(|frame| frame.symbol.is_none());
                if unnamed && is_memory(&mapping.name) {
                    return self.made(process, mapping, address, is_return);
                }
                frames
            }
            Backing::Vdso => {
                let offset = address.wrapping_sub(mapping.start);
                self.cached(Place::Vdso(offset), is_return, |this, back| {
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
            Backing::Anonymous => self.made(process, mapping, address, is_return),
        }
    }

    /// Code of a file, whose names are the same wherever it is mapped.
    fn in_file(
        &mut self,
        tgid: u32,
        file: &Arc<MappedFile>,
        mapping: &Mapped,
        address: u64,
        is_return: bool,
    ) -> Rc<[Frame]> {
        let (offset, back) = (mapping.file_offset_of(address), u64::from(is_return));
        let key = file.key().map(|key| (Place::File(key, offset), is_return));
        if let Some(frames) = key.and_then(|key| self.frames.get(&key)) {
            return frames;
        }
        let (modules, build_id) = (&mut self.modules, file.build_id());
        let unnamed = |why| Unnamed { offset, module: Some(&*mapping.name), why };
        let place = (tgid, &*mapping.name);
        let found = self.files.find(file, place, offset.wrapping_sub(back), |looked_up| {
            let why = if looked_up.is_ok() { Origin::NoSymbol } else { Origin::BadFile };
            let found = looked_up.ok().flatten();
            modules.frames(found, back, Origin::Elf, build_id, unnamed(why))
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
                self.frames.insert(key, Rc::clone(&frames));
                frames
            }
            (Ok(frames), None) => frames,
            // It may yet be opened for another process that maps it.
            (Err(why), _) => {
                self.all_known = false;
                let unnamed = unnamed(Origin::NoFile(why));
                self.modules.frames(None, back, Origin::Elf, build_id, unnamed)
            }
        }
    }

    /// Code made at run time, of which the process itself says the names. They are not cached here:
    /// other code may take its place.
    fn made(
        &mut self,
        process: &Process,
        mapping: &Mapped,
        address: u64,
        is_return: bool,
    ) -> Rc<[Frame]> {
        let call = address.wrapping_sub(u64::from(is_return));
        let (start, symbol, origin) = match self.made.find(process, call) {
            Ok(found) => found,
            Err(origin) => {
                // The process may still write the name of what it has just made.
                self.all_known = false;
                let name = if mapping.name.is_empty() { "[anon]" } else { &mapping.name };
                let module = Some(self.modules.intern(name));
                let offset = mapping.file_offset_of(address);
                return Rc::from([Frame { offset, module, origin, ..Frame::default() }]);
            }
        };
        let module = Some(self.modules.intern("[JIT]"));
        let offset = address.wrapping_sub(start);
        Rc::from([Frame { symbol: Some(symbol), offset, module, origin, ..Frame::default() }])
    }

    fn cached(
        &mut self,
        place: Place,
        is_return: bool,
        look_up: impl FnOnce(&mut Self, u64) -> Rc<[Frame]>,
    ) -> Rc<[Frame]> {
        let key = (place, is_return);
        if let Some(frames) = self.frames.get(&key) {
            return frames;
        }
        let frames = look_up(self, u64::from(is_return));
        self.frames.insert(key, Rc::clone(&frames));
        frames
    }
}

/// Names of modules, each kept once.
#[derive(Default)]
struct Modules(FxHashMap<String, Rc<str>>);

impl Modules {
    fn intern(&mut self, name: &str) -> Rc<str> {
        if self.0.len() >= MODULES {
            self.0.clear();
        }
        if let Some(module) = self.0.get(name) {
            return Rc::clone(module);
        }
        let module: Rc<str> = Rc::from(name);
        self.0.insert(name.to_owned(), Rc::clone(&module));
        module
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
    ) -> Rc<[Frame]> {
        let Some(sym) = looked_up.and_then(Symbolized::into_sym) else {
            let Unnamed { offset, module, why } = unnamed;
            let module = module.map(|name| self.intern(name));
            return Rc::from([Frame { offset, module, build_id, origin: why, ..Frame::default() }]);
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

fn read_symbols(blazesym: &Blazesym, kernel: &Source<'_>) {
    // Whether there is anything at the address does not matter.
    let _ = blazesym.symbolize_single(kernel, Input::AbsAddr(u64::MAX));
}

/// Whether that is the name of a file in memory that a process shares, with itself or others, and may
/// run code in: a memfd, by which some runtimes write code where they may not both write and run it, or
/// what stands for shared anonymous memory and huge pages. perf asks its maps of them, too:
/// <https://github.com/torvalds/linux/blob/v6.12/tools/perf/util/map.c>.
fn is_memory(name: &str) -> bool {
    ["/memfd:", "/dev/zero", "/anon_hugepage", "/SYSV"].iter().any(|it| name.starts_with(it))
}

/// A name as far as it is kept: a file may have one of any length.
fn cut(name: &str) -> Rc<str> {
    let end = (0..=LIMIT_NAME).rev().find(|&end| name.is_char_boundary(end));
    Rc::from(name.get(..end.unwrap_or_default()).unwrap_or(name))
}

fn source(info: &CodeInfo<'_>) -> (Rc<str>, Option<u32>) {
    (cut(&info.to_path().to_string_lossy()), info.line)
}
