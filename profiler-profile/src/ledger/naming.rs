//! How much of the user frames has names, by file.

use std::{borrow::Cow, collections::BTreeMap, fmt::Write as _};

use serde::Serialize;

use crate::printable::printable;

/// Files in the table for people.
const SHOWN: usize = 20;

/// The frames of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileNaming {
    /// The file, as processes name it.
    pub module: String,
    /// Samples that hit its code.
    pub samples: u64,
    /// Frames of all stacks in its code.
    pub frames: u64,
    /// Those of them that have a name.
    pub named: u64,
    /// The others, by why they have none.
    pub unnamed: BTreeMap<String, u64>,
    /// What would give most of them a name.
    pub hint: Option<Cow<'static, str>>,
    /// Stacks that end in its code, though it was called, by why.
    pub cut: BTreeMap<&'static str, u64>,
}

/// The table for people: the files with most frames.
#[must_use]
pub fn table(files: &[FileNaming]) -> String {
    let mut text = String::new();
    if files.is_empty() {
        return text;
    }
    let _ =
        writeln!(text, "names of user frames\n{:>10} {:>10} {:>6}", "samples", "frames", "named");
    for file in files.iter().take(SHOWN) {
        let percent = file.named * 100 / file.frames.max(1);
        let _ = write!(
            text,
            "{:>10} {:>10} {percent:>4} %  {}",
            file.samples,
            file.frames,
            printable(&file.module)
        );
        for (why, count) in &file.cut {
            let _ = write!(text, ", {count} cut short here: {}", why.replace('_', " "));
        }
        let most = file.unnamed.iter().max_by_key(|(_, count)| **count);
        if let Some((why, _)) = most {
            let _ = write!(text, " ({why}");
            if let Some(hint) = &file.hint {
                let _ = write!(text, "; {hint}");
            }
            text.push(')');
        }
        text.push('\n');
    }
    if let Some(more) = files.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        let _ = writeln!(text, "and {more} more files: -f json lists them all");
    }
    text
}
