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
    perf_map::{self, PerfMap},
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
/// A perf map without the address asked for is read again after this long.
const PERF_MAP_PAUSE: Duration = Duration::from_millis(200);

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
    perf_maps: FxHashMap<SpaceId, (PerfMap, Instant)>,
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
            Backing::File(id) => self.cached(Place::File(id, in_file), is_return, |this, back| {
                let offset = in_file.wrapping_sub(back);
                let path = this.path(id, mapping, process.tgid);
                let looked_up = path.and_then(|path| {
                    let mut elf = Elf::new(path);
                    elf.debug_syms = this.lines;
                    let input = Input::FileOffset(offset);
                    this.blazesym.symbolize_single(&Source::Elf(elf), input).ok()
                });
                this.modules.frames(looked_up, back, Some(&mapping.name), in_file)
            }),
            Backing::Vdso => {
                let offset = address.wrapping_sub(mapping.start);
                self.cached(Place::Vdso(offset), is_return, |this, back| {
                    // The kernel maps the same vDSO everywhere, so ours will do.
                    let own = this.own_vdso.as_ref().map(|own| own.start.wrapping_add(offset));
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
        let function = self.perf_map_find(process, address.wrapping_sub(u64::from(is_return)));
        let found = function.is_some();
        let name = if mapping.name.is_empty() { "[anon]" } else { &mapping.name };
        let frame = Frame {
            offset: address.wrapping_sub(function.as_ref().map_or(mapping.start, |it| it.start)),
            module: Some(self.modules.intern(if found { "[JIT]" } else { name })),
            symbol: function.map(|function| function.name),
            ..Frame::default()
        };
        let frames = Rc::from([frame]);
        // The process may still write the name of what it has just made.
        if found {
            self.frames.insert(key, Rc::clone(&frames));
        } else {
            self.all_known = false;
        }
        frames
    }

    /// A function of the process's perf map, which is read again now and then while it lacks one.
    fn perf_map_find(&mut self, process: &Process, address: u64) -> Option<perf_map::Function> {
        if self.perf_maps.len() >= CACHED_PERF_MAPS {
            self.perf_maps.clear();
        }
        let now = Instant::now();
        let read = || (PerfMap::read(process.tgid), now);
        let (map, read_at) = self.perf_maps.entry(process.space).or_insert_with(read);
        if let Some(function) = map.find(address) {
            return Some(function.clone());
        }
        if now.duration_since(*read_at) >= PERF_MAP_PAUSE {
            (*map, *read_at) = read();
        }
        map.find(address).cloned()
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

fn blazesym(lines: bool) -> Blazesym {
    Blazesym::builder()
        // The files are held open, so they are what they were.
        .enable_auto_reload(false)
        .enable_code_info(lines)
        .enable_inlined_fns(lines)
        .build()
}
