//! Where a probe goes, as the kernel wants to be told.

use std::{ffi::CString, fmt::Write as _, path::Path};

use perf_event_open_sys::bindings as sys;
use profiler_elf::functions::{self, Function, Missing};
use profiler_events::{Attr, Probe, did_you_mean, near, syntax};

use crate::{
    error::{Error, Result},
    regular_file::{self, Refusal},
};

/// Places of functions of the same name that are listed.
const LISTED: usize = 8;

/// A place for `perf_event_attr`, which points to the name in it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProbePoint {
    /// The function of the kernel, or the path of the file; `None` for an address of the kernel.
    name: Option<CString>,
    /// From the start of the function, in the file, or the address.
    offset: u64,
}

impl ProbePoint {
    /// The place of an event that is a probe. A function of a file is looked for in the file.
    pub(crate) fn of(event: &Attr) -> Result<Option<Self>> {
        event.probe.as_ref().map(|probe| Self::find(&event.name, probe)).transpose()
    }

    fn find(event: &str, probe: &Probe) -> Result<Self> {
        let found = match (&probe.path, &probe.place) {
            (None, syntax::Place::Address(address)) => Ok((None, *address)),
            (None, syntax::Place::Symbol { name, offset }) => Ok((Some(name), *offset)),
            (Some(path), place) => in_file(path, place).map(|offset| (Some(path), offset)),
        };
        let placed = found.and_then(|(name, offset)| {
            let name = name.map(|it| CString::new(it.as_str())).transpose();
            Ok(Self { name: name.map_err(|_| "no name has a zero in it".to_owned())?, offset })
        });
        placed.map_err(|why| Error::Usage(format!("-e {event}: {why}")))
    }

    /// Points the attributes to it, of which the kernel must not be told when it is gone.
    ///
    /// `kprobe_func`, `uprobe_path`, `kprobe_addr` and `probe_offset` in
    /// <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h>.
    pub(crate) fn put_into(&self, attr: &mut sys::perf_event_attr) {
        attr.__bindgen_anon_3.config1 = self.name.as_ref().map_or(0, |it| it.as_ptr() as u64);
        attr.__bindgen_anon_4.config2 = self.offset;
    }
}

/// The offset in the file; else what is wrong.
fn in_file(path: &str, place: &syntax::Place) -> Result<u64, String> {
    let file = regular_file::open(Path::new(path)).map_err(|refusal| match refusal {
        Refusal::Special => format!("{path} is no regular file"),
        Refusal::Leased => format!("{path} is being written: try again"),
        Refusal::Failed(error) => format!("cannot open {path}: {error}"),
    })?;
    let no_elf = || format!("{path} is no ELF file, so it has no code to probe");
    let offset = match place {
        syntax::Place::Address(offset) => *offset,
        syntax::Place::Symbol { name, offset } => {
            let Function { offset: start, bytes } =
                functions::function(&file, name).map_err(|missing| match missing {
                    Missing::NotElf => no_elf(),
                    other => explain(path, name, &other),
                })?;
            if bytes > 0 && *offset >= bytes {
                return Err(format!("`{name}` has only {bytes:#x} bytes"));
            }
            start.checked_add(*offset).ok_or("the offset is too large")?
        }
    };
    match functions::is_code(&file, offset) {
        Some(true) => Ok(offset),
        Some(false) => Err(format!("there is no code at {offset:#x} of {path}")),
        None => Err(no_elf()),
    }
}

fn explain(path: &str, name: &str, missing: &Missing) -> String {
    match missing {
        Missing::NotElf | Missing::NoSymbols => format!(
            "{path} names no functions: it is stripped; give an offset in the file, as in \
             uprobe:{path}:0x1234"
        ),
        Missing::NoFunction { names } => {
            let near = near(name, names.iter().cloned());
            format!("{path} has no function `{name}`{}", did_you_mean(&near))
        }
        Missing::Several { offsets } => {
            let mut text = String::new();
            for offset in offsets.iter().take(LISTED) {
                let _ = write!(text, " {offset:#x}");
            }
            format!(
                "{path} has {} functions `{name}`; give the offset of one of them:{text}",
                offsets.len()
            )
        }
        Missing::Indirect => format!(
            "what `{name}` stands for is chosen when a program starts (IFUNC): name the function \
             that is chosen"
        ),
        Missing::NoCode => format!("`{name}` is in no code of {path}"),
    }
}
