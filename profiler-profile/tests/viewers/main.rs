//! Profiles opened by the programs that people open them with. Those whose program is not installed say so, and pass.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::print_stderr, clippy::print_stdout)]

mod collapse;
mod firefox;
mod go_pprof;
mod million;
mod run;
mod speedscope;
