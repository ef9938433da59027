//! A run while it goes on: what was sampled lately, for a screen that shows it.
//!
//! The naming thread puts samples into a [`Window`], by way of a [`Feed`]. Who shows it takes a [`Snapshot`], which is
//! quick, makes [`Stacks`] of functions of it, and asks those for what is on the screen.

mod feed;
mod filter;
mod flame;
mod rows;
mod shares;
mod slice;
mod snapshot;
mod spawns;
mod stacks;
mod window;

pub use self::{
    feed::{Feed, Live, Vitals},
    filter::{Filter, FunctionName},
    flame::{Flame, Node},
    rows::{FunctionRow, Neighbours, ProcessRow, SpawnRow, ThreadRow},
    slice::SLICE,
    snapshot::{Line, LineEntry, Sampled, Snapshot, Span},
    spawns::{Begun, Spawn, SpawnKind, Spawned, Spawns},
    stacks::{Function, Kind, Stacks},
    window::{By, Range, Strip, Window},
};

#[cfg(test)]
pub(crate) mod tests;
