//! What tells files with one build id apart: a program and what `strip` or `patchelf` made of it, or all that
//! are linked with a fixed `--build-id=0x…`.

use std::{
    collections::hash_map::RandomState,
    fs::File,
    hash::{BuildHasher as _, Hasher as _},
    os::unix::fs::FileExt as _,
    sync::LazyLock,
};

use object::{
    Endianness,
    elf::{FileHeader32, FileHeader64, PF_X, PT_LOAD},
    read::elf::{FileHeader, ProgramHeader as _},
};

/// The most of a table of headers that is looked at.
const MAX_HEADER_BYTES: u64 = 64 << 10;
/// How much of the code is looked at, at its begin, its middle and its end.
const SAMPLE_BYTES: u64 = 16 << 10;
/// The most segments of code that are looked at. Programs have one or two.
const MAX_SEGMENTS: usize = 4;

/// Another one in each run, so that nobody can make two files alike.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The digests of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Of its size, all of its headers, and some of its code and names: the same for copies.
    pub content: u64,
    /// Of where its code is, and some of that: the same for a program and what `strip` made of it.
    pub code: u64,
}

impl Fingerprint {
    /// That of an ELF file. It reads some hundred kilobytes at most; what can't be read counts as nothing.
    pub(super) fn of(file: &File) -> Self {
        let mut begin = [0; size_of::<FileHeader64<Endianness>>()];
        let _ = file.read_exact_at(&mut begin, 0);
        let found = of_class::<FileHeader64<Endianness>>(file, &begin)
            .or_else(|| of_class::<FileHeader32<Endianness>>(file, &begin));
        found.unwrap_or(Self { content: 0, code: 0 })
    }
}

fn of_class<H: FileHeader<Endian = Endianness>>(file: &File, begin: &[u8]) -> Option<Fingerprint> {
    let header = H::parse(begin).ok()?;
    let endian = header.endian().ok()?;
    let segments = read(
        file,
        header.e_phoff(endian).into(),
        u64::from(header.e_phnum(endian)) * u64::from(header.e_phentsize(endian)),
    );
    let sections = read(
        file,
        header.e_shoff(endian).into(),
        u64::from(header.e_shnum(endian)) * u64::from(header.e_shentsize(endian)),
    );
    let mut code = SEED.build_hasher();
    let count = segments.len() / size_of::<H::ProgramHeader>();
    let programs = object::pod::slice_from_bytes::<H::ProgramHeader>(&segments, count);
    let programs = programs.map_or(&[][..], |(programs, _)| programs).iter();
    let is_code =
        |it: &&H::ProgramHeader| it.p_type(endian) == PT_LOAD && it.p_flags(endian) & PF_X != 0;
    for segment in programs.filter(is_code).take(MAX_SEGMENTS) {
        let (start, bytes) = segment.file_range(endian);
        for number in [start, bytes, segment.p_vaddr(endian).into()] {
            code.write_u64(number);
        }
        let last = bytes.saturating_sub(SAMPLE_BYTES);
        for at in [0, last / 2, last] {
            code.write(&read(file, start.saturating_add(at), bytes.min(SAMPLE_BYTES)));
        }
    }
    let code = code.finish();
    let mut content = SEED.build_hasher();
    content.write_u64(file.metadata().ok()?.len());
    content.write_u64(code);
    // Before the headers of sections are, as linkers write them, the names of symbols.
    let names = header.e_shoff(endian).into().saturating_sub(SAMPLE_BYTES);
    for part in [begin, &segments, &sections, &read(file, names, SAMPLE_BYTES)] {
        content.write(part);
    }
    Some(Fingerprint { content: content.finish(), code })
}

/// As much as there is, within a limit.
fn read(file: &File, at: u64, bytes: u64) -> Vec<u8> {
    let mut content = vec![0; usize::try_from(bytes.min(MAX_HEADER_BYTES)).unwrap_or_default()];
    let bytes = file.read_at(&mut content, at).unwrap_or_default();
    content.truncate(bytes);
    content
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, process::Command};

    #[test]
    fn files_with_one_build_id_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let done = Command::new(program).args(arguments).current_dir(&dir).status().unwrap();
            assert!(done.success(), "{program} {arguments:?}");
        };
        let fingerprint = |name: &str| Fingerprint::of(&File::open(dir.path().join(name)).unwrap());
        for (name, number) in [("one", "1"), ("other", "2")] {
            let source =
                format!("int work(void) {{ return {number}; }} int main() {{ return work(); }}");
            fs::write(dir.path().join("source.c"), source).unwrap();
            run("gcc", &["-Wl,--build-id=0x0102", "-o", name, "source.c"]);
        }
        run("strip", &["-o", "stripped", "one"]);
        fs::copy(dir.path().join("one"), dir.path().join("copy")).unwrap();
        let [one, other, stripped, copy] = ["one", "other", "stripped", "copy"].map(fingerprint);
        assert_eq!(one, copy);
        // Of the same size, with the same headers, and of other code.
        let size = |name: &str| fs::metadata(dir.path().join(name)).unwrap().len();
        assert_eq!(size("one"), size("other"));
        assert!(one.content != other.content && one.code != other.code);
        assert!(one.content != stripped.content && one.code == stripped.code);
        // As patchelf moves code: every segment is elsewhere.
        let mut bytes = fs::read(dir.path().join("one")).unwrap();
        let headers =
            usize::try_from(u64::from_le_bytes(bytes[32..40].try_into().unwrap())).unwrap();
        for number in 0..usize::from(bytes[56]) {
            bytes[headers + number * 56 + 17] ^= 0x10;
        }
        fs::write(dir.path().join("moved"), bytes).unwrap();
        assert_ne!(fingerprint("moved").code, one.code);
        // What is no ELF file is none.
        fs::write(dir.path().join("text"), "text").unwrap();
        assert_eq!(fingerprint("text"), Fingerprint { content: 0, code: 0 });
    }
}
