//! The reader against what gcc and binutils make.

use std::{fs, path::PathBuf, process::Command, sync::Arc, time::Duration};

use tempfile::TempDir;

use crate::{Answer, Found, Image, Images, Malformed, Options, SymbolFile, links};
use profiler_testing::skipped;

/// `outer` has a function inlined, and calls others by their stubs.
const SOURCE: &str = "#include <math.h>
volatile double x = 2;
static inline __attribute__((always_inline)) double inner(double y) { return x * y + x; }
__attribute__((noinline)) double outer(double y) { return inner(y) + sin(y) + cos(y); }
int main(void) { return (int)outer(x); }
";

struct Built {
    dir: TempDir,
}

impl Built {
    /// The program, compiled with these options.
    fn new(options: &[&str]) -> Self {
        let built = Self { dir: TempDir::new().unwrap() };
        fs::write(built.path("source.c"), SOURCE).unwrap();
        let fixed = ["-O1", "-g", "-fno-builtin", "-o", "program", "source.c", "-lm"];
        built.run("gcc", &[&fixed[..], options].concat());
        built
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let mut command = Command::new(program);
        let done = command.args(arguments).current_dir(&self.dir).output().unwrap();
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{program} {arguments:?}: {errors}");
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path("program")).unwrap()
    }

    fn load(&self, lines: bool) -> SymbolFile {
        load(self.bytes(), lines).unwrap()
    }
}

fn image(bytes: Vec<u8>) -> Image {
    Image::new(Arc::new(bytes), None)
}

fn images(main: Vec<u8>) -> Images {
    Images { main: image(main), debug: None, supplementary: None, package: None }
}

fn load(main: Vec<u8>, lines: bool) -> Result<SymbolFile, Malformed> {
    SymbolFile::load(images(main), options(lines))
}

fn options(lines: bool) -> Options {
    Options { lines, unpack_time: Duration::ZERO }
}

/// The address of a symbol, as the file has it.
fn address_of(elf: &[u8], name: &str) -> u64 {
    use object::{Object as _, ObjectSymbol as _};
    object::File::parse(elf).unwrap().symbol_by_name(name).unwrap().address()
}

fn found(symbols: &SymbolFile, address: u64) -> Option<Found> {
    match symbols.find_address(address) {
        Answer::Found(found) => Some(found),
        Answer::None => None,
        Answer::Wants(dwo) => panic!("{dwo:?}"),
    }
}

fn name(symbols: &SymbolFile, address: u64) -> Option<String> {
    found(symbols, address).map(|it| it.name)
}

/// Whether what is inlined into `outer`, and in which line, is found.
fn has_lines(symbols: &SymbolFile, outer: u64) -> bool {
    (outer..outer + 40).filter_map(|address| found(symbols, address)).any(|found| {
        assert_eq!(found.name, "outer");
        found.inlined.first().is_some_and(|inlined| {
            let location = inlined.location.as_ref().unwrap();
            inlined.name == "inner"
                && location.path.ends_with("source.c")
                && location.line == Some(3)
        })
    })
}

fn section(elf: &[u8], name: &str) -> (u64, std::ops::Range<usize>) {
    use object::{Object as _, ObjectSection as _};
    let file = object::File::parse(elf).unwrap();
    let section = file.section_by_name(name).unwrap();
    let (start, bytes) = section.file_range().unwrap();
    (section.address(), usize::try_from(start).unwrap()..usize::try_from(start + bytes).unwrap())
}

#[test]
fn a_stub_is_named_by_what_it_leads_to_and_no_symbol_reaches_it() {
    for option in ["-Wl,-z,lazy", "-Wl,-z,now", "-fcf-protection=full", "-fno-plt"] {
        let built = Built::new(&[option]);
        let (symbols, elf) = (built.load(false), built.bytes());
        let names = symbols.addresses().into_iter().filter_map(|it| name(&symbols, it));
        let stubs: Vec<_> = names.filter(|it| it.ends_with("@plt")).collect();
        let has_stubs = option != "-fno-plt";
        for stub in ["sin@plt", "cos@plt"] {
            assert_eq!(stubs.iter().any(|it| it == stub), has_stubs, "{option}: {stubs:?}");
        }
        if option == "-Wl,-z,lazy" {
            let (shared, _) = section(&elf, ".plt");
            assert_eq!(name(&symbols, shared + 6).as_deref(), Some(".plt"));
        }
        // From the begin of `.init` to that of `.text`.
        let (init, in_file) = section(&elf, ".init");
        let end = init + in_file.len() as u64;
        assert_eq!(name(&symbols, end - 1).as_deref(), Some("_init"), "{option}");
        let (text, _) = section(&elf, ".text");
        for address in end..text {
            assert_ne!(name(&symbols, address).as_deref(), Some("_init"), "{option}");
        }
    }
}

/// What can be done to the program, if the tools that are here can.
fn packed(built: &Built, kind: &str) -> bool {
    let option = format!("--compress-debug-sections={kind}");
    let done = Command::new("objcopy").args([&option, "program"]).current_dir(&built.dir).status();
    let done = done.unwrap().success();
    if !done {
        skipped(&format!("objcopy does not know {kind}"));
    }
    done
}

#[test]
fn lines_are_found_in_sections_that_are_packed_in_any_way() {
    for kind in ["none", "zlib", "zlib-gnu", "zstd"] {
        let built = Built::new(&[]);
        let outer = address_of(&built.bytes(), "outer");
        if packed(&built, kind) {
            assert!(has_lines(&built.load(true), outer), "{kind}");
        }
    }
}

#[test]
fn with_lines_the_outer_function_has_the_name_that_it_has_without() {
    for options in [&[][..], &["-x", "c++"], &["-x", "c++", "-flto"]] {
        let built = Built::new(options);
        let (plain, lines) = (built.load(false), built.load(true));
        let (start, in_file) = section(&built.bytes(), ".text");
        let mut with_location = 0;
        for address in start..start + in_file.len() as u64 {
            let (plain, lines) = (found(&plain, address), found(&lines, address));
            with_location += usize::from(lines.as_ref().is_some_and(|it| it.location.is_some()));
            let place = |it: &Found| (it.name.clone(), it.offset);
            assert_eq!(plain.as_ref().map(place), lines.as_ref().map(place), "{address:x}");
        }
        assert!(with_location > 10, "{options:?}");
    }
}

#[test]
fn debug_info_that_is_damaged_costs_the_lines_and_not_the_names() {
    let built = Built::new(&[]);
    let whole = built.bytes();
    let outer = address_of(&whole, "outer");
    assert!(has_lines(&built.load(true), outer));
    for damaged in [".debug_info", ".debug_abbrev", ".debug_line", ".debug_str", ".debug_aranges"] {
        let (_, in_file) = section(&whole, damaged);
        for (begin, filling) in [(0, 0xff), (0, 0), (4, 0xff), (in_file.len() / 2, 0x55)] {
            let mut bytes = whole.clone();
            bytes[in_file.clone()][begin..].fill(filling);
            let symbols = load(bytes, true).unwrap();
            for address in outer..outer + 8 {
                assert_eq!(name(&symbols, address).as_deref(), Some("outer"), "{damaged}");
            }
        }
    }
    // Every single byte: whatever it does to the lines, the name stays.
    let (_, in_file) = section(&whole, ".debug_info");
    for at in in_file.step_by(7) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xa5;
        assert_eq!(name(&load(bytes, true).unwrap(), outer).as_deref(), Some("outer"), "{at}");
    }
}

/// Loads the program, with the `.dwo` files that it asks for.
fn find_split(symbols: &SymbolFile, address: u64, dwo: &mut impl FnMut(&str) -> Option<Image>) {
    while let Answer::Wants(wanted) = symbols.find_address(address) {
        let name = String::from_utf8(wanted.name).unwrap();
        symbols.supply(wanted.id, dwo(&name).as_ref());
    }
}

#[test]
fn split_debug_info_is_asked_for_and_read() {
    for version in ["-gdwarf-5", "-gdwarf-4"] {
        let built = Built::new(&[version, "-gsplit-dwarf"]);
        let outer = address_of(&built.bytes(), "outer");
        let symbols = built.load(true);
        let mut asked = 0;
        find_split(&symbols, outer, &mut |name| {
            asked += 1;
            assert_eq!(name.rsplit('.').next(), Some("dwo"), "{name}");
            Some(image(fs::read(built.path(name)).unwrap()))
        });
        assert_eq!(asked, 1, "{version}");
        assert!(has_lines(&symbols, outer), "{version}");
        // Where there is none, or that of another program, the name is there, and the line.
        let other = Built::new(&[version, "-gsplit-dwarf", "-DOTHER", "-O2"]);
        for other in [None, Some(other.path("program-source.dwo"))] {
            let symbols = built.load(true);
            find_split(&symbols, outer, &mut |_| Some(image(fs::read(other.as_ref()?).unwrap())));
            let found = found(&symbols, outer).unwrap();
            assert_eq!((&*found.name, found.inlined.len()), ("outer", 0));
            assert!(found.location.is_some(), "{version}");
        }
    }
}

/// Whether there is such a tool.
fn has(tool: &str) -> bool {
    let has = Command::new(tool).arg("--version").output().is_ok_and(|it| it.status.success());
    if !has {
        skipped(&format!("{tool} is not installed"));
    }
    has
}

#[test]
fn split_debug_info_is_read_from_a_package() {
    for (tool, version) in [("dwp", "-gdwarf-4"), ("llvm-dwp", "-gdwarf-5")] {
        if !has(tool) {
            continue;
        }
        let built = Built::new(&[version, "-gsplit-dwarf"]);
        built.run(tool, &["-e", "program", "-o", "program.dwp"]);
        let package = image(fs::read(built.path("program.dwp")).unwrap());
        let images = Images { package: Some(package), ..images(built.bytes()) };
        let symbols = SymbolFile::load(images, options(true)).unwrap();
        assert!(has_lines(&symbols, address_of(&built.bytes(), "outer")), "{tool}");
    }
}

#[test]
fn debug_info_that_is_shared_with_others_is_read() {
    if !has("dwz") {
        return;
    }
    let built = Built::new(&["-gdwarf-4"]);
    fs::copy(built.path("program"), built.path("other")).unwrap();
    built.run("dwz", &["-m", "shared", "program", "other"]);
    let of_program = links(&image(built.bytes())).unwrap();
    let link = of_program.supplementary.unwrap();
    assert!(link.path.ends_with(b"shared"));
    let shared = image(fs::read(built.path("shared")).unwrap());
    assert_eq!(links(&shared).unwrap().build_id, Some(link.build_id));
    let outer = address_of(&built.bytes(), "outer");
    let images = Images { supplementary: Some(shared), ..images(built.bytes()) };
    assert!(has_lines(&SymbolFile::load(images, options(true)).unwrap(), outer));
    // Without it the name is there all the same.
    assert_eq!(name(&built.load(true), outer).as_deref(), Some("outer"));
}

/// Puts another number of 8 bytes into the header of a section.
fn set_in_section_header(elf: &mut [u8], name: &str, at: usize, value: u64) {
    use object::{Object as _, ObjectSection as _};
    let index = object::File::parse(&*elf).unwrap().section_by_name(name).unwrap().index().0;
    let table = u64::from_le_bytes(elf[40..48].try_into().unwrap());
    let header = usize::try_from(table).unwrap() + index * 64 + at;
    elf[header..header + 8].copy_from_slice(&value.to_le_bytes());
}

/// Bytes that seem to be many more than there are in memory.
struct Sparse(memmap2::Mmap);

impl AsRef<[u8]> for Sparse {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn a_table_that_is_larger_than_what_is_on_the_disk_is_refused() {
    let built = Built::new(&[]);
    let mut bytes = built.bytes();
    for claimed in [20 << 30, 4 << 40, u64::MAX] {
        for table in [".symtab", ".strtab", ".dynsym"] {
            set_in_section_header(&mut bytes, table, 32, claimed);
            let file = tempfile::tempfile().unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
            if file.set_len(claimed.saturating_add(1 << 20)).is_err() {
                file.set_len(1 << 40).unwrap();
            }
            // SAFETY: nobody else has the file.
            let map = unsafe { memmap2::MmapOptions::new().map_copy_read_only(&file) }.unwrap();
            let main = Image::new(Arc::new(Sparse(map)), Some(16 << 10));
            let images = Images { main, ..images(Vec::new()) };
            assert_eq!(SymbolFile::load(images, options(false)).err(), Some(Malformed), "{table}");
            bytes = built.bytes();
        }
    }
}

#[test]
fn what_a_packed_section_claims_is_not_believed() {
    let built = Built::new(&[]);
    if !packed(&built, "zlib") {
        return;
    }
    let mut bytes = built.bytes();
    let outer = address_of(&bytes, "outer");
    let (_, in_file) = section(&bytes, ".debug_info");
    // ch_size, behind ch_type and padding.
    let size = in_file.start + 8..in_file.start + 16;
    for claimed in [1 << 40, u64::MAX, 1 << 30, 1] {
        bytes[size.clone()].copy_from_slice(&u64::to_le_bytes(claimed));
        let symbols = load(bytes.clone(), true).unwrap();
        assert_eq!(name(&symbols, outer).as_deref(), Some("outer"), "{claimed}");
        assert!(!has_lines(&symbols, outer), "{claimed}");
    }
}

#[test]
fn an_empty_name_is_none() {
    let built = Built::new(&[]);
    let mut bytes = built.bytes();
    let outer = address_of(&bytes, "outer");
    let (_, strings) = section(&bytes, ".strtab");
    let at = bytes[strings.clone()].windows(7).position(|it| it == b"\0outer\0").unwrap();
    bytes[strings.start + at + 1] = 0;
    assert_eq!(name(&load(bytes, false).unwrap(), outer), None);
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_no_harm() {
    let built = Built::new(&[]);
    let whole = built.bytes();
    let outer = address_of(&whole, "outer");
    for bytes in (0..whole.len()).step_by(211) {
        let cut = whole[..bytes].to_vec();
        assert!(load(cut, true).is_err_and(|_| true), "{bytes} of {}", whole.len());
    }
    assert_eq!(name(&load(whole, true).unwrap(), outer).as_deref(), Some("outer"));
}
