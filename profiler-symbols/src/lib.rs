//! Names for the code of ELF files: bytes in, names out.
//!
//! Nothing here opens a path. [`links`] says which companions a file names (its separate debug file, its
//! supplementary file), and [`SymbolFile::find`] asks for split DWARF where an address needs it. The caller
//! opens them by its own rules and passes their bytes.
//!
//! The files belong to whoever runs a program, so nothing is believed: a claim is checked against the bytes
//! that are there and against what is allocated on disk before any memory is taken for it.
//!
//! ```
//! use profiler_symbols::{Answer, Image, Images, Options, SymbolFile};
//! use std::{sync::Arc, time::Duration};
//!
//! let program = Image::new(Arc::new(std::fs::read("/proc/self/exe")?), None);
//! let images = Images { main: program, debug: None, supplementary: None, package: None };
//! let options = Options { lines: false, unpack_time: Duration::ZERO };
//! let file = SymbolFile::load(images, options)?;
//! // The first byte of a file belongs to its header, which is no function.
//! assert_eq!(file.find(0), Answer::None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arena;
pub mod debug_data;
pub mod demangle;
mod dwarf;
mod image;
mod links;
mod plt;
mod symbol_file;
mod table;
#[cfg(test)]
mod tests;

pub use image::Image;
pub use links::{AltLink, DebugLink, Links, links};
pub use symbol_file::{Answer, DwoWanted, Found, Images, Inlined, Location, Options, SymbolFile};

/// The file is not an ELF file, or its headers claim what can't be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an ELF file, or its headers are malformed")]
pub struct Malformed;
