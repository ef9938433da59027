//! Profiles that were recorded before, by us or by others.

use std::{
    fs::File,
    io::{Read, stdin},
    path::Path,
};

use profiler_profile::{
    export::html,
    import::{Filter, Imported, Limits, folded, pprof},
};

use super::convert;
use crate::error::{Error, Result};

/// What gzip begins with: RFC 1952.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// What a page begins with.
const DOCTYPE: &[u8] = b"<!doctype html>";

/// Reads a profile, whose format its first bytes tell.
pub(super) fn read(path: &Path) -> Result<Imported> {
    parse(path, &load(path)?)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Imported> {
    let limits = Limits::default();
    // Text has no zeros. A profile without gzip has some: its strings begin with an empty one.
    let is_text = !bytes.starts_with(GZIP) && !bytes.contains(&0);
    let read = if is_text { folded::read(bytes, &limits) } else { pprof::read(bytes, &limits) };
    let formats = "pprof (.pb.gz) and folded stacks (.folded) can be read";
    read.map_err(|error| failed(path, &error, formats))
}

/// Reads a page for browsers, or makes one of a profile.
pub(super) fn page(path: &Path) -> Result<Vec<u8>> {
    let bytes = load(path)?;
    match bytes.get(..DOCTYPE.len()) {
        Some(begin) if begin.eq_ignore_ascii_case(DOCTYPE) => Ok(bytes),
        _ => page_of(path, &parse(path, &bytes)?),
    }
}

/// A page of a profile that was read from there.
pub(super) fn page_of(path: &Path, profile: &Imported) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    convert::write(path, profile, &Filter::default(), &html::FORMAT, &mut page)?;
    Ok(page)
}

/// A file that is not empty.
fn load(path: &Path) -> Result<Vec<u8>> {
    let bytes = bytes_of(path, Limits::default().bytes).map_err(|error| {
        let is_missing = error.kind() == std::io::ErrorKind::NotFound;
        let next =
            if is_missing { "`sudo profiler record -d 10` writes profile.pb.gz" } else { "" };
        failed(path, &error, next)
    })?;
    if bytes.is_empty() { Err(failed(path, &"it is empty", "")) } else { Ok(bytes) }
}

fn failed(path: &Path, why: &dyn std::fmt::Display, next: &str) -> Error {
    let shown = if path.as_os_str() == "-" { Path::new("standard input") } else { path };
    Error::system_with(format!("cannot read {}", shown.display()), why, next)
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
