//! What the eBPF program needs to walk stacks without frame pointers: a table a file.
//!
//! [`source`] finds what an ELF file says of its frames (`.eh_frame`, `.debug_frame`, and Go's table),
//! [`cfi`] makes rows of it,
//! [`compact`] packs them, with [`Rules`] that all files share, and [`Table`] is the
//! whole way.

#[cfg(test)]
mod agreement;
mod blocks;
mod builder;
pub mod cfi;
pub mod compact;
mod described;
mod equation;
mod expression;
pub mod loader;
mod pclntab;
mod places;
pub mod report;
mod room;
pub mod rules;
pub mod source;
mod state;
pub mod table;
mod trampoline;
mod undescribed;
mod unpack;
mod vdso;
pub mod walker;

pub use rules::Rules;
pub use source::NoTable;
pub use table::Table;
