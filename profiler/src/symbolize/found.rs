//! What a file's symbols say of an address, as frames.

use std::sync::Arc;

use profiler_profile::frame::{Frame, Origin};
use profiler_symbols::{Found, Location};

use super::names::Names;

/// The functions at an address, innermost first, in a file and module that are given. The offset is that of the
/// address itself, `back` bytes behind the one that was looked up.
pub(super) fn frames(found: &Found, back: u64, of: &Frame, names: &mut Names) -> Arc<[Frame]> {
    let has_source = found.location.is_some() || !found.inlined.is_empty();
    let outer = Frame {
        symbol: Some(names.intern(&found.name)),
        offset: found.offset.saturating_add(back),
        source: found.location.as_ref().map(|it| source(it, names)),
        origin: if has_source { Origin::Dwarf } else { Origin::Elf },
        ..of.clone()
    };
    let inlined = found.inlined.iter().map(|inlined| Frame {
        symbol: Some(names.intern(&inlined.name)),
        source: inlined.location.as_ref().map(|it| source(it, names)),
        inlined: true,
        ..outer.clone()
    });
    inlined.chain(std::iter::once(outer.clone())).collect()
}

fn source(location: &Location, names: &mut Names) -> (Arc<str>, Option<u32>) {
    (names.intern(&location.path), location.line)
}
