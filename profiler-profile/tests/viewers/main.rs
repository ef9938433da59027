//! Profiles opened by the programs that people open them with. Those whose program is not installed say so, and pass.
#![allow(clippy::indexing_slicing, clippy::print_stderr, clippy::unwrap_used)]

mod collapse;
mod go_pprof;
mod run;
