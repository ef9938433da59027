use super::{held::MAX_FILES, *};
use crate::procfs::maps;
use object::{Object as _, ObjectSymbol as _};
use profiler_testing::elf::with_build_id;
use std::{
    fs::{self, File},
    io::Write as _,
    path::PathBuf,
    process::{self, Command},
};
use tempfile::TempDir;

/// Files with a parser process of their own.
struct Asking {
    files: ElfFiles,
    parser: Parser,
}

impl Asking {
    fn new(lines: bool, limit_bytes: usize) -> Self {
        Self { files: ElfFiles::new(lines, limit_bytes), parser: Parser::not_started() }
    }

    /// Name of the function at an offset, or that there is none.
    fn find(
        &mut self,
        file: &Arc<MappedFile>,
        offset: u64,
    ) -> Result<Result<Option<String>, ()>, Unread> {
        let looked_up = self.files.find(&mut self.parser, mapped(file), offset)?;
        Ok(looked_up.map(|found| found.map(|it| it.name)).map_err(|Malformed| ()))
    }
}

fn mapped(file: &Arc<MappedFile>) -> Mapped<'_> {
    Mapped { file, tgid: process::id(), name: "/nowhere" }
}

/// A file of these bytes, held open only.
fn file(bytes: &[u8]) -> Arc<MappedFile> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Arc::new(MappedFile::of(file))
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
        let name = Asking::new(lines, usize::MAX).find(&own, offset).unwrap().unwrap().unwrap();
        assert!(name.ends_with("::of_this_name"), "{name}");
    }
}

#[test]
fn what_is_no_elf_file_is_told_from_what_has_no_symbol() {
    // Anew for each: most of them have one build id.
    let find = |file: Arc<MappedFile>| Asking::new(false, usize::MAX).find(&file, 64);
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
    let changed = Unread::Missing(Missing::Changed);
    assert_eq!(Asking::new(false, usize::MAX).find(&mapped, 64), Err(changed));
}

#[test]
fn a_stripped_file_has_the_names_of_the_one_that_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let done = Command::new(program).args(arguments).current_dir(&dir).status();
        assert!(done.unwrap().success(), "{program} {arguments:?}");
    };
    for (name, function, number) in [("one", "work", 1), ("other", "play", 2)] {
        let body = format!("{{ return {number}; }}");
        let source =
            format!("int {function}(void) {body} int main(void) {{ return {function}(); }}");
        fs::write(dir.path().join("source.c"), source).unwrap();
        run("gcc", &["-Wl,--build-id=0x0102", "-no-pie", "-o", name, "source.c"]);
    }
    run("strip", &["-o", "stripped", "one"]);
    let open = |name: &str| Arc::new(MappedFile::of(File::open(dir.path().join(name)).unwrap()));
    let [one, other, stripped] = ["one", "other", "stripped"].map(open);
    let elf = fs::read(dir.path().join("one")).unwrap();
    let offset = {
        object::File::parse(&*elf).unwrap().symbol_by_name("work").unwrap().address() - 0x40_0000
    };
    let mut asking = Asking::new(false, usize::MAX);
    assert_eq!(asking.find(&stripped, offset), Ok(Ok(None)));
    // Another program with this build id is no help.
    assert_eq!(asking.find(&other, offset), Ok(Ok(Some("play".into()))));
    assert_eq!(asking.find(&stripped, offset), Ok(Ok(None)));
    assert!(!asking.files.has_better_names());
    assert_eq!(asking.find(&one, offset), Ok(Ok(Some("work".into()))));
    assert!(asking.files.has_better_names() && !asking.files.has_better_names());
    assert_eq!(asking.find(&stripped, offset), Ok(Ok(Some("work".into()))));
    assert_eq!(asking.find(&other, offset), Ok(Ok(Some("play".into()))));
}

#[test]
fn the_files_used_least_recently_go() {
    crate::limits::open_files();
    let mut asking = Asking::new(false, usize::MAX);
    let files: Vec<_> =
        (0..=MAX_FILES).map(|it| file(&with_build_id(&(it as u64 + 1).to_le_bytes()))).collect();
    let is_kept =
        |asking: &Asking, at: usize| asking.files.held.get(files[at].key().unwrap()).is_some();
    for file in &files[..MAX_FILES] {
        asking.find(file, 64).unwrap().unwrap();
    }
    assert_eq!(asking.files.held.keys().len(), MAX_FILES);
    asking.find(&files[0], 64).unwrap().unwrap();
    asking.find(&files[MAX_FILES], 64).unwrap().unwrap();
    assert_eq!(asking.files.held.keys().len(), MAX_FILES / 4 * 3);
    let gone = MAX_FILES + 1 - MAX_FILES / 4 * 3;
    assert!(is_kept(&asking, 0) && is_kept(&asking, MAX_FILES));
    assert!(!is_kept(&asking, 1) && !is_kept(&asking, gone));
    assert!(is_kept(&asking, gone + 1));
}

#[test]
fn beyond_the_limit_of_bytes_only_the_file_in_use_stays() {
    let mut asking = Asking::new(false, 99);
    let [one, other] = [1, 2].map(|it| file(&with_build_id(&[it])));
    let keys = |asking: &Asking| asking.files.held.keys();
    for used in [&one, &other] {
        let begin = asking.files.held.now();
        asking.find(used, 64).unwrap().unwrap();
        let key = used.key().unwrap();
        assert_eq!(keys(&asking), [key]);
        // As if it took so much; here nothing counts what is allocated.
        asking.files.held.set_bytes(key, 100);
        asking.parser.forget(asking.files.held.evict(begin));
        assert_eq!((keys(&asking), asking.files.held.account().bytes), (vec![key], 100));
    }
    let now = asking.files.held.now();
    asking.parser.forget(asking.files.held.evict(now));
    assert_eq!((keys(&asking), asking.files.held.account().bytes), (vec![], 0));
}

/// A program whose debug information nests functions so deeply.
fn deeply_nested(dir: &TempDir, depth: u32) -> (PathBuf, u64) {
    let source = format!(
        "
        .globl _start, work
        _start: nop
        work: nop
        .rept 64
        nop
        .endr
        .size work, . - work
        .type work, %function
        end:
        .section .debug_abbrev
        .uleb128 1, 0x11; .byte 1; .uleb128 0x11, 1, 0x12, 6, 0, 0
        .uleb128 2, 0x2e; .byte 1; .uleb128 0x11, 1, 0x12, 6, 3, 8, 0, 0
        .uleb128 3, 0x1d; .byte 1; .uleb128 0x11, 1, 0x12, 6, 3, 8, 0, 0
        .uleb128 0
        .section .debug_info
        .long 2f - 1f
        1: .short 4; .long .debug_abbrev; .byte 8
        .uleb128 1; .quad work; .long end - work
        .uleb128 2; .quad work; .long end - work; .asciz \"work\"
        .rept {depth}
        .uleb128 3; .quad work; .long end - work; .asciz \"inner\"
        .endr
        .rept {depth} + 2
        .uleb128 0
        .endr
        2:
        "
    );
    fs::write(dir.path().join("nested.s"), source.replace("%function", "@function")).unwrap();
    let path = dir.path().join("nested");
    let mut gcc = Command::new("gcc");
    gcc.args(["-nostdlib", "-static", "-no-pie", "-Wl,--build-id", "-o"]).arg(&path);
    assert!(gcc.arg(dir.path().join("nested.s")).status().unwrap().success());
    let elf = fs::read(&path).unwrap();
    let work = object::File::parse(&*elf).unwrap().symbol_by_name("work").unwrap().address();
    (path, work + 8 - 0x40_0000)
}

#[test]
fn debug_information_that_ends_its_reader_costs_the_lines_and_not_the_name() {
    let dir = tempfile::tempdir().unwrap();
    for (depth, barred) in [(3, 0), (1 << 20, 1)] {
        let (path, offset) = deeply_nested(&dir, depth);
        let file = Arc::new(MappedFile::of(File::open(path).unwrap()));
        let mut asking = Asking::new(true, usize::MAX);
        let found = asking.files.find(&mut asking.parser, mapped(&file), offset);
        let found = found.unwrap().unwrap().unwrap();
        assert_eq!((&*found.name, found.inlined.is_empty()), ("work", barred > 0));
        let account = asking.parser.account();
        assert_eq!(account.barred, barred, "{account:?}");
        // What is known now needs no other process.
        assert_eq!(asking.find(&file, offset), Ok(Ok(Some("work".into()))));
        assert_eq!(asking.parser.account(), account);
    }
}

#[test]
fn names_come_again_from_another_process() {
    let dir = tempfile::tempdir().unwrap();
    let (path, offset) = deeply_nested(&dir, 3);
    let named = Arc::new(MappedFile::of(File::open(path).unwrap()));
    let other = file(&with_build_id(&[1]));
    let mut asking = Asking::new(true, usize::MAX);
    for restarts in 0..3 {
        let wanted = [(mapped(&named), offset), (mapped(&other), 64), (mapped(&named), offset + 1)];
        asking.files.prefetch(&mut asking.parser, &wanted);
        assert_eq!(asking.files.answers.len(), 3);
        assert_eq!(asking.find(&other, 64), Ok(Ok(None)));
        for offset in [offset, offset + 1, offset + 2] {
            assert_eq!(asking.find(&named, offset), Ok(Ok(Some("work".into()))));
        }
        let account = asking.parser.account();
        assert_eq!((account.restarts, account.barred), (restarts, 0));
        asking.parser.kill();
    }
}

#[test]
fn a_debug_file_that_claims_what_it_has_not_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let (path, offset) = deeply_nested(&dir, 3);
    let mapped_file = Arc::new(MappedFile::of(File::open(path).unwrap()));
    let mut asking = Asking::new(false, usize::MAX);
    assert_eq!(asking.find(&mapped_file, offset), Ok(Ok(Some("work".into()))));
    let debug = tempfile::tempfile().unwrap();
    profiler_testing::elf::sparse_with_symbols(&debug, 4 << 40);
    let id = mapped_file.build_id().unwrap();
    assert!(asking.files.add_debug_file(&mut asking.parser, id, debug));
    assert_eq!(asking.find(&mapped_file, offset), Ok(Ok(Some("work".into()))));
    let account = asking.parser.account();
    assert_eq!((account.restarts, account.barred), (0, 1), "{account:?}");
}
