//! The `profiler` command: parse, run, exit code.

use std::{
    io::{Write as _, stdout},
    process::ExitCode,
};

use clap::Parser as _;
use profiler::{
    agent,
    cli::{self, Cli, Command, SamplingArgs},
    config::Config,
    doctor,
    error::{Error, Result},
    heap,
    output::Sink,
    stderr, unwind,
};

/// The symbol cache is bounded by what it takes of the heap.
#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

fn main() -> ExitCode {
    let result = match Cli::try_parse() {
        Ok(cli) => run(cli),
        // --help and --version come this way, too.
        Err(error) if !error.use_stderr() => return answer(&error.print()),
        Err(error) => Err(Error::Usage(cli::one_line(&error))),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            if !matches!(error, Error::BrokenPipe) {
                stderr::say(&error.to_string());
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    log_to_stderr(cli.verbose);
    if let Some(what) = cli.generate {
        return Ok(answer(&what.write(&mut stdout())));
    }
    match cli.command {
        Some(Command::Doctor { json }) => Ok(diagnose(json)),
        Some(Command::UnwindInfo { file, at }) => {
            let text = unwind::report::of(&file, at)?;
            Ok(answer(&stdout().write_all(text.as_bytes())))
        }
        None => sample(cli.sampling, cli.verbose).map(|()| ExitCode::SUCCESS),
    }
}

fn sample(args: SamplingArgs, verbose: u8) -> Result<()> {
    let config = Config::resolve(args, verbose)?;
    doctor::require_privileges()?;
    let sink = Sink::open(config.output.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::system("cannot set up epoll", error))?;
    let (ledger, result) = runtime.block_on(agent::run(&config, sink))?;
    stderr::write(&ledger.table(verbose > 0));
    result?;
    match ledger.total.lost.total() {
        lost @ 1.. if config.strict => Err(Error::Lost(lost)),
        _ => Ok(()),
    }
}

fn diagnose(json: bool) -> ExitCode {
    let diagnosis = doctor::diagnose();
    let text = if json {
        serde_json::to_string_pretty(&diagnosis).unwrap_or_default() + "\n"
    } else {
        diagnosis.table()
    };
    // Whoever asked and did not listen gets the exit code all the same.
    let _ = stdout().write_all(text.as_bytes());
    if diagnosis.can_run { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// An answer that was printed, or that nobody wanted to read.
fn answer(printed: &std::io::Result<()>) -> ExitCode {
    if printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Diagnostics of ourselves, of aya and of the eBPF program.
fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        2 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .init();
}
