//! Which module of the agent may use which: the order stands once, in the picture of `docs/architecture.md`, and the
//! code has to follow it. Imports of tests don't count.

#![allow(clippy::indexing_slicing, clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    str::FromStr as _,
};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The heading above the picture, which is the next block of code.
const HEADING: &str = "## Layers\n";

#[test]
fn modules_use_only_those_in_rows_below() {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_to_string(crate_root.join("../docs/architecture.md")).unwrap();
    let row = rows(&docs);
    let source = crate_root.join("src");
    let root = fs::read_to_string(source.join("lib.rs")).unwrap();
    let (present, shown): (BTreeSet<_>, BTreeSet<_>) = (
        modules(&root, false).into_iter().collect(),
        row.keys().map(|it| (*it).to_owned()).collect(),
    );
    assert_eq!(shown, present, "docs/architecture.md has to show the modules that lib.rs has");

    let against: Vec<String> = all_imports(&source)
        .into_iter()
        .filter(|(_, module, import)| {
            let of = import.of.as_str();
            of != module && row.get(of).is_none_or(|of| *of <= row[module.as_str()])
        })
        .map(|(file, module, Import { of, text, line })| {
            let file = file.display();
            format!("{file}:{line}: `{module}` imports {text}, and `{of}` is not in a row below it")
        })
        .collect();
    assert!(
        against.is_empty(),
        "against the order of docs/architecture.md:\n{}",
        against.join("\n")
    );
}

/// The row of each module in the picture, counted from the top. What a row is about stands to the right of its
/// modules, behind two spaces.
fn rows(docs: &str) -> BTreeMap<&str, usize> {
    let (_, below) = docs.split_once(HEADING).unwrap();
    let picture = below.split("```").nth(1).unwrap();
    let mut row = BTreeMap::new();
    for (at, line) in picture.lines().skip(1).enumerate() {
        let modules = line.split_once("  ").map_or(line, |(modules, _)| modules);
        for module in modules.split_whitespace() {
            assert!(row.insert(module, at).is_none(), "{module} stands there twice");
        }
    }
    row
}

/// Each import in the files below the folder, with its file and the top-level module that this belongs to.
fn all_imports(source: &Path) -> Vec<(PathBuf, String, Import)> {
    let mut files = BTreeMap::new();
    let mut folders = vec![source.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(source).unwrap().with_extension("");
            let mut module: Vec<String> =
                name.iter().map(|it| it.to_str().unwrap().to_owned()).collect();
            module.pop_if(|last| last == "mod");
            files.insert(module, (fs::read_to_string(&path).unwrap(), path));
        }
    }
    // The root declares all modules, and the binary is above them.
    for above in ["lib", "main"] {
        files.remove(&[above.to_owned()][..]);
    }
    let mut of_tests: Vec<Vec<String>> = Vec::new();
    for (module, (text, _)) in &files {
        let children = modules(text, true).into_iter();
        of_tests.extend(children.map(|child| [&module[..], &[child]].concat()));
    }
    files.retain(|module, _| !of_tests.iter().any(|it| module.starts_with(it)));
    let found = |(module, (text, path)): (Vec<String>, (String, PathBuf))| {
        let imports = imports(&text, module.len()).into_iter();
        imports.map(move |it| (path.clone(), module[0].clone(), it))
    };
    files.into_iter().flat_map(found).collect()
}

/// A path that leads to a top-level module.
#[derive(Debug, PartialEq)]
struct Import {
    of: String,
    text: String,
    line: usize,
}

/// The imports of a file whose module is so many levels below the root.
fn imports(text: &str, depth: usize) -> Vec<Import> {
    let mut found = Vec::new();
    walk(TokenStream::from_str(text).unwrap(), depth, &mut found);
    found
}

fn walk(tokens: TokenStream, depth: usize, found: &mut Vec<Import>) {
    let (tokens, _) = split_tests(tokens);
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            TokenTree::Group(group) => {
                let is_module = at >= 3 && is_word(&tokens[at - 3], "mod");
                walk(group.stream(), depth + usize::from(is_module), found);
            }
            TokenTree::Ident(word) if word == "crate" || word == "super" => {
                let line = word.span().start().line;
                let mut supers = usize::from(word == "super");
                while is_colons(&tokens, at) && is_word(&tokens[at + 2], "super") {
                    supers += 1;
                    at += 3;
                }
                // Where `super` does not lead up to the root, it stays within the module.
                if is_colons(&tokens, at) && (word == "crate" || supers >= depth) {
                    leaves(&tokens[at + 2..], line, found);
                }
            }
            _ => {}
        }
    }
}

/// The paths that begin with these tokens, behind `crate::`.
fn leaves(tokens: &[TokenTree], line: usize, found: &mut Vec<Import>) {
    match tokens.first() {
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            inner.split(|it| is_punct(it, ',')).for_each(|leaf| leaves(leaf, line, found));
        }
        Some(first) => {
            let path = tokens.iter().take_while(|it| {
                matches!(it, TokenTree::Ident(word) if word != "as") || is_punct(it, ':')
            });
            let text = path.map(ToString::to_string).collect();
            let line = first.span().start().line.max(line);
            found.push(Import { of: first.to_string(), text, line });
        }
        None => {}
    }
}

/// The modules that a file declares: those for tests only, or the others.
fn modules(text: &str, for_tests: bool) -> Vec<String> {
    let (kept, tests) = split_tests(TokenStream::from_str(text).unwrap());
    let tokens = if for_tests { tests } else { kept };
    let declared = tokens.windows(2).filter(|pair| is_word(&pair[0], "mod"));
    declared.map(|pair| pair[1].to_string()).collect()
}

/// The items that are in every build, and those for tests only.
fn split_tests(tokens: TokenStream) -> (Vec<TokenTree>, Vec<TokenTree>) {
    let (mut kept, mut tests) = (Vec::new(), Vec::new());
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let is_for_tests = is_punct(&token, '#')
            && matches!(tokens.peek(), Some(TokenTree::Group(it)) if it.to_string() == "[cfg (test)]");
        if !is_for_tests {
            kept.push(token);
            continue;
        }
        // An item ends with its body or a semicolon, and a variant, a field or an arm with a comma.
        let mut keyword = None;
        for token in tokens.by_ref() {
            let known = ["use", "mod", "fn", "impl", "struct", "enum", "const", "static", "type"];
            keyword = keyword.or_else(|| known.into_iter().find(|it| is_word(&token, it)));
            let is_body =
                matches!(&token, TokenTree::Group(it) if it.delimiter() == Delimiter::Brace);
            let is_end = is_punct(&token, ';')
                || is_body && keyword != Some("use")
                || is_punct(&token, ',') && keyword.is_none();
            tests.push(token);
            if is_end {
                break;
            }
        }
    }
    (kept, tests)
}

fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(it) if it == word)
}

fn is_punct(token: &TokenTree, punct: char) -> bool {
    matches!(token, TokenTree::Punct(it) if it.as_char() == punct)
}

/// Whether `::` and something behind it is there.
fn is_colons(tokens: &[TokenTree], at: usize) -> bool {
    let are = |at: usize| tokens.get(at).is_some_and(|it| is_punct(it, ':'));
    are(at) && are(at + 1) && tokens.len() > at + 2
}

#[test]
fn imports_are_found_in_all_their_forms() {
    let text = "
        use crate::a::One;
        use crate::{b, c::{Two, three::Four}, d as other};
        //! crate::comment
        const TEXT: &str = \"crate::text\";
        pub(crate) fn five(it: crate::e::Six) { crate::f::seven!(crate::g::EIGHT) }
        use super::{sibling, super::within};
        mod inner { use super::super::sibling; use super::super::super::h::Nine; }
        use super::super::i;
        #[cfg(test)]
        use crate::{not::a, not::b};
        #[cfg(test)]
        mod tests { use crate::nor::this; }
        use crate::j;
    ";
    let found = imports(text, 2);
    let of: Vec<&str> = found.iter().map(|it| it.of.as_str()).collect();
    assert_eq!(of, ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]);
    assert_eq!((found[0].line, &*found[0].text), (2, "a::One"));
    let text = "mod a; #[cfg(test)] mod b; pub mod c; enum D { #[cfg(test)] E(u8), F }";
    assert_eq!(
        (modules(text, false), modules(text, true)),
        (vec!["a".into(), "c".into()], vec!["b".into()])
    );
}

#[test]
fn a_picture_has_rows() {
    let row = rows("## Layers\n\n```text\na b  the top\nc    below\n```\n");
    assert_eq!(row, BTreeMap::from([("a", 0), ("b", 0), ("c", 1)]));
}
