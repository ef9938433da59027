//! Small files of sysfs and tracefs.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read as _},
    path::Path,
};

use super::error::ResolveError;

/// More than a page, which is what sysfs gives at most.
const LIMIT_BYTES: u64 = 64 << 10;

/// The file's text without the line's end; `None` if there is no such file.
pub(super) fn read(path: &Path) -> Result<Option<String>, ResolveError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|it| it.take(LIMIT_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Ok(_) if bytes.len() as u64 > LIMIT_BYTES => Err(malformed(path, "it is too large")),
        Ok(_) => {
            let text = String::from_utf8(bytes).map_err(|_| malformed(path, "it is no text"))?;
            Ok(Some(text.trim().to_owned()))
        }
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// The number in a file; `None` if there is no such file.
pub(super) fn number<N: std::str::FromStr>(path: &Path) -> Result<Option<N>, ResolveError> {
    let Some(text) = read(path)? else { return Ok(None) };
    let number = text.parse().map_err(|_| malformed(path, &format!("`{text}` is no number")));
    number.map(Some)
}

/// The names in a folder, sorted; none if there is no such folder.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, ResolveError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(folder, &error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| unreadable(folder, &error))?;
        // What is no text can't be typed either.
        names.extend(entry.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

pub(super) fn malformed(path: &Path, what: &str) -> ResolveError {
    ResolveError::Malformed { path: path.to_owned(), what: what.to_owned() }
}

pub(super) fn unreadable(path: &Path, error: &io::Error) -> ResolveError {
    let help = if error.kind() == ErrorKind::PermissionDenied { "; try as root" } else { "" };
    ResolveError::Unreadable { path: path.to_owned(), why: format!("{error}{help}") }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
