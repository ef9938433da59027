//! The reader against `llvm-symbolizer`: functions, lines and inlined calls at thousands of addresses of real
//! libraries, of this program, and of programs with debug info of several kinds.
//!
//! What differs is in [`Known`], with the reason, and nothing else may.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::Write as _,
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionKind, SymbolKind};
use profiler_symbols::{
    Answer, Found, Image, Images, Location, Options, SymbolFile, demangle, links,
};
use profiler_testing::skipped;
use serde_json::Value;
use tempfile::TempDir;

/// Addresses of one file, at most.
const MAX_ADDRESSES: usize = 4000;
/// Differences that are shown.
const MAX_SHOWN: usize = 5;
/// The fewest that both must have said the same of, in a file with debug info that was built here.
const MIN_SAME: usize = 200;

/// Templates, functions that are inlined into each other, a loop that is unrolled, and a constructor.
const SOURCE: &str = "#include <algorithm>
#include <string>
#include <vector>
volatile int seed = 3;
static inline int twice(int x) { return 2 * x + seed; }
static inline int four(int x) {
    int sum = 0;
    for (int i = 0; i < 4; i++)
        sum += twice(x + i);
    return sum;
}
namespace shapes {
struct Square {
    int side;
    explicit Square(int of) : side(four(of)) {}
    int area() const { return side * twice(side); }
};
template <typename T> __attribute__((noinline)) int area(const T &shape) {
    return shape.area() + twice(seed);
}
}
__attribute__((noinline)) int sorted(std::vector<int> of) {
    std::sort(of.begin(), of.end(), [](int a, int b) { return four(a) > b; });
    return of.empty() ? 0 : of.front();
}
__attribute__((noinline, cold)) int seldom(const std::string &text) {
    return text.empty() ? four(seed) : twice((int)text.size());
}
int main(int count, char **words) {
    std::vector<int> all;
    for (int i = 0; i < count + seed; i++)
        all.push_back(shapes::area(shapes::Square(i)));
    return sorted(all) + (count > 9 ? seldom(words[0]) : 0);
}
";

/// One of the functions at an address: innermost first, the last is the one that the others are inlined into.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Level {
    function: String,
    place: Option<(String, u32)>,
}

/// A difference that is known, with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Known {
    /// A stub is `sin@plt` here, and what they share `.plt`; there it has no name, or that of the symbol before.
    Stub,
    /// Several symbols begin at the address, and each names one of them.
    Alias,
    /// A clone that the compiler has made is `name.constprop.0` here, as its symbol is called, and there `name`.
    Clone,
    /// Without debug info, there only what the file's own table calls a function and gives a size has a name: not
    /// what the debug file's table has, nor assembly.
    OwnFunctions,
    /// A file compiled in a folder that is known by a relative path only has that path twice there.
    RelativeFolder,
}

fn has(tool: &str) -> bool {
    let has = Command::new(tool).arg("--version").output().is_ok_and(|it| it.status.success());
    if !has {
        skipped(&format!("{tool} is not installed"));
    }
    has
}

/// A path without what only leads back and forth.
fn plain(path: &str) -> String {
    let mut plain = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain.to_string_lossy().into_owned()
}

/// A file and a line in it. A file alone is as good as nothing: there it may be that of the whole unit.
fn place(path: &str, line: Option<u32>) -> Option<(String, u32)> {
    line.filter(|line| *line != 0).map(|line| (plain(path), line))
}

fn place_of(of: Option<&Location>) -> Option<(String, u32)> {
    of.and_then(|it| place(&it.path, it.line))
}

fn levels_of(found: Found) -> Vec<Level> {
    let inlined = found.inlined.into_iter().map(|it| {
        let place = place_of(it.location.as_ref());
        Level { function: it.name, place }
    });
    let outer = Level { function: found.name, place: place_of(found.location.as_ref()) };
    inlined.chain([outer]).collect()
}

/// Where the debug file is installed, as `llvm-symbolizer` looks for it by itself.
fn debug_file(main: &Image) -> Option<PathBuf> {
    let id = links(main).unwrap().build_id?.to_string();
    let (folder, name) = id.split_at(2);
    let path = Path::new("/usr/lib/debug/.build-id").join(folder).join(format!("{name}.debug"));
    path.exists().then_some(path)
}

/// What this crate says.
fn ours(file: &Path, addresses: &[u64]) -> Vec<Vec<Level>> {
    let image = |path: &Path| Image::new(Arc::new(fs::read(path).unwrap()), None);
    let main = image(file);
    let package = file.with_file_name("program.dwp");
    let package = package.exists().then(|| image(&package));
    let debug = debug_file(&main).map(|it| image(&it));
    let images = Images { main, debug, supplementary: None, package };
    let options = Options { lines: true, unpack_time: Duration::from_secs(60) };
    let symbols = SymbolFile::load(images, options).unwrap();
    let find = |address: &u64| loop {
        match symbols.find_address(*address) {
            Answer::None => break Vec::new(),
            Answer::Found(found) => break levels_of(found),
            Answer::Wants(dwo) => {
                let name = String::from_utf8(dwo.name).unwrap();
                let path = Path::new(std::str::from_utf8(&dwo.directory).unwrap()).join(name);
                symbols.supply(dwo.id, path.exists().then(|| image(&path)).as_ref());
            }
        }
    };
    addresses.iter().map(find).collect()
}

/// What `llvm-symbolizer` says. Names come as the file has them, and are demangled here: demangling is compared
/// elsewhere.
fn theirs(file: &Path, addresses: &[u64]) -> Vec<Vec<Level>> {
    let mut command = Command::new("llvm-symbolizer");
    command.args(["--output-style=JSON", "--no-demangle", "--inlining", "--obj"]).arg(file);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir("/");
    let mut child = command.spawn().unwrap();
    let questions: Vec<String> = addresses.iter().map(|it| format!("{it:#x}\n")).collect();
    let questions = questions.concat();
    let mut stdin = child.stdin.take().unwrap();
    let asking = thread::spawn(move || stdin.write_all(questions.as_bytes()));
    let output = child.wait_with_output().unwrap();
    asking.join().unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let answers = text.lines().map(|line| {
        let answer: Value = serde_json::from_str(line).unwrap();
        let levels = answer["Symbol"].as_array().unwrap().iter().map(|it| {
            let [function, path] = ["FunctionName", "FileName"].map(|of| it[of].as_str().unwrap());
            let line = it["Line"].as_u64().and_then(|it| u32::try_from(it).ok());
            let function = demangle::demangle(function.as_bytes());
            Level { function, place: place(path, line) }
        });
        let levels: Vec<Level> = levels.collect();
        let is_any = levels.iter().any(|it| !it.function.is_empty());
        if is_any { levels } else { Vec::new() }
    });
    let answers: Vec<_> = answers.collect();
    assert_eq!(answers.len(), addresses.len(), "{}", file.display());
    answers
}

/// Addresses of all code of a file, evenly.
fn addresses_of(elf: &object::File<'_>) -> Vec<u64> {
    let code = elf.sections().filter(|it| it.kind() == SectionKind::Text && it.size() > 0);
    let code: Vec<_> = code.map(|it| it.address()..it.address() + it.size()).collect();
    let bytes: u64 = code.iter().map(|it| it.end - it.start).sum();
    let step = usize::try_from(bytes).unwrap().div_ceil(MAX_ADDRESSES);
    // Odd, so that it does not always hit the same place of what is aligned.
    code.into_iter().flatten().step_by(step | 1).collect()
}

/// The symbols of a file, for judging differences.
struct Symbols {
    /// Names by where they begin, with how far they reach.
    by_start: BTreeMap<u64, Vec<(String, u64)>>,
    /// Names of what the file's own table calls a function and gives a size.
    functions: BTreeSet<String>,
}

impl Symbols {
    /// Those of a file and of its debug file.
    fn of(files: &[&object::File<'_>]) -> Self {
        let mut by_start = BTreeMap::<u64, Vec<_>>::new();
        let own = files.first().into_iter();
        let own = own.flat_map(|elf| elf.symbols().chain(elf.dynamic_symbols()));
        let own = own.filter(|it| it.kind() == SymbolKind::Text && it.size() > 0);
        let name = |it: object::Symbol<'_, '_>| it.name_bytes().map(demangle::demangle).ok();
        let functions = own.filter_map(name).collect();
        for symbol in files.iter().flat_map(|elf| elf.symbols().chain(elf.dynamic_symbols())) {
            let name = demangle::demangle(symbol.name_bytes().unwrap_or_default());
            by_start.entry(symbol.address()).or_default().push((name, symbol.size()));
        }
        Self { by_start, functions }
    }

    /// Whether one place has both names.
    fn are_aliases(&self, one: &str, other: &str) -> bool {
        let has = |names: &[(String, u64)], name: &str| names.iter().any(|(it, _)| it == name);
        self.by_start.values().any(|names| has(names, one) && has(names, other))
    }

    /// The reason why the answers for an address differ, if it is known.
    fn reason(&self, ours: &[Level], theirs: &[Level]) -> Option<Known> {
        let outer =
            |levels: &[Level]| levels.last().map_or(String::new(), |it| it.function.clone());
        let [one, other] = [ours, theirs].map(outer);
        let undoubled = undoubled(ours, theirs);
        if undoubled.as_deref() == Some(ours) {
            return Some(Known::RelativeFolder);
        }
        let theirs = undoubled.as_deref().unwrap_or(theirs);
        let same_but_name = ours.len() == theirs.len()
            && ours.iter().zip(theirs).all(|(one, other)| one.place == other.place)
            && ours.iter().zip(theirs).rev().skip(1).all(|(one, other)| one == other);
        if (one.ends_with("@plt") || one.starts_with(".plt"))
            && theirs.iter().all(|it| it.place.is_none())
        {
            Some(Known::Stub)
        } else if same_but_name && self.are_aliases(&one, &other) {
            Some(Known::Alias)
        } else if same_but_name && one.strip_prefix(&*other).is_some_and(|it| it.starts_with('.')) {
            Some(Known::Clone)
        } else if theirs.is_empty()
            && matches!(ours, [Level { place: None, .. }])
            && !self.functions.contains(&one)
        {
            Some(Known::OwnFunctions)
        } else {
            None
        }
    }
}

/// Their answer without the folder that [`Known::RelativeFolder`] is about; `None` if no path has it twice.
fn undoubled(ours: &[Level], theirs: &[Level]) -> Option<Vec<Level>> {
    let mut is_any = false;
    let undoubled = |(one, other): (&Level, &Level)| {
        let (path, _) = one.place.as_ref()?;
        let (doubled, line) = other.place.as_ref()?;
        let folder = doubled.strip_suffix(path.as_str()).filter(|it| !it.is_empty())?;
        let is_own = !path.starts_with('/') && path.starts_with(folder);
        is_own.then(|| Level { place: Some((path.clone(), *line)), ..other.clone() })
    };
    let levels = ours.iter().zip(theirs).map(|(one, other)| {
        let undoubled = undoubled((one, other));
        is_any |= undoubled.is_some();
        undoubled.unwrap_or_else(|| other.clone())
    });
    let levels: Vec<_> = levels.collect();
    (is_any && ours.len() == theirs.len()).then_some(levels)
}

/// Compares all of a file, and says how many addresses had the same answer with a line, and how many with an
/// inlined call.
fn compare(file: &Path, as_is: &Path, what: &str) -> (usize, usize) {
    let bytes = fs::read(file).unwrap();
    let elf = object::File::parse(&*bytes).unwrap();
    let addresses = addresses_of(&elf);
    let (ours, theirs) = (ours(file, &addresses), theirs(as_is, &addresses));
    let debug = debug_file(&Image::new(Arc::new(bytes.clone()), None)).map(fs::read);
    let debug = debug.transpose().unwrap();
    let debug = debug.as_ref().map(|it| object::File::parse(it.as_slice()).unwrap());
    let symbols = Symbols::of(&std::iter::once(&elf).chain(&debug).collect::<Vec<_>>());
    let (mut same, mut inlined) = (0, 0);
    let mut known = BTreeMap::<Known, usize>::new();
    let mut unknown = Vec::new();
    for ((address, ours), theirs) in addresses.iter().zip(&ours).zip(&theirs) {
        if ours == theirs {
            same += usize::from(ours.iter().all(|it| it.place.is_some()) && !ours.is_empty());
            inlined += usize::from(ours.len() > 1);
        } else if let Some(reason) = symbols.reason(ours, theirs) {
            *known.entry(reason).or_default() += 1;
        } else {
            unknown.push(format!("{address:#x}:\n  here  {ours:?}\n  there {theirs:?}"));
        }
    }
    let shown: BTreeSet<&String> = unknown.iter().take(MAX_SHOWN).collect();
    assert!(
        unknown.is_empty(),
        "{what}: {} of {} differ, beside {known:?}: {shown:#?}",
        unknown.len(),
        addresses.len()
    );
    (same, inlined)
}

/// The program, compiled with these options.
fn build(options: &[&str]) -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("source.cpp"), SOURCE).unwrap();
    let fixed = ["-o", "program", "source.cpp"];
    run(&dir, "g++", &[&fixed[..], options].concat());
    dir
}

fn run(dir: &TempDir, program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).current_dir(dir).output().unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments:?}: {errors}");
}

#[test]
fn programs_with_debug_info_of_each_kind() {
    if !has("llvm-symbolizer") || !has("g++") {
        return;
    }
    let kinds: &[&[&str]] = &[
        &["-g", "-O0", "-gdwarf-4"],
        &["-g", "-O0", "-gdwarf-5"],
        &["-g", "-O2", "-gdwarf-4"],
        &["-g", "-O2", "-gdwarf-5"],
        &["-g", "-O3", "-gdwarf-5", "-flto"],
        &["-g1", "-O2"],
        &["-g", "-O2", "-no-pie", "-ffunction-sections", "-Wl,--gc-sections"],
        &["-g", "-O2", "-gdwarf-4", "-gsplit-dwarf"],
        &["-g", "-O2", "-gdwarf-5", "-gsplit-dwarf"],
        &["-O2"],
    ];
    for kind in kinds {
        let dir = build(kind);
        let program = dir.path().join("program");
        let (same, inlined) = compare(&program, &program, &kind.join(" "));
        let (has_lines, is_inlined) = (kind.contains(&"-g"), !kind.contains(&"-O0"));
        assert!(!has_lines || same >= MIN_SAME, "{kind:?}: {same}");
        assert!(!has_lines || !is_inlined || inlined >= MIN_SAME, "{kind:?}: {inlined}");
    }
}

#[test]
fn debug_info_that_is_compressed() {
    if !has("llvm-symbolizer") || !has("g++") || !has("objcopy") {
        return;
    }
    let dir = build(&["-g", "-O2"]);
    let at = |name: &str| dir.path().join(name);
    for kind in ["zlib", "zlib-gnu", "zstd"] {
        let option = format!("--compress-debug-sections={kind}");
        run(&dir, "objcopy", &[&option, "program", kind]);
        // Not each version there reads all of these, so it gets the same file as it was before.
        let (same, inlined) = compare(&at(kind), &at("program"), kind);
        assert!(same >= MIN_SAME && inlined >= MIN_SAME, "{kind}: {same}, {inlined}");
    }
}

#[test]
fn real_libraries_and_this_program() {
    if !has("llvm-symbolizer") {
        return;
    }
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps
        .lines()
        .filter(|it| it.contains(" r-xp "))
        .filter_map(|it| Some(PathBuf::from(it.get(it.find('/')?..)?)));
    let mapped: BTreeSet<PathBuf> = mapped.collect();
    assert!(mapped.contains(&env::current_exe().unwrap()));
    for file in mapped {
        compare(&file, &file, &file.display().to_string());
    }
}
