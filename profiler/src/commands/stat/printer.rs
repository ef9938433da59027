//! Where counts are printed.

use std::{io::Write as _, path::PathBuf};

use crate::{
    cli::StatArgs,
    commands::{destination, file_of, replacement::Replacement},
    error::{Error, Result},
    invoker::Invoker,
    output::Sink,
    stderr,
};

/// A file, standard output or standard error.
pub(super) struct Printer {
    /// Standard error if `None`.
    to: Option<Sink>,
    replacement: Option<Replacement>,
}

impl Printer {
    /// The file that was named. Without one it is standard output, or standard error where a command has that for itself.
    pub(super) fn open(args: &StatArgs, owner: Option<&Invoker>) -> Result<Self> {
        let path = match &args.output {
            None if !args.command.is_empty() => return Ok(Self { to: None, replacement: None }),
            path => path.clone().unwrap_or_else(|| PathBuf::from("-")),
        };
        let (sink, replacement) = destination::open(file_of(path).as_deref(), owner)?;
        Ok(Self { to: Some(sink), replacement })
    }

    /// Prints at once.
    pub(super) fn write(&mut self, text: &str) -> Result<()> {
        match &mut self.to {
            None => stderr::write_fields(text),
            Some(sink) => {
                let written = sink.write_all(stderr::printable_fields(text).as_bytes());
                let written = written.and_then(|()| sink.flush());
                written.map_err(|error| Error::write(sink.path(), &error))?;
            }
        }
        Ok(())
    }

    /// Puts the file in its place.
    pub(super) fn finish(self) -> Result<()> {
        drop(self.to);
        self.replacement.map_or(Ok(()), Replacement::commit)
    }
}
