//! How parsing other people's files went.

use std::fmt::Write as _;

use serde::Serialize;

/// What has become of the parser processes of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parsing {
    /// How often one was started in the place of another.
    pub restarts: u64,
    /// Files that were given up.
    pub barred: u64,
    /// The first of them, and why.
    pub barred_files: Vec<String>,
    /// Questions about users' files that file systems were not asked, since they respond too slowly.
    pub unasked: u64,
}

impl Parsing {
    /// Lines for people; none where all went well.
    #[must_use]
    pub fn lines(&self) -> String {
        let mut text = String::new();
        if self.restarts > 0 {
            let _ = writeln!(text, "the parser process was restarted {} times", self.restarts);
        }
        if self.barred > 0 {
            let _ =
                writeln!(text, "files that can't be parsed within their limits: {}", self.barred);
        }
        for file in &self.barred_files {
            let _ = writeln!(text, "  {file}");
        }
        if self.unasked > 0 {
            let _ = writeln!(
                text,
                "questions about files that slow file systems were not asked: {}",
                self.unasked
            );
        }
        text
    }
}
