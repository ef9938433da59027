//! Symbols of ELF files, read by blazesym and kept within a limit of bytes.
//!
//! Each file has a blazesym of its own, so that what it holds of a file can be given back alone.

use std::{
    cell::OnceCell,
    os::fd::AsRawFd as _,
    panic::{self, AssertUnwindSafe},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use blazesym::symbolize::{
    Input, Symbolized, Symbolizer as Blazesym,
    source::{Elf, Source},
};
use rustc_hash::FxHashMap;

use super::{debug_data, debug_file::DebugFile};
use crate::{
    allowance::Allowance,
    build_id::BuildId,
    elf, heap,
    process::file::{FileKey, MappedFile, Missing},
};

/// Files whose symbols are kept, at most: each is held open, and its debug file, too.
const LIMIT: usize = 512;

/// The time whose share may be used at once: five seconds, since many files are read at the start.
const SAVED: Duration = Duration::from_secs(100);

/// The files whose symbols were asked for lately.
pub(super) struct ElfFiles {
    lines: bool,
    loaded: FxHashMap<FileKey, Loaded>,
    /// What all of them may hold, and what they do.
    limit_bytes: usize,
    bytes: usize,
    clock: u64,
    /// The time for checksums and for what files carry packed.
    allowance: Allowance,
}

struct Loaded {
    symbols: Symbols,
    /// The file in memory with them, where they are packed.
    unpacked: Option<DebugFile>,
    /// The separate file with the rest of its symbols.
    debug: Option<(Symbols, DebugFile)>,
    bytes: usize,
    used: u64,
    /// Whether its headers are those of an ELF file; asked when blazesym can't read it.
    has_headers: OnceCell<bool>,
    // blazesym knows the file by a descriptor's number, which must stay this file's.
    file: Arc<MappedFile>,
}

/// That a file is no ELF file, or not as one should be.
pub(super) struct Malformed;

/// What was looked up: nothing if there is no symbol.
pub(super) type LookedUp<'a> = Result<Option<Symbolized<'a>>, Malformed>;

/// One file's symbols.
struct Symbols {
    blazesym: Blazesym,
    source: Source<'static>,
}

impl Symbols {
    fn new(descriptor: i32, lines: bool) -> Self {
        let path = format!("/proc/self/fd/{descriptor}");
        let source = Source::Elf(Elf { debug_syms: lines, ..Elf::new(path) });
        Self { blazesym: blazesym(lines), source }
    }

    fn find(&self, input: Input<u64>, has_headers: impl FnOnce() -> bool) -> LookedUp<'_> {
        // Whoever runs a program has written the file: what the reader does not expect must cost its
        // names, not the run. What it leaves half done is of this file only.
        let look_up = || self.blazesym.symbolize_single(&self.source, input);
        match panic::catch_unwind(AssertUnwindSafe(look_up)) {
            Ok(Ok(found)) => Ok(Some(found).filter(|it| matches!(it, Symbolized::Sym(_)))),
            // It refuses some that are as they should be, such as those without section headers.
            Ok(Err(_)) if has_headers() => Ok(None),
            _ => Err(Malformed),
        }
    }
}

impl Loaded {
    fn find(&self, offset: u64, lines: bool) -> LookedUp<'_> {
        // A file of symbols has no code, and so no offsets of its own.
        let address_in = |file: &DebugFile| file.address_of(offset).map(Input::VirtOffset);
        let own = || match self.unpacked.as_ref().map(address_in) {
            Some(input) => input.map_or(Ok(None), |input| self.symbols.find(input, || true)),
            None => self.symbols.find(Input::FileOffset(offset), || {
                *self.has_headers.get_or_init(|| self.file.file().is_some_and(elf::has_headers))
            }),
        };
        let separate = || {
            let (symbols, file) = self.debug.as_ref()?;
            symbols.find(address_in(file)?, || true).ok().flatten()
        };
        // Lines are in the separate file, if there is one.
        if lines && let Some(found) = separate() {
            return Ok(Some(found));
        }
        let own = own();
        if lines || matches!(own, Ok(Some(_))) {
            return own;
        }
        separate().map_or(own, |found| Ok(Some(found)))
    }
}

impl ElfFiles {
    /// No file yet; with `lines`, debug info is read, too.
    pub(super) fn new(lines: bool, limit_bytes: usize) -> Self {
        let allowance = Allowance::saving(SAVED, Instant::now());
        Self { lines, loaded: FxHashMap::default(), limit_bytes, bytes: 0, clock: 0, allowance }
    }

    /// Hands on what is at an offset of the file, which a process knows by this name.
    pub(super) fn find<T>(
        &mut self,
        file: &Arc<MappedFile>,
        (tgid, name): (u32, &str),
        offset: u64,
        take: impl FnOnce(LookedUp<'_>) -> T,
    ) -> Result<T, Missing> {
        let key = file.key().ok_or_else(|| file.missing())?;
        if !self.loaded.contains_key(&key) {
            let opened = file.unchanged()?;
            let (unpacked, bytes) = debug_data::names(opened, &mut self.allowance).unzip();
            let symbols = match &unpacked {
                // It has no lines.
                Some(names) => Symbols::new(names.file().as_raw_fd(), false),
                None => Symbols::new(opened.as_raw_fd(), self.lines),
            };
            let bytes = bytes.unwrap_or(0);
            let roots = [format!("/proc/{tgid}/root"), "/".to_owned()];
            let roots = roots.each_ref().map(Path::new);
            let debug = DebugFile::find(opened, Path::new(name), &roots, &mut self.allowance);
            let debug = debug.map(|it| (Symbols::new(it.file().as_raw_fd(), self.lines), it));
            let file = Arc::clone(file);
            self.bytes += bytes;
            let (used, has_headers) = (0, OnceCell::new());
            let loaded = Loaded { symbols, unpacked, debug, bytes, used, has_headers, file };
            self.loaded.insert(key, loaded);
        }
        self.clock += 1;
        let loaded = self.loaded.get_mut(&key).ok_or(Missing::Gone)?;
        loaded.used = self.clock;
        let (answer, grown) = heap::grown_by(|| loaded.find(offset, self.lines));
        let taken = take(answer);
        loaded.bytes += grown;
        self.bytes += grown;
        if self.bytes > self.limit_bytes || self.loaded.len() > LIMIT {
            self.evict(key);
        }
        Ok(taken)
    }

    /// Whether a debug file may be of use.
    pub(super) fn wants_debug_file(&self, file: &MappedFile) -> bool {
        let loaded = file.key().and_then(|key| self.loaded.get(&key));
        loaded.is_some_and(|loaded| loaded.debug.is_none())
    }

    /// Takes a debug file that was sent for; whether it is of use.
    pub(super) fn add_debug_file(&mut self, id: BuildId, debug: &std::fs::File) -> bool {
        let mut is_any = false;
        for (key, loaded) in &mut self.loaded {
            if !matches!(key, FileKey::BuildId { id: of, .. } if *of == id) {
                continue;
            }
            let (opened, debug) = (loaded.file.unchanged().ok(), debug.try_clone().ok());
            let found = opened.zip(debug).and_then(|(opened, debug)| DebugFile::new(opened, debug));
            loaded.debug = found.map(|it| (Symbols::new(it.file().as_raw_fd(), self.lines), it));
            is_any |= loaded.debug.is_some();
        }
        is_any
    }

    /// Gives back the files used least recently, down to three quarters of the limits. The one in use
    /// stays, however large: it would be read again at once.
    fn evict(&mut self, in_use: FileKey) {
        let mut by_use: Vec<(u64, FileKey)> =
            self.loaded.iter().map(|(key, loaded)| (loaded.used, *key)).collect();
        by_use.sort_unstable_by_key(|(used, _)| *used);
        for (_, key) in by_use {
            if self.bytes <= self.limit_bytes / 4 * 3 && self.loaded.len() <= LIMIT / 4 * 3 {
                break;
            }
            if key != in_use
                && let Some(loaded) = self.loaded.remove(&key)
            {
                self.bytes -= loaded.bytes;
            }
        }
    }
}

/// A blazesym, with debug info if `lines` are asked for.
pub(super) fn blazesym(lines: bool) -> Blazesym {
    Blazesym::builder()
        // The files are held open, so they are what they were.
        .enable_auto_reload(false)
        .enable_code_info(lines)
        .enable_inlined_fns(lines)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{elf::tests::with_build_id, kernel, process::maps};
    use std::{
        fs::{self, File},
        io::Write as _,
        process,
    };

    /// A file of these bytes, held open only.
    fn file(bytes: &[u8]) -> Arc<MappedFile> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Arc::new(MappedFile::of(file))
    }

    /// Name of the function at an offset, or that there is none.
    fn find(
        files: &mut ElfFiles,
        file: &Arc<MappedFile>,
        offset: u64,
    ) -> Result<Result<Option<String>, ()>, Missing> {
        files.find(file, (process::id(), "/nowhere"), offset, |looked_up| {
            let name = |it: Symbolized<'_>| it.into_sym().unwrap().name.into_owned();
            looked_up.map(|found| found.map(name)).map_err(|Malformed| ())
        })
    }

    #[inline(never)]
    fn of_this_name() -> usize {
        std::hint::black_box(of_this_name as fn() -> usize as usize)
    }

    #[test]
    fn an_offset_is_in_a_function() {
        let address = of_this_name() as u64;
        let maps = maps::parse(&fs::read("/proc/self/maps").unwrap());
        let mapping = maps.iter().find(|it| (it.start..it.end).contains(&address)).unwrap();
        let offset = mapping.file_offset_of(address);
        let own = Arc::new(MappedFile::of(File::open("/proc/self/exe").unwrap()));
        for lines in [false, true] {
            let mut files = ElfFiles::new(lines, usize::MAX);
            let name = find(&mut files, &own, offset).unwrap().unwrap().unwrap();
            assert!(name.ends_with("::of_this_name"), "{name}");
        }
    }

    #[test]
    fn what_is_no_elf_file_is_told_from_what_has_no_symbol() {
        // Anew for each: most of them have one build id.
        let find = |file: Arc<MappedFile>| find(&mut ElfFiles::new(false, usize::MAX), &file, 64);
        assert_eq!(find(file(&with_build_id(&[1]))), Ok(Ok(None)));
        let own = fs::read("/proc/self/exe").unwrap();
        // Without section headers, as packers leave programs: e_shoff, e_shentsize, e_shnum, e_shstrndx.
        let mut loadable = own.clone();
        loadable[40..48].fill(0);
        loadable[58..64].fill(0);
        assert_eq!(find(file(&loadable)), Ok(Ok(None)));
        let cut = &own[..own.len() / 2];
        for bytes in [&b""[..], b"MZ, as a Windows program begins", &[0; 4096], &own[..63], cut] {
            assert_eq!(find(file(bytes)), Ok(Err(())), "{} bytes", bytes.len());
        }
    }

    #[test]
    fn a_file_that_has_changed_is_not_read() {
        let changing = tempfile::NamedTempFile::new().unwrap();
        fs::write(changing.path(), with_build_id(&[1])).unwrap();
        let mapped = Arc::new(MappedFile::of(changing.reopen().unwrap()));
        fs::write(changing.path(), with_build_id(&[1, 2])).unwrap();
        let mut files = ElfFiles::new(false, usize::MAX);
        assert_eq!(find(&mut files, &mapped, 64), Err(Missing::Changed));
    }

    #[test]
    fn the_files_used_least_recently_go() {
        kernel::raise_open_files();
        let mut elf_files = ElfFiles::new(false, usize::MAX);
        let files: Vec<_> =
            (0..=LIMIT).map(|it| file(&with_build_id(&(it as u64 + 1).to_le_bytes()))).collect();
        let is_kept = |elf_files: &ElfFiles, at: usize| {
            elf_files.loaded.contains_key(&files[at].key().unwrap())
        };
        for file in &files[..LIMIT] {
            find(&mut elf_files, file, 64).unwrap().unwrap();
        }
        assert_eq!(elf_files.loaded.len(), LIMIT);
        find(&mut elf_files, &files[0], 64).unwrap().unwrap();
        find(&mut elf_files, &files[LIMIT], 64).unwrap().unwrap();
        assert_eq!(elf_files.loaded.len(), LIMIT / 4 * 3);
        let gone = LIMIT + 1 - LIMIT / 4 * 3;
        assert!(is_kept(&elf_files, 0) && is_kept(&elf_files, LIMIT));
        assert!(!is_kept(&elf_files, 1) && !is_kept(&elf_files, gone));
        assert!(is_kept(&elf_files, gone + 1));
    }

    #[test]
    fn beyond_the_limit_of_bytes_only_the_file_in_use_stays() {
        let mut elf_files = ElfFiles::new(false, 0);
        let [one, other] = [1, 2].map(|it| file(&with_build_id(&[it])));
        for used in [&one, &other] {
            // As if blazesym had taken so much for it; here nothing counts what it allocates.
            find(&mut elf_files, used, 64).unwrap().unwrap();
            let key = used.key().unwrap();
            elf_files.loaded.get_mut(&key).unwrap().bytes += 100;
            elf_files.bytes += 100;
            find(&mut elf_files, used, 64).unwrap().unwrap();
            assert_eq!(elf_files.loaded.keys().collect::<Vec<_>>(), [&key]);
        }
        assert_eq!(elf_files.bytes, 100);
    }
}
