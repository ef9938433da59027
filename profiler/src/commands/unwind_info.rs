//! `profiler unwind-info`: how stacks of a program are unwound.

use std::{path::Path, process::ExitCode};

use super::answer;
use crate::{error::Result, unwind};

/// Prints the rules of a file, or the one at an address.
pub(super) fn run(file: &Path, at: Option<u64>) -> Result<ExitCode> {
    unwind::report::of(file, at).map(|text| answer(&text))
}
