//! The names of functions as their programmers wrote them, within a limit.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// The most bytes of a name that are kept. Substitutions make a few hundred bytes into gigabytes.
pub const MAX_NAME_BYTES: usize = 4096;
/// How deep a C++ name may be nested. Each level takes some hundred bytes of stack.
const MAX_DEPTH: u32 = 96;
/// The most `new` and `delete` expressions in the types of a name. For each of them the parser tries twice what
/// they contain.
const MAX_ALLOCATIONS: usize = 8;
/// How many places are tried where the part before the parameters may end.
const MAX_ENDS: usize = 256;

/// A function's name in its language, cut at [`MAX_NAME_BYTES`]: demangled if it is that of a C++ or Rust
/// function, and otherwise as it is. What is not UTF-8 in it is replaced.
#[must_use]
pub fn demangle(name: &[u8]) -> String {
    let Ok(text) = str::from_utf8(name) else { return cut(&String::from_utf8_lossy(name)) };
    demangled(text).filter(|it| !it.is_empty()).unwrap_or_else(|| cut(text))
}

fn demangled(name: &str) -> Option<String> {
    if !(name.starts_with("_Z") || name.starts_with("_R") || name.starts_with("__Z")) {
        return None;
    }
    let mut text = Bounded::default();
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        // Without the hash. It fails where the limit is reached, and what was written is enough.
        let _ = write!(text, "{rust:#}");
        return Some(text.text);
    }
    cpp(name)
}

/// Demangles a C++ name and writes it as binutils do.
fn cpp(name: &str) -> Option<String> {
    let (thunk, encoding) = match name.strip_prefix("_ZT").and_then(thunk) {
        Some((kind, encoding)) => (kind, Cow::Owned(format!("_Z{encoding}"))),
        None => ("", Cow::Borrowed(name)),
    };
    if allocations(&encoding) > MAX_ALLOCATIONS {
        return None;
    }
    let encoding = with_return_type(&encoding).map_or(encoding, Cow::Owned);
    let mut text = Bounded::default();
    text.write_str(thunk).ok()?;
    let Some(symbol) = parse(&encoding) else {
        // Not all types of parameters are known: at least the name is.
        let (_, name) = without_parameters(&encoding)?;
        return text.write_str(&name).is_ok().then(|| tidy(&text.text));
    };
    (text.write(&symbol) || text.is_full).then(|| tidy(&text.text))
}

/// How many `new` and `delete` expressions a mangled name has at most: what is within an identifier, whose length
/// is before it, is none. A number before one of these letters may be no length.
fn allocations(name: &str) -> usize {
    let (mut count, mut rest) = (0, name.as_bytes());
    while !rest.is_empty() {
        let digits = rest.iter().take_while(|it| it.is_ascii_digit()).count();
        let behind = rest.get(digits..).unwrap_or_default();
        let is_length = digits > 0
            && !behind.starts_with(b"_")
            && !behind.starts_with(b"E")
            && !behind.starts_with(b"p");
        if is_length {
            let length = rest.get(..digits).and_then(|it| str::from_utf8(it).ok()?.parse().ok());
            rest = length.and_then(|length: usize| behind.get(length..)).unwrap_or(behind);
            continue;
        }
        count += usize::from([b"nw", b"na", b"dl", b"da"].iter().any(|it| rest.starts_with(*it)));
        rest = rest.get(digits.max(1)..).unwrap_or_default();
    }
    count
}

fn parse(name: &str) -> Option<Symbol<&str>> {
    let options = ParseOptions::default().recursion_limit(MAX_DEPTH);
    Symbol::new_with_options(name, &options).ok()
}

/// How long the part before the types of the parameters is, where it ends with a closing `E`; and that part,
/// demangled.
fn without_parameters(name: &str) -> Option<(usize, String)> {
    let ends = name.match_indices('E').map(|(at, _)| at + 1).take(MAX_ENDS);
    let demangled = ends.into_iter().find_map(|end| {
        // A template has to return something: nothing.
        let symbol = format!("{}v", name.get(..end)?);
        let mut text = Bounded::default();
        text.write(&parse(&symbol)?).then_some((end, text.text))
    });
    let (end, text) = demangled?;
    let text = text.strip_suffix("()").unwrap_or(&text);
    Some((end, text.strip_prefix("void ").unwrap_or(text).to_owned()))
}

/// The name of a constructor template with a return type, which it has none of, but which the parser takes its
/// first parameter for.
fn with_return_type(name: &str) -> Option<String> {
    // Most names are of something else, and need not be looked at closely.
    ["C1I", "C2I", "C3I"].iter().any(|it| name.contains(it)).then_some(())?;
    let (end, text) = without_parameters(name)?;
    let (before, parameters) = name.split_at_checked(end)?;
    let is_whole = !parameters.is_empty() && !parameters.starts_with('.');
    (is_whole && is_constructor(&text)).then(|| format!("{before}v{parameters}"))
}

/// Whether a demangled name without parameters is that of a constructor template, `A<int>::A<char>`.
fn is_constructor(name: &str) -> bool {
    let (mut depth, mut parts, mut part) = (0_usize, [""; 2], 0..0);
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'<' | b'(' | b'{' => depth += 1,
            b'>' | b')' | b'}' => depth = depth.saturating_sub(1),
            b':' if depth == 0 => {
                if !part.is_empty() {
                    parts = [parts[1], name.get(part.clone()).unwrap_or_default()];
                }
                part = at + 1..at + 1;
            }
            _ if depth == 0 => part.end = at + 1,
            _ => {}
        }
    }
    let plain = |part: &str| part.split('<').next().unwrap_or_default().to_owned();
    let last = name.get(part).unwrap_or_default();
    name.ends_with('>') && plain(parts[1]) == plain(last)
}

/// What a thunk is called, and the name of the function that it leads to, from behind `_ZT`:
/// <https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling-special-thunks>.
fn thunk(name: &str) -> Option<(&'static str, &str)> {
    let (kind, name) = match name.as_bytes().first()? {
        b'h' => ("non-virtual thunk to ", call_offset(name)?),
        b'v' => ("virtual thunk to ", call_offset(name)?),
        b'c' => ("covariant return thunk to ", call_offset(call_offset(name.get(1..)?)?)?),
        _ => return None,
    };
    Some((kind, name))
}

/// What follows `h <number> _` or `v <number> _ <number> _`.
fn call_offset(name: &str) -> Option<&str> {
    let number = |name: &'_ str| -> Option<usize> {
        let digits = name.strip_prefix('n').unwrap_or(name);
        let rest = digits.trim_start_matches(|it: char| it.is_ascii_digit());
        (rest.len() < digits.len()).then_some(())?;
        Some(name.len() - rest.strip_prefix('_')?.len())
    };
    let numbers = match name.as_bytes().first()? {
        b'h' => 1,
        b'v' => 2,
        _ => return None,
    };
    let mut name = name.get(1..)?;
    for _ in 0..numbers {
        name = name.get(number(name)?..)?;
    }
    Some(name)
}

/// Number literals whose type is part of the number, as binutils write them.
const LITERALS: [(&str, &str); 6] = [
    ("(unsigned int)", "u"),
    ("(long)", "l"),
    ("(unsigned long)", "ul"),
    ("(long long)", "ll"),
    ("(unsigned long long)", "ull"),
    ("(int)", ""),
];

/// Leaves out what is written of an empty pack (`Foo<A, >`, `f(int, &&)`), and writes number literals short
/// (`3u`).
fn tidy(name: &str) -> String {
    let mut tidied = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(next) = rest.chars().next() {
        if let Some((number, letters, behind)) = literal(rest) {
            tidied.push_str(number);
            tidied.push_str(letters);
            rest = behind;
            continue;
        }
        if let Some(behind) = empty_pack(&tidied, rest) {
            rest = behind;
            continue;
        }
        tidied.push(next);
        rest = rest.get(next.len_utf8()..).unwrap_or_default();
    }
    tidied
}

/// A number literal with its type before it: the number, the letters of its type, and what follows.
fn literal(text: &str) -> Option<(&str, &'static str, &str)> {
    let (behind, letters) =
        LITERALS.iter().find_map(|(cast, letters)| Some((text.strip_prefix(cast)?, *letters)))?;
    let digits = behind.strip_prefix('-').unwrap_or(behind);
    let after = digits.trim_start_matches(|it: char| it.is_ascii_digit());
    if after.len() == digits.len() {
        return None;
    }
    let number = behind.get(..behind.len() - after.len())?;
    Some((number, letters, after))
}

/// What follows an element of a list that is nothing but `&` or the like, or not even that.
fn empty_pack<'a>(before: &str, text: &'a str) -> Option<&'a str> {
    let ends = |it: &str| it.starts_with(['>', ')', ',']);
    if let Some(element) = text.strip_prefix(", ") {
        let behind = element.trim_start_matches(['&', '*', ' ']);
        return ends(behind).then_some(behind);
    }
    // The first of the parameters of a function: `f(&&)`, but not `int (&&) [3]`.
    let first = text.strip_prefix(['&', '*'])?;
    let is_first = before.ends_with('(') && !before.ends_with(" (");
    let behind = first.trim_start_matches(['&', '*']);
    (is_first && ends(behind)).then(|| behind.strip_prefix(", ").unwrap_or(behind))
}

/// As much of a name as is kept.
pub(crate) fn cut(name: &str) -> String {
    let most = name.len().min(MAX_NAME_BYTES);
    let end = (0..=most).rev().find(|&end| name.is_char_boundary(end));
    name.get(..end.unwrap_or_default()).unwrap_or(name).to_owned()
}

impl Bounded {
    /// Writes a demangled name; whether it could be, and whole.
    fn write(&mut self, symbol: &Symbol<&str>) -> bool {
        let options = DemangleOptions::default().recursion_limit(MAX_DEPTH);
        symbol.structured_demangle(self, &options).is_ok()
    }
}

/// A text that takes no more than [`MAX_NAME_BYTES`]: to write more is an error.
#[derive(Debug, Default)]
struct Bounded {
    text: String,
    is_full: bool,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = MAX_NAME_BYTES.saturating_sub(self.text.len());
        let end = (0..=room.min(part.len())).rev().find(|&end| part.is_char_boundary(end));
        self.text.push_str(part.get(..end.unwrap_or_default()).unwrap_or_default());
        self.is_full |= end != Some(part.len());
        if self.is_full { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object as _, ObjectSymbol as _};
    use profiler_testing::skipped;
    use std::{
        fs,
        io::Write as _,
        process::{Command, Stdio},
        thread,
    };

    fn check(names: &[(&str, &str)]) {
        for (mangled, expected) in names {
            assert_eq!(demangle(mangled.as_bytes()), *expected, "{mangled}");
        }
    }

    #[test]
    fn names_are_those_that_binutils_write() {
        check(&[
            ("main", "main"),
            ("_ZN3foo3barEv", "foo::bar()"),
            ("_Znotmangled", "_Znotmangled"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_ZN3foo3barEv.cold", "foo::bar() [clone .cold]"),
            // Empty packs.
            (
                "_ZN4llvm17ObjCARCExpandPass3runERNS_8FunctionERNS_15AnalysisManagerIS1_JEEE",
                "llvm::ObjCARCExpandPass::run(llvm::Function&, \
                 llvm::AnalysisManager<llvm::Function>&)",
            ),
            ("_Z1fIJEEvDpOT_", "void f<>()"),
            ("_Z1fIiJEEvT_DpOT0_", "void f<int>(int)"),
            ("_Z1fRA3_ci", "f(char (&) [3], int)"),
            // Numbers.
            ("_Z1f1AILj3EE1BILm32EE1CILln1EE", "f(A<3u>, B<32ul>, C<-1l>)"),
            // Thunks.
            (
                "_ZThn8_NK6icu_7810UnicodeSet17matchesIndexValueEh",
                "non-virtual thunk to icu_78::UnicodeSet::matchesIndexValue(unsigned char) const",
            ),
            ("_ZTv0_n24_N1AD1Ev", "virtual thunk to A::~A()"),
            ("_ZTch0_h16_N1A1fEv", "covariant return thunk to A::f()"),
            // Constructor templates.
            (
                "_ZN2v88internal16CallOptimizationC1INS0_7IsolateEEEPT_NS0_6HandleINS0_6ObjectEEE",
                "v8::internal::CallOptimization::CallOptimization<v8::internal::Isolate>\
                 (v8::internal::Isolate*, v8::internal::Handle<v8::internal::Object>)",
            ),
            // Of what can't be parsed there is the name at least.
            ("_ZSt1fIbENSt1gIXsrSt1hIT_S2_EE1vEE1tEv", "std::f<bool>"),
        ]);
    }

    #[test]
    fn a_name_that_expands_is_cut() {
        // Each argument is twice the one before.
        let mut name = "_Z1f1aIiE".to_owned();
        for at in ('0'..='9').chain('A'..='Z').step_by(2) {
            write!(name, "1aIS{at}_S{at}_E").unwrap();
        }
        assert!(name.len() < 300, "{}", name.len());
        let text = demangle(name.as_bytes());
        assert!(text.starts_with("f(a<int>, a<") && text.len() <= MAX_NAME_BYTES, "{text}");
        assert!(text.len() > MAX_NAME_BYTES / 2, "{}", text.len());
        // As it is, where there is nothing to demangle.
        assert_eq!(demangle(&[b'x'; 2 * MAX_NAME_BYTES]).len(), MAX_NAME_BYTES);
        assert_eq!(demangle("é".repeat(MAX_NAME_BYTES).as_bytes()).len(), MAX_NAME_BYTES);
    }

    #[test]
    fn a_name_that_the_parser_would_never_be_done_with_stays_as_it_is() {
        for operator in ["nw", "na", "dl", "da", "gsnw", "gsdlda"] {
            for before in ["_Z1fIX", "_Z1fDT", "_Z1fIXcl", "_ZThn8_1fIX"] {
                let name = before.to_owned() + &operator.repeat(40);
                assert_eq!(demangle(name.as_bytes()), name);
            }
        }
        // They are counted where they are no part of an identifier.
        assert_eq!(allocations("_ZN8internal6updateI4dataEE"), 0);
        assert_eq!(allocations("_Z1fIXnwnaLi30EdldaS1_nw"), 5);
    }

    #[test]
    fn any_nesting_is_no_harm() {
        for part in ["P", "N1a", "1aI", "F", "X", "J", "Z1f", "DT", "S_", "T_", "A1_", "U1x"] {
            let name = format!("_Z1f{}", part.repeat(20_000));
            assert!(demangle(name.as_bytes()).len() <= MAX_NAME_BYTES);
        }
    }

    /// The mangled names of the functions that a library exports.
    fn mangled(library: &str) -> Vec<String> {
        let Ok(bytes) = fs::read(library) else { return Vec::new() };
        let elf = object::File::parse(&*bytes).unwrap();
        let symbols = elf.dynamic_symbols();
        let functions = symbols.filter(|it| it.kind() == object::SymbolKind::Text);
        let names = functions.filter_map(|it| it.name().ok().map(str::to_owned));
        names.filter(|it| it.starts_with("_Z")).collect()
    }

    /// Without spaces, and without what versions of binutils write in full or not.
    fn plain(name: &str) -> String {
        let mut name = name.replace(", std::allocator<char> >", " >");
        for class in ["string", "ostream", "istream", "iostream"] {
            let full = format!("std::basic_{class}<char, std::char_traits<char> >");
            let begin = format!("std::{class}::");
            name = name
                .replace(&full, &format!("std::{class}"))
                .replace(&format!("{begin}basic_"), &begin)
                .replace(&format!("{begin}~basic_"), &format!("{begin}~"));
        }
        name.replace(' ', "")
    }

    #[test]
    fn the_names_of_a_library_are_those_of_cxxfilt() {
        const LIBRARIES: [&str; 2] = [
            "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
            "/usr/lib/aarch64-linux-gnu/libstdc++.so.6",
        ];
        let names: Vec<_> = LIBRARIES.iter().flat_map(|it| mangled(it)).collect();
        let mut cxxfilt = Command::new("c++filt");
        let Ok(mut child) = cxxfilt.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
            return skipped("c++filt is not installed");
        };
        if names.is_empty() {
            skipped("libstdc++ is not installed");
        }
        let (mut to, lines) = (child.stdin.take().unwrap(), names.join("\n"));
        let writer = thread::spawn(move || to.write_all(lines.as_bytes()).unwrap());
        let expected = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        writer.join().unwrap();
        let ours = names.iter().map(|it| demangle(it.as_bytes()));
        let differ: Vec<_> = ours
            .zip(expected.lines())
            .filter(|(ours, expected)| plain(ours) != plain(expected))
            .collect();
        assert!(
            differ.len() * 100 <= names.len(),
            "{} of {}: {differ:#?}",
            differ.len(),
            names.len()
        );
    }
}
