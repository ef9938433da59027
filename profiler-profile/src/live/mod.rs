//! A run while it goes on: what was sampled lately, for a screen that shows it.
//!
//! The naming thread puts samples into a [`Window`], by way of a [`Feed`]. Who shows it takes a [`Snapshot`], which is
//! quick, makes [`Stacks`] of functions of it, and asks those for what is on the screen.

mod feed;
mod filter;
mod flame;
mod rows;
mod stacks;
mod window;

pub use self::{
    feed::{Feed, Live, Vitals},
    filter::{Filter, FunctionName},
    flame::{Flame, Node},
    rows::{FunctionRow, Neighbours, ProcessRow, ThreadRow},
    stacks::{Function, Kind, Stacks},
    window::{Line, SLICE, Snapshot, Span, Window},
};

#[cfg(test)]
pub(crate) mod tests;
