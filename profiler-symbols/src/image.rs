//! An ELF file's headers, read from its bytes.

use std::{fmt, ops::Range, sync::Arc};

use memmap2::{Mmap, UncheckedAdvice};
use object::{
    Endianness,
    elf::{
        CompressionHeader32, CompressionHeader64, ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD, FileHeader32,
        FileHeader64, PF_X, PT_LOAD, SHF_ALLOC, SHF_COMPRESSED, SHF_EXECINSTR, SHT_NOBITS,
        SHT_NULL,
    },
    read::elf::{CompressionHeader as _, FileHeader, ProgramHeader as _, SectionHeader as _},
};
use profiler_elf::unpack::{self, Packing};

use crate::{Malformed, arena::Arena};

/// Bytes that are shared, such as a memory map.
pub(crate) type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The most sections of a file. Programs have some forty.
const MAX_SECTIONS: usize = 1 << 16;
/// The most segments.
const MAX_SEGMENTS: usize = 1 << 12;
/// A file system may compress files: more than this many bytes for one on disk is not believed.
const MAX_DISK_RATIO: u64 = 16;
/// Claims up to so many bytes are believed without a look at the disk.
const SMALL_BYTES: u64 = 1 << 20;
/// No unpacker makes more of a byte; that is zlib's limit, and zstd's is beyond what sections have.
const MAX_PACKED_RATIO: u64 = 1100;

/// The bytes of a file.
#[derive(Clone)]
pub struct Image {
    bytes: Bytes,
    allocated: Option<u64>,
    /// Where it is a file that is mapped.
    map: Option<Arc<Mmap>>,
}

impl Image {
    /// A file with these bytes, of which so many are allocated on disk: fewer than there are in a sparse
    /// one. `None` or zero if the file system does not say.
    #[must_use]
    pub fn new(bytes: Arc<dyn AsRef<[u8]> + Send + Sync>, allocated: Option<u64>) -> Self {
        Self { bytes, allocated: allocated.filter(|&bytes| bytes > 0), map: None }
    }

    /// The same of a file that is mapped, for reading only.
    #[must_use]
    pub fn of_map(map: Arc<Mmap>, allocated: Option<u64>) -> Self {
        let bytes = Arc::clone(&map);
        Self { map: Some(map), ..Self::new(bytes, allocated) }
    }

    /// Gives back the pages of a mapped file. They come again from the page cache when they are read.
    pub(crate) fn release_pages(&self) {
        let Some(map) = &self.map else { return };
        // SAFETY: nothing was written to the map, so that its pages come again as they were, from the file.
        // Should that fail, they stay.
        let _ = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    pub(crate) fn shared(&self) -> Bytes {
        Arc::clone(&self.bytes)
    }

    pub(crate) fn allocated(&self) -> Option<u64> {
        self.allocated
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes().len();
        f.debug_struct("Image")
            .field("bytes", &bytes)
            .field("allocated", &self.allocated)
            .finish_non_exhaustive()
    }
}

/// A file's headers.
#[derive(Debug)]
pub(crate) struct Elf<'d> {
    data: &'d [u8],
    /// The most that a section may be.
    most_bytes: u64,
    pub(crate) endian: Endianness,
    pub(crate) is_64: bool,
    pub(crate) machine: u16,
    pub(crate) sections: Vec<Section<'d>>,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug)]
pub(crate) struct Section<'d> {
    pub(crate) name: &'d [u8],
    pub(crate) kind: u32,
    flags: u64,
    pub(crate) addresses: Range<u64>,
    offset: u64,
    bytes: u64,
    pub(crate) link: usize,
    pub(crate) entry_bytes: u64,
}

#[derive(Clone, Debug)]
struct Segment {
    offsets: Range<u64>,
    address: u64,
    is_code: bool,
}

impl Section<'_> {
    /// Whether it is in memory when the program runs.
    pub(crate) fn is_loaded(&self) -> bool {
        self.flags & u64::from(SHF_ALLOC) != 0
    }

    pub(crate) fn is_code(&self) -> bool {
        self.is_loaded() && self.flags & u64::from(SHF_EXECINSTR) != 0
    }
}

impl<'d> Elf<'d> {
    /// Reads the headers of a file of which so many bytes are allocated on disk.
    pub(crate) fn parse(data: &'d [u8], allocated: Option<u64>) -> Result<Self, Malformed> {
        let parsed = Self::of_class::<FileHeader64<Endianness>>(data, allocated)
            .or_else(|| Self::of_class::<FileHeader32<Endianness>>(data, allocated));
        parsed.ok_or(Malformed)
    }

    fn of_class<H: FileHeader<Endian = Endianness>>(
        data: &'d [u8],
        allocated: Option<u64>,
    ) -> Option<Self> {
        let header = H::parse(data).ok().filter(|it| it.is_type_64() == it.is_class_64())?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, data).ok()?;
        let table = header.sections(endian, data).ok()?;
        if table.len() > MAX_SECTIONS || segments.len() > MAX_SEGMENTS {
            return None;
        }
        let segments = segments.iter().filter(|it| it.p_type(endian) == PT_LOAD).filter_map(|it| {
            let (start, bytes) = it.file_range(endian);
            let is_code = it.p_flags(endian) & PF_X != 0;
            let offsets = start..start.checked_add(bytes)?;
            Some(Segment { offsets, address: it.p_vaddr(endian).into(), is_code })
        });
        let sections = table.iter().map(|it| {
            let (start, bytes) = (it.sh_addr(endian).into(), it.sh_size(endian).into());
            Section {
                name: table.section_name(endian, it).unwrap_or_default(),
                kind: it.sh_type(endian),
                flags: it.sh_flags(endian).into(),
                addresses: start..start.saturating_add(bytes),
                offset: it.sh_offset(endian).into(),
                bytes,
                link: it.link(endian).0,
                entry_bytes: it.sh_entsize(endian).into(),
            }
        });
        let len = data.len() as u64;
        let on_disk = allocated.map(|it| it.saturating_mul(MAX_DISK_RATIO).max(SMALL_BYTES));
        Some(Self {
            data,
            most_bytes: len.min(on_disk.unwrap_or(len)),
            endian,
            is_64: header.is_type_64(),
            machine: header.e_machine(endian),
            sections: sections.collect(),
            segments: segments.collect(),
        })
    }

    pub(crate) fn section(&self, name: &[u8]) -> Option<&Section<'d>> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// The bytes of a section as they are in the file, none if it has none there. Malformed if they
    /// are not all there, or more than can be.
    pub(crate) fn bytes_of(&self, section: &Section<'_>) -> Result<&'d [u8], Malformed> {
        if section.kind == SHT_NOBITS || section.kind == SHT_NULL {
            return Ok(&[]);
        }
        if section.bytes > self.most_bytes {
            return Err(Malformed);
        }
        let range = |start: u64, bytes: u64| {
            let start = usize::try_from(start).ok()?;
            start.checked_add(usize::try_from(bytes).ok()?).map(|end| start..end)
        };
        let range = range(section.offset, section.bytes).ok_or(Malformed)?;
        self.data.get(range).ok_or(Malformed)
    }

    /// The bytes of a debug section with this name, unpacked if they are packed; `None` if there is no such
    /// section, or it can't be read.
    pub(crate) fn debug_section(&self, name: &str, arena: &'d Arena) -> Option<&'d [u8]> {
        if let Some(section) = self.section(name.as_bytes()) {
            let bytes = self.bytes_of(section).ok().filter(|it| !it.is_empty())?;
            if section.flags & u64::from(SHF_COMPRESSED) == 0 {
                return Some(bytes);
            }
            let (packing, unpacked, packed) = self.compression(bytes)?;
            return unpack_into(arena, packing, packed, unpacked);
        }
        // From before there was a flag for it: `.zdebug_info`.
        let old = format!(".z{}", name.strip_prefix('.')?);
        let bytes = self.bytes_of(self.section(old.as_bytes())?).ok()?;
        let (unpacked, packed) = bytes.strip_prefix(b"ZLIB")?.split_first_chunk()?;
        unpack_into(arena, Packing::Zlib, packed, u64::from_be_bytes(*unpacked))
    }

    /// How a section is packed, how large it will be, and what is packed.
    fn compression(&self, bytes: &'d [u8]) -> Option<(Packing, u64, &'d [u8])> {
        let (kind, unpacked, rest) = if self.is_64 {
            let (header, rest) =
                object::pod::from_bytes::<CompressionHeader64<Endianness>>(bytes).ok()?;
            (header.ch_type(self.endian), header.ch_size(self.endian), rest)
        } else {
            let (header, rest) =
                object::pod::from_bytes::<CompressionHeader32<Endianness>>(bytes).ok()?;
            (header.ch_type(self.endian), header.ch_size(self.endian).into(), rest)
        };
        let packing = match kind {
            ELFCOMPRESS_ZLIB => Packing::Zlib,
            ELFCOMPRESS_ZSTD => Packing::Zstd,
            _ => return None,
        };
        Some((packing, unpacked, rest))
    }

    /// The address of an offset in the file.
    pub(crate) fn address_of(&self, offset: u64) -> Option<u64> {
        let mut holding = self.segments.iter().filter(|it| it.offsets.contains(&offset));
        let first = holding.next()?;
        let segment =
            if first.is_code { first } else { holding.find(|it| it.is_code).unwrap_or(first) };
        offset.checked_sub(segment.offsets.start)?.checked_add(segment.address)
    }

    /// The addresses of what a file without sections has as code.
    pub(crate) fn code(&self) -> impl Iterator<Item = Range<u64>> {
        let bytes = |it: &Segment| it.offsets.end - it.offsets.start;
        self.segments
            .iter()
            .filter(|it| it.is_code)
            .map(move |it| it.address..it.address.saturating_add(bytes(it)))
    }
}

fn unpack_into<'d>(
    arena: &'d Arena,
    packing: Packing,
    packed: &[u8],
    bytes: u64,
) -> Option<&'d [u8]> {
    let believable = (packed.len() as u64).saturating_mul(MAX_PACKED_RATIO);
    if bytes > believable || !arena.spend(bytes) {
        return None;
    }
    arena.keep(Arc::new(unpack::unpack(packing, packed, bytes, bytes.max(packed.len() as u64))?))
}
