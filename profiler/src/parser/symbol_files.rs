//! The files that are loaded in a parser process, with their symbols.

use std::{
    fs::File,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Duration,
};

use memmap2::MmapOptions;
use profiler_symbols::{self as symbols, Found, Image, Images, Location, Options, SymbolFile};
use rustc_hash::FxHashMap;

use super::message::{Answer, FoundIn, Load, Loaded};
use crate::heap;

/// Bytes of a block, as `st_blocks` counts them.
const BLOCK_BYTES: u64 = 512;

/// After this many answers, pages of mapped files are released: else all that was ever read would stay resident.
const ANSWERS: u32 = 64;

/// Loaded files by their number.
#[derive(Default)]
pub(super) struct SymbolFiles {
    held: FxHashMap<u64, Held>,
    /// Answers since pages were given back.
    answers: u32,
}

struct Held {
    file: SymbolFile,
    bytes: usize,
}

impl SymbolFiles {
    /// Reads a file and its companions.
    pub(super) fn load(&mut self, load: &Load, mut files: impl Iterator<Item = File>) -> Answer {
        let mut next = |is_passed: &bool| if *is_passed { map(&files.next()?) } else { None };
        let [main, debug, supplementary, package] = load.passed.each_ref().map(&mut next);
        let Some(main) = main else { return Answer::Loaded(None) };
        let images = Images { main, debug, supplementary, package };
        let unpack_time = Duration::from_millis(load.unpack_ms);
        let options = Options { lines: load.lines, unpack_time };
        let (read, bytes) = heap::grown_by(|| SymbolFile::load(images, options));
        Answer::Loaded(read.ok().map(|file| {
            let has_packed = file.has_packed();
            file.release_pages();
            self.held.insert(load.file, Held { file, bytes });
            Loaded { bytes: bytes as u64, has_packed }
        }))
    }

    /// What is at these offsets of files.
    pub(super) fn find(&mut self, wanted: &[(u64, Vec<u64>)]) -> Answer {
        let in_file = |(file, offsets): &(u64, Vec<u64>)| {
            let held = self.held.get_mut(file)?;
            let look_up = || offsets.iter().map(|offset| find(&held.file, *offset)).collect();
            let (answers, grown): (Vec<_>, _) = heap::grown_by(look_up);
            let passing: usize = answers.iter().map(heap_bytes).sum();
            held.bytes = held.bytes.saturating_add(grown.saturating_sub(passing));
            Some(FoundIn { bytes: held.bytes as u64, answers })
        };
        let found = wanted.iter().map(in_file).collect();
        self.answers += 1;
        if self.answers >= ANSWERS {
            self.answers = 0;
            self.held.values().for_each(|held| held.file.release_pages());
        }
        Answer::Found(found)
    }

    /// Takes a `.dwo` file that a file has asked for, or that there is none.
    pub(super) fn supply(&mut self, file: u64, dwo: u64, image: Option<&Image>) -> Answer {
        if let Some(held) = self.held.get_mut(&file) {
            let ((), grown) = heap::grown_by(|| held.file.supply(dwo, image));
            held.bytes = held.bytes.saturating_add(grown);
        }
        Answer::Done
    }

    /// Frees files.
    pub(super) fn forget(&mut self, files: &[u64]) -> Answer {
        for file in files {
            self.held.remove(file);
        }
        Answer::Done
    }
}

/// A panic of the reader costs this answer only.
fn find(file: &SymbolFile, offset: u64) -> symbols::Answer {
    let found = panic::catch_unwind(AssertUnwindSafe(|| file.find(offset)));
    found.unwrap_or(symbols::Answer::None)
}

/// What an answer takes of the heap until it has been sent.
fn heap_bytes(answer: &symbols::Answer) -> usize {
    let path = |it: &Option<Location>| it.as_ref().map_or(0, |it| it.path.capacity());
    let heap = match answer {
        symbols::Answer::None => 0,
        symbols::Answer::Found(Found { name, location, inlined, .. }) => {
            let inlined_bytes = inlined.iter().map(|it| it.name.capacity() + path(&it.location));
            let inlined_bytes = inlined_bytes.sum::<usize>() + size_of_val(inlined.as_slice());
            name.capacity() + path(location) + inlined_bytes
        }
        symbols::Answer::Wants(dwo) => dwo.directory.capacity() + dwo.name.capacity(),
    };
    heap + size_of::<symbols::Answer>()
}

/// Path and build id of each supplementary file that these files name.
pub(super) fn links(files: impl Iterator<Item = File>) -> Answer {
    let link = |file: File| symbols::links(&map(&file)?).ok()?.supplementary;
    let links = files.filter_map(link);
    Answer::Links(links.map(|it| (it.path, it.build_id.as_bytes().to_vec())).collect())
}

/// Maps a file. Its pages don't count towards the memory limit of this process.
pub(super) fn map(file: &File) -> Option<Image> {
    let blocks = rustix::fs::fstat(file).ok()?.st_blocks;
    let allocated = u64::try_from(blocks).ok().and_then(|it| it.checked_mul(BLOCK_BYTES));
    // SAFETY: the map is private and only read, as bytes: names are copied out of it before anything is
    // concluded from what they are. Where the file is cut off meanwhile, `sigbus` gives zeros.
    let bytes = unsafe { MmapOptions::new().map_copy_read_only(file) }.ok()?;
    Some(Image::of_map(Arc::new(bytes), allocated))
}
