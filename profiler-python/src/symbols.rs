//! Symbols of a file by their names, without reading all of them.

use object::{
    LittleEndian as Little, U32, U64,
    elf::{FileHeader64, SHN_UNDEF, SHT_DYNSYM, SHT_GNU_HASH, SHT_SYMTAB, SectionHeader64, Sym64},
    read::{
        ReadRef as _,
        elf::{SectionHeader as _, Sym as _},
    },
};
use profiler_elf::Pieces;

type Section = SectionHeader64<Little>;
pub(crate) type Header = FileHeader64<Little>;

/// The largest table of names that is searched where there is no index of them.
const MAX_NAMES: u64 = 4 << 20;
/// The most symbols of one bucket that are looked at.
const MAX_CHAIN: u32 = 1 << 12;
/// Longer names than those that are looked for don't matter.
const MAX_NAME: u64 = 64;

/// Where symbols are defined, in the order of the names: their addresses.
pub(crate) type Found<const N: usize> = [Option<u64>; N];

/// Looks for symbols that are defined in the file: in the index for the dynamic linker, and if the first is not
/// there, in the table for debuggers. `None` if neither has the first.
pub(crate) fn find<const N: usize>(
    data: Pieces<'_>,
    sections: &[Section],
    names: [&str; N],
) -> Option<Found<N>> {
    let is_first_there = |found: &Found<N>| found.first().is_some_and(Option::is_some);
    let hashed = || {
        let hash = sections.iter().find(|it| it.sh_type(Little) == SHT_GNU_HASH)?;
        let index = Index::of(data, sections, hash)?;
        // Nearly all files end here, after two or three small reads.
        let first = index.find(names.first()?)?;
        let mut found = names.map(|name| index.find(name));
        *found.first_mut()? = Some(first);
        Some(found)
    };
    let listed = |kind| {
        let table = sections.iter().find(|it| it.sh_type(Little) == kind)?;
        list(data, sections, table, names).filter(is_first_there)
    };
    let has_hash = sections.iter().any(|it| it.sh_type(Little) == SHT_GNU_HASH);
    let dynamic = if has_hash { hashed() } else { listed(SHT_DYNSYM) };
    dynamic.or_else(|| listed(SHT_SYMTAB))
}

/// `.gnu.hash` with its table of symbols.
struct Index<'a> {
    data: Pieces<'a>,
    symbols: u64,
    strings: u64,
    first: u32,
    bloom_shift: u32,
    bloom: (u64, u32),
    buckets: (u64, u32),
    chains: u64,
}

impl<'a> Index<'a> {
    /// <https://sourceware.org/legacy-ml/binutils/2006-10/msg00377.html>
    fn of(data: Pieces<'a>, sections: &[Section], hash: &Section) -> Option<Self> {
        let symbols = sections.get(hash.sh_link(Little) as usize)?;
        let strings = sections.get(symbols.sh_link(Little) as usize)?;
        let start = hash.sh_offset(Little);
        let [buckets, first, words, bloom_shift] =
            data.read_at::<[U32<Little>; 4]>(start).ok()?.map(|it| it.get(Little));
        let bloom = start.checked_add(16)?;
        let at_buckets = bloom.checked_add(8 * u64::from(words))?;
        let chains = at_buckets.checked_add(4 * u64::from(buckets))?;
        (buckets != 0 && words != 0).then_some(Self {
            data,
            symbols: symbols.sh_offset(Little),
            strings: strings.sh_offset(Little),
            first,
            bloom_shift,
            bloom: (bloom, words),
            buckets: (at_buckets, buckets),
            chains,
        })
    }

    fn find(&self, name: &str) -> Option<u64> {
        let hash = name
            .bytes()
            .fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
        let (bloom, words) = self.bloom;
        let at = bloom.checked_add(8 * u64::from(hash / 64 % words))?;
        let bits = self.data.read_at::<U64<Little>>(at).ok()?.get(Little);
        let second = hash.checked_shr(self.bloom_shift)?;
        if bits >> (hash % 64) & bits >> (second % 64) & 1 == 0 {
            return None;
        }
        let (buckets, count) = self.buckets;
        let at = buckets.checked_add(4 * u64::from(hash % count))?;
        let begin = self.number(at)?;
        for number in begin..begin.checked_add(MAX_CHAIN)? {
            let chained = u64::from(number.checked_sub(self.first)?);
            let value = self.number(self.chains.checked_add(4 * chained)?)?;
            if value | 1 == hash | 1
                && let Some(address) = self.symbol(number, name)
            {
                return Some(address);
            }
            if value & 1 != 0 {
                return None;
            }
        }
        None
    }

    fn number(&self, at: u64) -> Option<u32> {
        Some(self.data.read_at::<U32<Little>>(at).ok()?.get(Little))
    }

    /// The address of a symbol, if it has this name and is defined here.
    fn symbol(&self, number: u32, name: &str) -> Option<u64> {
        let at = self.symbols.checked_add(size_of::<Sym64<Little>>() as u64 * u64::from(number))?;
        let symbol = self.data.read_at::<Sym64<Little>>(at).ok()?;
        let at = self.strings.checked_add(u64::from(symbol.st_name(Little)))?;
        let there = self.data.read_bytes_at_until(at..at.checked_add(MAX_NAME)?, 0).ok()?;
        (there == name.as_bytes()).then(|| defined(symbol)).flatten()
    }
}

fn defined(symbol: &Sym64<Little>) -> Option<u64> {
    (symbol.st_shndx(Little) != SHN_UNDEF).then(|| symbol.st_value(Little))
}

/// Looks through a whole table, if the first name is in it.
fn list<const N: usize>(
    data: Pieces<'_>,
    sections: &[Section],
    table: &Section,
    names: [&str; N],
) -> Option<Found<N>> {
    let strings = sections.get(table.sh_link(Little) as usize)?;
    if strings.sh_size(Little) > MAX_NAMES || table.sh_size(Little) > MAX_NAMES {
        return None;
    }
    let text = strings.data(Little, data).ok()?;
    // A name may also be the end of a longer one, whose bytes it shares.
    let is_named = |number: u32, name: &str| {
        let there = usize::try_from(number).ok().and_then(|at| text.get(at..));
        there.and_then(|it| it.strip_prefix(name.as_bytes())).is_some_and(|it| it.starts_with(&[0]))
    };
    let first = names.first()?.as_bytes();
    if !text.windows(first.len()).any(|it| it == first) {
        return None;
    }
    let symbols = table.data_as_array::<Sym64<Little>, _>(Little, data).ok()?;
    let mut found = [None; N];
    for symbol in symbols {
        for (name, place) in names.iter().zip(&mut found) {
            if place.is_none() && is_named(symbol.st_name(Little), name) {
                *place = defined(symbol);
            }
        }
    }
    Some(found)
}
