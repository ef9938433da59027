//! Names for addresses, by blazesym, each looked up once.

use std::{
    fs,
    rc::Rc,
    time::{Duration, Instant},
};

use blazesym::{
    MaybeDefault, Pid,
    symbolize::{
        CodeInfo, Input, Symbolized, Symbolizer as Blazesym,
        source::{Elf, Kernel, Process as ProcessSource, Source},
    },
};
use rustc_hash::FxHashMap;

use super::{
    cache::Generations,
    files::Files,
    frame::{Frame, Location, Stack},
    perf_map::PerfMap,
};
use crate::{
    process::{
        maps::{self, Backing, FileId, Mapping},
        table::{Process, SpaceId},
    },
    sample::Addresses,
};

/// Addresses whose frames are kept.
const CACHED_ADDRESSES: usize = 64 << 10;
/// Processes whose perf maps are kept.
const CACHED_PERF_MAPS: usize = 256;
/// Bytes of all of them.
const CACHED_PERF_MAP_BYTES: usize = 128 << 20;
/// A perf map without the address asked for is read again after this long, and after so many times
/// what reading it has taken.
const PERF_MAP_PAUSE: Duration = Duration::from_millis(200);
const PERF_MAP_SHARE: u32 = 50;

/// What is looked up: an offset in a file names the same function in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Kernel(u64),
    File(FileId, u64),
    Vdso(u64),
    /// Code made at run time, in one process.
    Made(SpaceId, u64),
}

/// Names addresses. Belongs to one thread: blazesym's caches are not shared.
pub struct Symbolizer {
    blazesym: Blazesym,
    kernel: Source<'static>,
    lines: bool,
    files: Files,
    perf_maps: FxHashMap<SpaceId, KeptMap>,
    frames: Generations<(Place, bool), Rc<[Frame]>>,
    modules: Modules,
    own_vdso: Option<Mapping>,
    not_mapped: Rc<[Frame]>,
    /// Of the user stack at hand: whether what is known of each address will stay.
    all_known: bool,
}

impl Symbolizer {
    /// A symbolizer that, with `lines`, also reads debug info.
    #[must_use]
    pub fn new(lines: bool) -> Self {
        let mut kernel = Kernel { debug_syms: lines, ..Kernel::default() };
        if !lines {
            kernel.vmlinux = MaybeDefault::None;
        }
        let own_maps = fs::read("/proc/self/maps").unwrap_or_default();
        let own_vdso = maps::parse(&own_maps).into_iter().find(|it| it.backing == Backing::Vdso);
        Self {
            blazesym: blazesym(lines),
            kernel: Source::Kernel(kernel),
            lines,
            files: Files::default(),
            perf_maps: FxHashMap::default(),
            frames: Generations::new(CACHED_ADDRESSES),
            modules: Modules::default(),
            own_vdso,
            not_mapped: Rc::from([Frame::default()]),
            all_known: true,
        }
    }

    /// Reads the kernel's symbols, so that the first sample need not wait for it.
    pub fn read_kernel_symbols(&self) {
        // Whether there is anything at the address does not matter.
        let _ = self.blazesym.symbolize_single(&self.kernel, Input::AbsAddr(u64::MAX));
    }

    /// Names the kernel half of a stack.
    pub fn kernel_stack(&mut self, addresses: Addresses<'_>) -> Stack {
        let locations = addresses.iter().enumerate().map(|(depth, address)| {
            // The first is where the CPU was; the others are return addresses, whose call lies
            // before them and may be the last instruction of its function.
            let is_return = depth > 0;
            let frames = self.cached(Place::Kernel(address), is_return, |this, back| {
                let looked_up = this
                    .blazesym
                    .symbolize_single(&this.kernel, Input::AbsAddr(address.wrapping_sub(back)));
                this.modules.frames(looked_up.ok(), back, None, 0)
            });
            Location { address, frames }
        });
        Stack::new(locations.collect())
    }

    /// Names the user half of a stack. Also says whether that will stay: not if an address is mapped
    /// to nothing, or to code without a name yet.
    pub fn user_stack(&mut self, process: &Process, addresses: Addresses<'_>) -> (Stack, bool) {
        self.all_known = true;
        // The kernel's walk of frame pointers may end with the zero that it found.
        let addresses = addresses.iter().filter(|&address| address != 0);
        let locations = addresses.enumerate().map(|(depth, address)| {
            let is_return = depth > 0;
            let frames = match process.mapping(address.wrapping_sub(u64::from(is_return))) {
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

    fn mapped(
        &mut self,
        process: &Process,
        mapping: &Mapping,
        address: u64,
        is_return: bool,
    ) -> Rc<[Frame]> {
        let in_file = mapping.file_offset_of(address);
        match mapping.backing {
            Backing::File(id) => {
                let frames = self.in_file(id, process, mapping, in_file, is_return);
                let unnamed = frames.iter().all(|frame| frame.symbol.is_none());
                // Some runtimes write their code through a memfd.
                if unnamed && mapping.name.starts_with("/memfd:") {
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
                    this.modules.frames(looked_up, back, Some(&mapping.name), offset)
                })
            }
            Backing::Anonymous => self.made(process, mapping, address, is_return),
        }
    }

    /// Code of a file, whose names are the same wherever it is mapped.
    fn in_file(
        &mut self,
        id: FileId,
        process: &Process,
        mapping: &Mapping,
        in_file: u64,
        is_return: bool,
    ) -> Rc<[Frame]> {
        let (key, back) = ((Place::File(id, in_file), is_return), u64::from(is_return));
        if let Some(frames) = self.frames.get(&key) {
            return frames;
        }
        let Some(path) = self.path(id, mapping, process.tgid) else {
            self.all_known = false;
            return self.modules.frames(None, back, Some(&mapping.name), in_file);
        };
        let elf = Source::Elf(Elf { debug_syms: self.lines, ..Elf::new(path) });
        let input = Input::FileOffset(in_file.wrapping_sub(back));
        let looked_up = self.blazesym.symbolize_single(&elf, input).ok();
        let frames = self.modules.frames(looked_up, back, Some(&mapping.name), in_file);
        self.frames.insert(key, Rc::clone(&frames));
        frames
    }

    /// Code made at run time: named by the process's perf map.
    fn made(
        &mut self,
        process: &Process,
        mapping: &Mapping,
        address: u64,
        is_return: bool,
    ) -> Rc<[Frame]> {
        let key = (Place::Made(process.space, address), is_return);
        if let Some(frames) = self.frames.get(&key) {
            return frames;
        }
        let found = self.perf_map_find(process, address.wrapping_sub(u64::from(is_return)));
        let frame = match found {
            Some((start, symbol)) => Frame {
                symbol: Some(symbol),
                offset: address.wrapping_sub(start),
                module: Some(self.modules.intern("[JIT]")),
                ..Frame::default()
            },
            None => {
                let name = if mapping.name.is_empty() { "[anon]" } else { &mapping.name };
                let module = Some(self.modules.intern(name));
                Frame { offset: mapping.file_offset_of(address), module, ..Frame::default() }
            }
        };
        let found = frame.symbol.is_some();
        let frames = Rc::from([frame]);
        // The process may still write the name of what it has just made.
        if found {
            self.frames.insert(key, Rc::clone(&frames));
        } else {
            self.all_known = false;
        }
        frames
    }

    /// Start and name of a function in the process's perf map, which is read again now and then
    /// while it lacks one.
    fn perf_map_find(&mut self, process: &Process, address: u64) -> Option<(u64, Rc<str>)> {
        if !self.perf_maps.contains_key(&process.space) {
            let kept: usize = self.perf_maps.values().map(|kept| kept.map.bytes()).sum();
            if self.perf_maps.len() >= CACHED_PERF_MAPS || kept > CACHED_PERF_MAP_BYTES {
                self.perf_maps.clear();
            }
        }
        let kept = self.perf_maps.entry(process.space).or_insert_with(|| KeptMap::read(process));
        if kept.map.find(address).is_none() && Instant::now() >= kept.read_again {
            *kept = KeptMap::read(process);
        }
        kept.map.find(address).map(|(start, name)| (start, Rc::from(name)))
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

    /// The file's path for blazesym. When too many files are open, all are closed, and what blazesym
    /// holds of them goes with them.
    fn path(&mut self, id: FileId, mapping: &Mapping, tgid: u32) -> Option<std::path::PathBuf> {
        if self.files.is_full() {
            self.blazesym = blazesym(self.lines);
            self.files.clear();
            self.frames.clear();
            self.modules.0.clear();
        }
        self.files.path(id, mapping, tgid)
    }
}

/// Names of modules, each kept once.
#[derive(Default)]
struct Modules(FxHashMap<String, Rc<str>>);

impl Modules {
    fn intern(&mut self, name: &str) -> Rc<str> {
        if let Some(module) = self.0.get(name) {
            return Rc::clone(module);
        }
        let module: Rc<str> = Rc::from(name);
        self.0.insert(name.to_owned(), Rc::clone(&module));
        module
    }

    /// blazesym's answer as frames. The offset is that of the address itself, `back` bytes behind
    /// the one that was looked up; `in_file` is shown where there is no symbol.
    fn frames(
        &mut self,
        looked_up: Option<Symbolized<'_>>,
        back: u64,
        mapped: Option<&str>,
        in_file: u64,
    ) -> Rc<[Frame]> {
        let Some(sym) = looked_up.and_then(Symbolized::into_sym) else {
            let module = mapped.map(|name| self.intern(name));
            return Rc::from([Frame { offset: in_file, module, ..Frame::default() }]);
        };
        let own = sym.module.as_deref().map(|name| name.to_string_lossy());
        let module = mapped.or(own.as_deref()).map(|name| self.intern(name));
        let outer = Frame {
            symbol: Some(Rc::from(&*sym.name)),
            offset: sym.offset as u64 + back,
            module,
            source: sym.code_info.as_deref().map(source),
            inlined: false,
        };
        let inlined = sym.inlined.iter().rev().map(|inlined| Frame {
            symbol: Some(Rc::from(&*inlined.name)),
            source: inlined.code_info.as_ref().map(source),
            inlined: true,
            ..outer.clone()
        });
        inlined.chain(std::iter::once(outer.clone())).collect()
    }
}

fn source(info: &CodeInfo<'_>) -> (Rc<str>, Option<u32>) {
    (Rc::from(info.to_path().to_string_lossy()), info.line)
}

/// A process's perf map as last read.
struct KeptMap {
    map: PerfMap,
    read_again: Instant,
}

impl KeptMap {
    fn read(process: &Process) -> Self {
        let start = Instant::now();
        let map = PerfMap::read(process.tgid);
        let pause = PERF_MAP_PAUSE.max(start.elapsed().saturating_mul(PERF_MAP_SHARE));
        Self { map, read_again: start + pause }
    }
}

fn blazesym(lines: bool) -> Blazesym {
    Blazesym::builder()
        // The files are held open, so they are what they were.
        .enable_auto_reload(false)
        .enable_code_info(lines)
        .enable_inlined_fns(lines)
        .build()
}
