//! What events are on a machine: small files of sysfs and tracefs, which are read when they are needed.

mod attr;
mod error;
mod expand;
mod field;
mod files;
mod filter;
mod format;
mod list;
mod pmu;
mod resolve;
mod terms;
#[cfg(test)]
mod tests;
mod tracefs;

pub use attr::{Attr, Breakpoint, Exclude, Probe, Rate, Set};
pub use error::ResolveError;
pub use filter::{FilterError, HitFilter, Text};
pub use list::{Kind, Listed, Listing, Need};
pub use resolve::Purpose;

use std::path::{Path, PathBuf};

use pmu::Pmu;

/// The PMUs and tracepoints of a machine, by its file system.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    devices: PathBuf,
}

impl Machine {
    /// This one.
    #[must_use]
    pub fn here() -> Self {
        Self::at("/")
    }

    /// The one whose `/sys` is below this folder.
    pub fn at(root: impl AsRef<Path>) -> Self {
        let root = root.as_ref().to_owned();
        Self { devices: root.join("sys/bus/event_source/devices"), root }
    }

    /// The names of all PMUs. Without sysfs, there are none to be seen.
    fn pmu_names(&self) -> Result<Vec<String>, ResolveError> {
        files::names(&self.devices)
    }

    fn pmu(&self, name: &str) -> Result<Pmu, ResolveError> {
        Pmu::read(&self.devices, name)
    }

    /// The PMUs that count what CPUs do, in the order of their numbers: one for each kind of CPU.
    fn core_pmus(&self) -> Result<Vec<Pmu>, ResolveError> {
        let names = self.pmu_names()?.into_iter();
        let core = names.filter(|name| Pmu::is_core(&self.devices, name));
        let mut core = core.map(|name| self.pmu(&name)).collect::<Result<Vec<_>, _>>()?;
        core.sort_by_key(|it| it.kind);
        Ok(core)
    }
}
