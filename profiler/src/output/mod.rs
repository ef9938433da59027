//! What the user gets: one file a format.

mod folded;
mod json;
mod profile;
mod text;
mod top;

use std::{
    fs::{File, OpenOptions},
    io::{BufWriter, Write as _},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    rc::Rc,
};

use profiler_common::sample::UserEnd;

use crate::{
    config::{Config, Report},
    error::{Error, Result},
    ledger::Ledger,
    process::{metadata::Metadata, space::SpaceId},
    sample::RawSample,
    symbolize::frame::Stack,
};

/// A sample with its stacks named.
pub struct NamedSample<'a> {
    /// What the kernel sent.
    pub raw: &'a RawSample<'a>,
    /// The mappings that the user half was named by.
    pub space: SpaceId,
    /// The kernel half; empty if there is none.
    pub kernel: Rc<Stack>,
    /// The user half; empty if there is none.
    pub user: Rc<Stack>,
    /// Whether the agent has walked the user half, from a copy.
    pub is_copied: bool,
    /// Who the process is, if that was asked for.
    pub metadata: Option<Rc<Metadata>>,
}

/// How user stacks end, in the words that JSON has for it.
pub mod user_end {
    /// At the entry of the program or thread.
    pub const COMPLETE: &str = "complete";
}

impl NamedSample<'_> {
    /// How the user stack ended, in the words that the JSON output has for it.
    #[must_use]
    pub fn user_end(&self) -> &'static str {
        match self.raw.user_end {
            UserEnd::NotCaptured => "not_captured",
            UserEnd::NoUserMemory => "no_user_memory",
            UserEnd::Depth => "depth",
            UserEnd::ChainEnded | UserEnd::NoUnwindInfo if self.user.reaches_entry() => {
                user_end::COMPLETE
            }
            UserEnd::ChainEnded => "no_frame_pointer",
            UserEnd::Complete => user_end::COMPLETE,
            UserEnd::NoUnwindInfo => "no_unwind_info",
            UserEnd::NotLoaded => "unwind_info_not_loaded",
            UserEnd::Unreadable => "unreadable_memory",
            UserEnd::Unsupported => "rule_not_supported",
            UserEnd::NotMapped => "mapping_unknown",
        }
    }
}

/// A format: takes samples as they come, and the ledger at the end.
pub trait Output {
    /// Takes one sample.
    fn sample(&mut self, sample: &NamedSample<'_>) -> Result<()>;
    /// No sample comes for a while: what was written must be seen.
    fn flush(&mut self) -> Result<()>;
    /// Whether nothing is written before [`finish`](Self::finish).
    fn is_written_at_end(&self) -> bool {
        false
    }
    /// No sample comes any more.
    fn finish(&mut self, ledger: &Ledger) -> Result<()>;
}

/// The output of a run.
pub(crate) fn new(config: &Config, event: &'static str, sink: Sink) -> Box<dyn Output> {
    match config.report {
        Report::Text => Box::new(text::Text::new(sink, config)),
        Report::Json => Box::new(json::Json::new(sink, event)),
        Report::Folded => Box::new(folded::Folded::new(sink, config.max_stacks)),
        Report::Top(n) => Box::new(top::Top::new(sink, config.max_stacks, n)),
    }
}

const STDOUT: &str = "standard output";

/// Where the output goes: a file or standard output.
pub struct Sink {
    to: BufWriter<File>,
    path: PathBuf,
}

impl Sink {
    /// Opens the file, or standard output if there is none.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let (file, path) = match path {
            // What it holds is kept until there is something to put in its place.
            Some(path) => {
                let options =
                    OpenOptions::new().write(true).create(true).truncate(false).open(path);
                (options, path.to_owned())
            }
            None => (
                std::io::stdout().as_fd().try_clone_to_owned().map(File::from),
                PathBuf::from(STDOUT),
            ),
        };
        let file = file
            .map_err(|error| Error::Usage(format!("cannot write {}: {error}", path.display())))?;
        Ok(Self { to: BufWriter::with_capacity(64 << 10, file), path })
    }

    /// Empties the file: the run has begun.
    pub fn begin(&mut self) -> Result<()> {
        let file = self.to.get_ref();
        let is_ours = self.path != Path::new(STDOUT);
        match file.metadata() {
            Ok(metadata) if is_ours && metadata.is_file() => {
                file.set_len(0).map_err(|error| Error::write(&self.path, &error))
            }
            _ => Ok(()),
        }
    }

    fn write(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        self.to.write_all(bytes.as_ref()).map_err(|error| Error::write(&self.path, &error))
    }

    fn flush(&mut self) -> Result<()> {
        self.to.flush().map_err(|error| Error::write(&self.path, &error))
    }
}
