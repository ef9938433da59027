//! A page that needs nothing beside it: a flame graph to zoom and search, by process, thread and binary, from the
//! outside or the inside, with a table of all functions and the ledger.
//!
//! The page asks no host for anything, and its policy allows no script and no style but its own. The samples are
//! JSON in it, which `html/profile.js` reads; `html/data.rs` says what is in it.

mod data;

use std::io::{self, Write};

use self::data::Data;
use super::{
    about::About,
    format::{Export, Format, Processes},
};
use crate::profile::Profile;

/// The format, by name.
pub const FORMAT: Format = Format {
    name: "html",
    help: "A page with a flame graph and a table of functions, at the end: open it in any browser",
    extensions: &["html"],
    processes: Processes::Always,
    is_binary: false,
    viewers: "any browser",
    has_ledger: true,
    export: Export::Whole(write),
};

const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/style.css");
const SCRIPT: &str = concat!(
    include_str!("html/profile.js"),
    include_str!("html/trees.js"),
    include_str!("html/flame.js"),
    include_str!("html/elements.js"),
    include_str!("html/table.js"),
    include_str!("html/page.js"),
);

/// The digests of both by which the page's policy knows them; a test says what they have to be.
/// <https://www.w3.org/TR/CSP3/#grammardef-hash-source>
const STYLE_HASH: &str = "sha256-kiYlCgBZhT1ullTuaOSO4jN9NHS/bpLO1CRZNyrMDr8=";
const SCRIPT_HASH: &str = "sha256-YBqZ+5ph6FmsFdaJkz28zyyZ1ARM6Yhaluxrep3H3Vs=";

fn write(profile: &Profile, about: &About<'_>, to: &mut dyn Write) -> io::Result<()> {
    write_page(&Data::of(profile, about), to)
}

/// Writes a page that compares the second source with the first; samples of the second count `scale` each.
pub(super) fn write_changes(
    profile: &Profile,
    about: &About<'_>,
    scale: f64,
    to: &mut dyn Write,
) -> io::Result<()> {
    write_page(&Data::of(profile, about).compared(scale), to)
}

fn write_page(data: &Data, to: &mut dyn Write) -> io::Result<()> {
    let (before, after) = page();
    to.write_all(before.as_bytes())?;
    to.write_all(inert(&serde_json::to_string(data)?).as_bytes())?;
    to.write_all(after.as_bytes())
}

/// What stands before and after the data.
fn page() -> (String, String) {
    let policy = format!(
        "default-src 'none'; script-src '{SCRIPT_HASH}'; style-src '{STYLE_HASH}'; \
         base-uri 'none'; form-action 'none'"
    );
    let fill = |text: &str| {
        text.replace("{policy}", &policy).replace("{style}", STYLE).replace("{script}", SCRIPT)
    };
    let (before, after) = PAGE.split_once("{data}").unwrap_or((PAGE, ""));
    (fill(before), fill(after))
}

/// JSON in which no `</script>` and no comment can begin: `<` is in strings only, where it may be escaped.
/// <https://html.spec.whatwg.org/multipage/scripting.html#restrictions-for-contents-of-script-elements>
fn inert(json: &str) -> String {
    json.replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use sha2::{Digest as _, Sha256};

    use super::*;

    #[test]
    fn the_policy_knows_script_and_style() {
        let hash = |text: &str| format!("sha256-{}", STANDARD.encode(Sha256::digest(text)));
        assert_eq!((STYLE_HASH, SCRIPT_HASH), (&*hash(STYLE), &*hash(SCRIPT)));
    }

    #[test]
    fn the_page_has_a_place_for_everything() {
        let (before, after) = page();
        assert!(
            before.contains(STYLE)
                && before.ends_with("<script type=\"application/json\" id=\"data\">")
        );
        assert!(after.starts_with("</script>") && after.contains(SCRIPT));
        // It is one file, and what could end its script or style is in neither.
        assert!(!SCRIPT.contains("</") && !STYLE.contains("</"));
        for text in [&before, &after] {
            assert!(
                !text.contains("http:") && !text.contains("https:") && !text.contains("//cdn"),
                "{text}"
            );
            assert!(!text.contains("{policy}") && !text.contains("{data}"));
        }
    }

    #[test]
    fn data_is_no_markup() {
        let name = "</script><!--<script>&\"'\\";
        let json = inert(&serde_json::to_string(name).unwrap());
        assert!(!json.contains('<'), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), name);
    }
}
