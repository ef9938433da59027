//! A format that is written to a place, whenever it wants to be.

use std::io::{self, Write};

use super::{
    Exporter, Row,
    about::About,
    format::{Export, Options},
};
use crate::{ledger::memory::Cache, profile::Profile};

/// What is written, and where to. It is given all samples, and at the end the profile that counts them.
pub struct Output<W> {
    to: W,
    what: What,
}

enum What {
    /// The samples; whether they are kept until the end.
    Samples(Box<dyn Exporter>, bool),
    Profile(Box<WriteBoxed>),
}

/// A function that writes a profile.
type WriteBoxed = dyn Fn(&Profile, &About<'_>, &mut dyn Write) -> io::Result<()>;

impl<W: Write> Output<W> {
    /// A format.
    pub fn new(export: Export, options: Options, to: W) -> Self {
        let what = match export {
            Export::Stream(new) => What::Samples(new(options), false),
            Export::Timeline(new) => What::Samples(new(options), true),
            Export::Whole(write) => What::Profile(Box::new(write)),
        };
        Self { to, what }
    }

    /// What takes the samples, and is not among the formats.
    pub fn of_exporter(exporter: Box<dyn Exporter>, to: W) -> Self {
        Self { to, what: What::Samples(exporter, false) }
    }

    /// What this makes of the profile.
    pub fn of_profile(
        write: impl Fn(&Profile, &About<'_>, &mut dyn Write) -> io::Result<()> + 'static,
        to: W,
    ) -> Self {
        Self { to, what: What::Profile(Box::new(write)) }
    }

    /// Takes samples.
    pub fn add<'a, R: Into<Row<'a>>>(
        &mut self,
        rows: impl IntoIterator<Item = R>,
    ) -> io::Result<()> {
        let What::Samples(exporter, _) = &mut self.what else { return Ok(()) };
        rows.into_iter().try_for_each(|row| exporter.add(row.into(), &mut self.to))
    }

    /// Writes what it has taken, as far as the format allows that before the end.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// Writes the rest. No sample comes any more.
    pub fn finish(&mut self, profile: &Profile, about: &About<'_>) -> io::Result<()> {
        match &mut self.what {
            What::Samples(exporter, _) => exporter.finish(about, &mut self.to)?,
            What::Profile(write) => write(profile, about, &mut self.to)?,
        }
        self.to.flush()
    }

    /// Whether it is written from the profile.
    pub fn needs_profile(&self) -> bool {
        matches!(self.what, What::Profile(_))
    }

    /// Whether samples are only in memory until the end, and lost if that fails.
    pub fn is_at_end(&self) -> bool {
        matches!(self.what, What::Profile(_) | What::Samples(_, true))
    }

    /// What it keeps in memory.
    pub fn account(&self) -> Vec<Cache> {
        match &self.what {
            What::Samples(exporter, _) => exporter.account(),
            What::Profile(_) => Vec::new(),
        }
    }
}
