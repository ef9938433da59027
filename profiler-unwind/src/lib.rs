//! Unwind tables: an ELF file in, rows out.
//!
//! A [`Table`] has a rule for each address of a file's code, which says where the caller's frame is. It
//! is packed as the eBPF program searches it (`profiler_common::unwind::table`), with offsets in the file
//! for addresses. Its rows refer by number to [`Rules`], which all tables of a run share.
//!
//! ```text
//! file → source (finds .eh_frame, .debug_frame, .gopclntab) → cfi, pclntab (functions and their rows) ─┬→ packer → Table
//!                                     heuristics (rules for code that none of these describes) ────────┘
//! ```
//!
//! [`Standalone`] is a table that brings its own rules, to be sent to another process. [`report`] is what
//! `profiler unwind-info` shows.
//!
//! The files belong to whoever runs a program. Whatever they hold, there is a table or a reason why not
//! ([`NoTable`]), and time and memory have limits, which are constants of the modules that keep them.
//!
//! ```
//! use profiler_common::unwind::rule::Cfa;
//! use profiler_unwind::{Rules, Table};
//!
//! let mut rules = Rules::new();
//! let program = std::fs::File::open("/proc/self/exe")?;
//! let table = Table::of_file(&program, &mut rules)?;
//! // The first byte of a file belongs to its header: no code, so no rule.
//! let rule = table.find(0).and_then(|number| rules.get(number));
//! assert!(rule.is_none_or(|rule| rule.cfa == Cfa::UNKNOWN));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(test)]
mod agreement;
pub mod cfi;
mod heuristics;
mod no_table;
pub mod packer;
mod pclntab;
pub mod report;
mod rule_display;
mod rules;
mod section;
pub mod source;
pub mod standalone;
pub mod table;

pub use no_table::NoTable;
pub use rules::Rules;
pub use standalone::Standalone;
pub use table::Table;
