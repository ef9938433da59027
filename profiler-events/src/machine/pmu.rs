//! PMUs as sysfs has them:
//! <https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-event_source-devices-events>.

use std::path::{Path, PathBuf};

use super::{
    error::ResolveError,
    field::Field,
    files::{self, malformed},
};
use crate::syntax::{Term, parse_terms};

/// One folder of `/sys/bus/event_source/devices`. Its files are read when they are asked for.
#[derive(Debug)]
pub(super) struct Pmu {
    pub(super) name: String,
    /// `perf_event_attr.type`.
    pub(super) kind: u32,
    folder: PathBuf,
}

/// An event of a PMU, by name.
pub(super) struct Alias {
    pub(super) terms: Vec<Term>,
    pub(super) scale: Option<f64>,
    pub(super) unit: Option<String>,
}

/// What files beside an alias say of it.
const BESIDE: [&str; 4] = [".scale", ".unit", ".per-pkg", ".snapshot"];

impl Pmu {
    /// The PMU of a folder that is there.
    pub(super) fn read(devices: &Path, name: &str) -> Result<Self, ResolveError> {
        let folder = devices.join(name);
        let kind = files::number(&folder.join("type"))?;
        let kind = kind.ok_or_else(|| malformed(&folder, "it has no type"))?;
        Ok(Self { name: name.to_owned(), kind, folder })
    }

    /// Whether this counts what a CPU does, and is what generic events mean.
    pub(super) fn is_core(devices: &Path, name: &str) -> bool {
        matches!(name, "cpu" | "cpum_cf") || devices.join(name).join("cpus").exists()
    }

    /// The CPUs that its events are opened on, as a list of the kernel's; `None` for all.
    pub(super) fn cpus(&self) -> Result<Option<String>, ResolveError> {
        Ok(match files::read(&self.folder.join("cpus"))? {
            Some(cpus) => Some(cpus),
            None => files::read(&self.folder.join("cpumask"))?,
        })
    }

    /// Why its events can't be sampled, if they can't.
    pub(super) fn counting_only(&self) -> Option<&'static str> {
        const TRACERS: [&str; 5] = ["intel_pt", "intel_bts", "cs_etm", "arm_spe", "hisi_ptt"];
        if TRACERS.iter().any(|it| self.name.starts_with(it)) {
            Some("it writes a trace, which is not read here")
        } else if self.name == "msr" || self.is_shared() {
            // No CPU is interrupted by its counters.
            Some("its PMU only counts")
        } else {
            None
        }
    }

    /// Whether several CPUs share its counters, and one of them is to read them.
    pub(super) fn is_shared(&self) -> bool {
        self.folder.join("cpumask").exists()
    }

    /// The largest `precise_ip`, if the PMU says.
    pub(super) fn max_precise(&self) -> Result<Option<u8>, ResolveError> {
        files::number(&self.folder.join("caps/max_precise"))
    }

    pub(super) fn field(&self, name: &str) -> Result<Option<Field>, ResolveError> {
        let path = self.folder.join("format").join(name);
        if name.starts_with('.') {
            return Ok(None);
        }
        let Some(text) = files::read(&path)? else { return Ok(None) };
        let field = text.parse();
        field.map(Some).map_err(|_| malformed(&path, &format!("`{text}` is no field known here")))
    }

    pub(super) fn field_names(&self) -> Result<Vec<String>, ResolveError> {
        files::names(&self.folder.join("format"))
    }

    /// The event of that name.
    pub(super) fn alias(&self, name: &str) -> Result<Option<Alias>, ResolveError> {
        if !is_alias(name) {
            return Ok(None);
        }
        let path = self.folder.join("events").join(name);
        let Some(text) = files::read(&path)? else { return Ok(None) };
        let terms =
            parse_terms(&text).map_err(|error| malformed(&path, &format!("`{text}`, {error}")))?;
        let beside = |end: &str| self.folder.join("events").join(format!("{name}{end}"));
        let unit = files::read(&beside(".unit"))?;
        let scale: Option<f64> = files::number(&beside(".scale"))?;
        if scale.is_some_and(|it| !it.is_finite()) {
            return Err(malformed(&beside(".scale"), "it is not finite"));
        }
        Ok(Some(Alias { terms, scale, unit }))
    }

    pub(super) fn alias_names(&self) -> Result<Vec<String>, ResolveError> {
        let mut names = files::names(&self.folder.join("events"))?;
        names.retain(|it| is_alias(it));
        Ok(names)
    }
}

fn is_alias(name: &str) -> bool {
    !name.starts_with('.') && !BESIDE.iter().any(|end| name.ends_with(end))
}
