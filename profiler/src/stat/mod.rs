//! Counting: how often events happen, without a sample of any.
//!
//! [`plan`] is what is counted and where. [`counters`] opens it, in [groups](group) that the kernel reads at once, and
//! [`run`] counts until the end. [`count`], [`ratios`] and [`repeat`] are the arithmetic of what is read.

pub(crate) mod count;
pub(crate) mod counters;
pub(crate) mod cpu_time;
pub(crate) mod group;
pub(crate) mod hotplug;
pub(crate) mod plan;
pub(crate) mod ratios;
pub(crate) mod repeat;
mod row;
pub(crate) mod run;
pub(crate) mod tasks;
