//! The `profiler` command: parse, run, exit code.

use std::{ffi::OsString, process::ExitCode};

use clap::Parser as _;
use profiler::{
    cli::{self, Cli},
    commands,
    error::{Error, Result},
    heap, launch, parser, stderr, viewer,
};

/// The symbol cache is bounded by what it takes of the heap.
#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

fn main() -> ExitCode {
    heap::give_back_what_is_freed();
    parser::run_if_requested();
    launch::run_if_requested();
    viewer::run_if_requested();
    stderr::say_panics();
    let typed: Vec<OsString> = std::env::args_os().collect();
    let result = match Cli::try_parse_from(&typed) {
        Ok(cli) => run(cli),
        // --help and --version come this way, too.
        Err(error) if !error.use_stderr() => return answer(&error.print()),
        Err(error) => Err(Error::Usage(cli::one_line(&error, &typed))),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            if !matches!(error, Error::BrokenPipe) {
                let is_usage = matches!(error, Error::Usage(_) | Error::Choice { .. });
                let help = is_usage.then(|| cli::help_of(&typed));
                let help = help.map_or_else(String::new, |it| format!(" (see {it})"));
                stderr::say(&format!("{error}{help}"));
                if let Some(advice) = error.advice() {
                    stderr::write(&format!("  {advice}\n"));
                }
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    if cli.quiet {
        stderr::be_quiet();
    }
    log_to_stderr(cli.verbose);
    commands::run(cli)
}

/// An answer that was printed, or that nobody wanted to read.
fn answer(printed: &std::io::Result<()>) -> ExitCode {
    if printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Diagnostics of ourselves, of aya and of the eBPF program.
fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 if stderr::is_quiet() => tracing::Level::ERROR,
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        2 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| stderr::Log)
        .with_target(false)
        .without_time()
        .init();
}
