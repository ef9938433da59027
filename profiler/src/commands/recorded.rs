//! Profiles that were recorded before, by us or by others.

use std::{
    fs::File,
    io::{Read, stdin},
    path::Path,
};

use profiler_profile::import::{Imported, Limits, folded, pprof};

use crate::error::{Error, Result};

/// What gzip begins with: RFC 1952.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// Reads a profile, whose format its first bytes tell.
pub(super) fn read(path: &Path) -> Result<Imported> {
    let failed = |why: &dyn std::fmt::Display, next: &str| {
        let shown = if path.as_os_str() == "-" { Path::new("standard input") } else { path };
        Error::system_with(format!("cannot read {}", shown.display()), why, next)
    };
    let limits = Limits::default();
    let bytes = bytes_of(path, limits.bytes).map_err(|error| {
        let is_missing = error.kind() == std::io::ErrorKind::NotFound;
        let next =
            if is_missing { "`sudo profiler record -d 10` writes profile.pb.gz" } else { "" };
        failed(&error, next)
    })?;
    if bytes.is_empty() {
        return Err(failed(&"it is empty", ""));
    }
    // Text has no zeros. A profile without gzip has some: its strings begin with an empty one.
    let is_text = !bytes.starts_with(GZIP) && !bytes.contains(&0);
    let read = if is_text { folded::read(&bytes, &limits) } else { pprof::read(&bytes, &limits) };
    read.map_err(|error| failed(&error, "pprof (.pb.gz) and folded stacks (.folded) can be read"))
}

/// A file to its end, or one byte more than the limit.
fn bytes_of(path: &Path, limit: usize) -> std::io::Result<Vec<u8>> {
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    if path.as_os_str() == "-" {
        stdin().take(most).read_to_end(&mut bytes)?;
    } else {
        File::open(path)?.take(most).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
