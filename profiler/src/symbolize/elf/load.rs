//! Opening a file's companions, and having the parser process read all of them.

use std::{
    fs::File,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{ElfFiles, Known, Mapped, State, Unread, open_companions};
use crate::{
    parser::{Failure, Load, Parser, Subject},
    process::file::FileKey,
    symbolize::{companions, debug_file},
};

/// The longest that the names which a file carries packed may take to be unpacked. Those of a large file take
/// half a second, but they can be made to take far more.
const UNPACK_TIME: Duration = Duration::from_secs(3);

impl ElfFiles {
    /// Has the parser process read a file with the companions that are found in the roots of its process and
    /// ours. One whose debug information it does not survive is read without.
    pub(super) fn load(
        &mut self,
        parser: &mut Parser,
        mapped: Mapped<'_>,
        key: FileKey,
    ) -> Result<Known, Unread> {
        let main = mapped.file.unchanged().map_err(Unread::Missing)?;
        parser.check(key, main)?;
        let debug = match self.supplied(mapped) {
            None => self.find_debug_file(parser, mapped),
            supplied => supplied,
        };
        let debug = parser.checked_companion(debug);
        let mut known = Known {
            state: State::Malformed,
            file: Arc::downgrade(mapped.file),
            place: (mapped.tgid, mapped.name.into()),
            code: mapped.file.code(),
            has_debug_file: debug.is_some(),
            has_lines: self.lines && parser.check(Subject::Lines(key), main).is_ok(),
            bytes: 0,
            used: 0,
        };
        loop {
            let start = Instant::now();
            match self.load_with(parser, main, debug.as_ref(), mapped, &mut known)? {
                Ok(()) => return Ok(known),
                Err(failure) => {
                    let subject = Subject::read(key, known.has_lines);
                    parser.bar(subject, main, start.elapsed(), failure);
                    if !known.has_lines {
                        return Err(Unread::Barred);
                    }
                    known.has_lines = false;
                }
            }
        }
    }

    fn load_with(
        &mut self,
        parser: &mut Parser,
        main: &File,
        debug: Option<&File>,
        mapped: Mapped<'_>,
        known: &mut Known,
    ) -> Result<Result<(), Failure>, Unread> {
        let (mut supplementary, mut package) = (None, None);
        if known.has_lines {
            // After dwz has moved debug info away, it is the debug file that says so.
            let files: Vec<&File> = debug.into_iter().chain([main]).collect();
            let links = match parser.links(&files)? {
                Ok(links) => links,
                Err(failure) => return Ok(Err(failure)),
            };
            let found = open_companions(parser, &mapped.locality(), move |of| {
                let (path, roots) = (&of.path, of.roots());
                let shared =
                    links.iter().find_map(|link| companions::supplementary(link, path, &roots));
                (shared, companions::package(path, &roots))
            });
            (supplementary, package) = found.unwrap_or_default();
        }
        let [supplementary, package] =
            [supplementary, package].map(|it| parser.checked_companion(it));
        let start = Instant::now();
        let may_unpack = self.time_budget.is_left(start);
        let unpack_time = if may_unpack { UNPACK_TIME } else { Duration::ZERO };
        let files = [Some(main), debug, supplementary.as_ref(), package.as_ref()];
        self.last_number += 1;
        let load = Load {
            file: self.last_number,
            lines: known.has_lines,
            unpack_ms: u64::try_from(unpack_time.as_millis()).unwrap_or_default(),
            passed: files.map(|it| it.is_some()),
        };
        let files: Vec<&File> = files.into_iter().flatten().collect();
        let loaded = match parser.load(load, &files)? {
            Ok(loaded) => loaded,
            Err(failure) => return Ok(Err(failure)),
        };
        if let Ok(loaded) = loaded {
            (known.state, known.bytes) = (State::Loaded(self.last_number), loaded.bytes);
            if loaded.has_packed {
                let end = Instant::now();
                self.time_budget.take(end, end.duration_since(start));
            }
        }
        Ok(Ok(()))
    }

    /// The separate debug file, where it is installed. A file system that does not respond has none.
    fn find_debug_file(&mut self, parser: &mut Parser, mapped: Mapped<'_>) -> Option<File> {
        let (file, mut time_budget) = (Arc::clone(mapped.file), self.time_budget.clone());
        let found = open_companions(parser, &mapped.locality(), move |of| {
            let found = debug_file::find(file.file()?, &of.path, &of.roots(), &mut time_budget);
            Some((found, time_budget))
        });
        let (found, time_budget) = found.flatten()?;
        self.time_budget = time_budget;
        found
    }

    /// The debug file of this build id that was sent for.
    fn supplied(&self, mapped: Mapped<'_>) -> Option<File> {
        let id = mapped.file.build_id()?;
        let (_, file) = self.supplied.iter().find(|(of, _)| *of == id)?;
        file.try_clone().ok()
    }
}
