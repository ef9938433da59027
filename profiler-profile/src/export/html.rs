//! A page that needs nothing beside it: a flame graph to zoom and search, by process, thread and binary, from the
//! outside or the inside, with a table of all functions and the ledger.
//!
//! The page asks no host for anything, and its policy allows no script and no style but its own. The samples are
//! JSON in it, which `html/profile.js` reads; `html/data.rs` says what is in it. A page of a run that goes on is the same
//! page, and asks who serves it for samples: `html/live.js`.

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
/// What is the same in each page.
macro_rules! viewer {
    ($($more:literal),+) => {
        concat!(
            include_str!("html/profile.js"),
            include_str!("html/trees.js"),
            include_str!("html/flame.js"),
            include_str!("html/elements.js"),
            include_str!("html/table.js"),
            include_str!("html/choice.js"),
            include_str!("html/page.js"),
            $(include_str!($more)),+
        )
    };
}
const SCRIPT: &str = viewer!("html/start.js");

/// The same of a page that follows a run.
const LIVE_PART: &str = include_str!("html/live.html");
const LIVE_KEYS: &str = include_str!("html/live_keys.html");
const LIVE_STYLE: &str = concat!(include_str!("html/style.css"), include_str!("html/live.css"));
const LIVE_SCRIPT: &str =
    viewer!("html/timeline.js", "html/link.js", "html/source.js", "html/live.js");

/// The digests of them by which a page's policy knows them; a test says what they have to be.
/// <https://www.w3.org/TR/CSP3/#grammardef-hash-source>
const STYLE_HASH: &str = "sha256-mcA3qFD/BLhGGxYqCuX0T8N8VdYoqB2dV+50ALgu8a0=";
const SCRIPT_HASH: &str = "sha256-ae2+0nilDyj+vuqMPiDnXb8v7770fStBZnQecsfLECI=";
const LIVE_STYLE_HASH: &str = "sha256-o0AROO4FqBb2qxbTdl76Aq9SYE0ODJLCPDXU0WT7upA=";
const LIVE_SCRIPT_HASH: &str = "sha256-69O7yXO4FziU9nYCqPI8I5gJOhpbRFGqy19o8e1EEhA=";

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

/// Writes the samples of such a page alone.
pub(super) fn write_changes_data(
    profile: &Profile,
    about: &About<'_>,
    scale: f64,
    to: &mut dyn Write,
) -> io::Result<()> {
    Ok(serde_json::to_writer(to, &Data::of(profile, about).compared(scale))?)
}

fn write_page(data: &Data, to: &mut dyn Write) -> io::Result<()> {
    let (before, after) = FINISHED.fill();
    to.write_all(before.as_bytes())?;
    to.write_all(inert(&serde_json::to_string(data)?).as_bytes())?;
    to.write_all(after.as_bytes())
}

/// Writes the samples alone, as the page reads them: JSON.
pub fn write_data(profile: &Profile, about: &About<'_>, to: &mut dyn Write) -> io::Result<()> {
    Ok(serde_json::to_writer(to, &Data::of(profile, about))?)
}

/// A page without samples, which asks who serves it for those of a run that goes on.
#[must_use]
pub fn live_page() -> String {
    let (before, after) = LIVE.fill();
    format!("{before}null{after}")
}

/// What that page may do: ask who serves it, beside what each page may. No other page may show it in a frame.
#[must_use]
pub fn live_policy() -> String {
    format!("{}; frame-ancestors 'none'", LIVE.policy())
}

/// What a page is made of.
struct Parts {
    part: &'static str,
    keys: &'static str,
    style: (&'static str, &'static str),
    script: (&'static str, &'static str),
    connects: &'static str,
}

const FINISHED: Parts = Parts {
    part: "",
    keys: "",
    style: (STYLE, STYLE_HASH),
    script: (SCRIPT, SCRIPT_HASH),
    connects: "",
};
const LIVE: Parts = Parts {
    part: LIVE_PART,
    keys: LIVE_KEYS,
    style: (LIVE_STYLE, LIVE_STYLE_HASH),
    script: (LIVE_SCRIPT, LIVE_SCRIPT_HASH),
    connects: "; connect-src 'self'",
};

impl Parts {
    fn policy(&self) -> String {
        let Self { style: (_, style), script: (_, script), connects, .. } = self;
        format!(
            "default-src 'none'; script-src '{script}'; style-src '{style}'{connects}; \
             base-uri 'none'; form-action 'none'"
        )
    }

    /// What stands before and after the data.
    fn fill(&self) -> (String, String) {
        let fill = |text: &str| {
            let text = text.replace("{policy}", &self.policy()).replace("{live}", self.part);
            let text = text.replace("{live-keys}", self.keys);
            text.replace("{style}", self.style.0).replace("{script}", self.script.0)
        };
        let (before, after) = PAGE.split_once("{data}").unwrap_or((PAGE, ""));
        (fill(before), fill(after))
    }
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
        for Parts { style, script, .. } in [FINISHED, LIVE] {
            assert_eq!((style.1, script.1), (&*hash(style.0), &*hash(script.0)));
        }
    }

    #[test]
    fn the_page_has_a_place_for_everything() {
        for parts in [FINISHED, LIVE] {
            let (before, after) = parts.fill();
            let (style, script) = (parts.style.0, parts.script.0);
            assert!(before.contains(style) && before.contains(parts.part));
            assert!(before.ends_with("<script type=\"application/json\" id=\"data\">"));
            assert!(after.starts_with("</script>") && after.contains(script));
            // It is one file, and what could end its script or style is in neither.
            assert!(!script.contains("</") && !style.contains("</"));
            for text in [&before, &after] {
                assert!(
                    !text.contains("http:") && !text.contains("https:") && !text.contains("//cdn"),
                    "{text}"
                );
                let left = ["{policy}", "{data}", "{live}", "{live-keys}"]
                    .iter()
                    .find(|it| text.contains(**it));
                assert_eq!(left, None);
            }
        }
        assert!(live_policy().contains("connect-src 'self'"));
        assert!(!FINISHED.policy().contains("connect-src"));
    }

    #[test]
    fn data_is_no_markup() {
        let name = "</script><!--<script>&\"'\\";
        let json = inert(&serde_json::to_string(name).unwrap());
        assert!(!json.contains('<'), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), name);
    }
}
