//! The project's chores. `cargo xtask --help` lists them.

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a chore talks to whoever runs it")]

mod apt;
mod arch;
mod archive;
mod bench;
mod command;
mod cross;
mod dist;
mod ebpf;
mod fixtures;
mod fuzz;
mod generate;
mod harness;
mod linker;
mod package;
mod run;
mod test;
mod toolchain;
mod vm;
mod workspace;

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};

use self::arch::Arch;

/// The project's chores.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Build the eBPF object that the agent embeds, installing what that needs.
    BuildEbpf {
        /// Architecture of the machine that the object is for.
        #[arg(long, default_value = Arch::HOST.name())]
        arch: Arch,
    },
    /// Build everything and run the profiler with ARGS, by sudo when not root.
    Run {
        /// Arguments of the profiler.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Formatting, lints, unit tests, and the kernel tests as root.
    Test {
        /// Also run the kernel tests on emulated machines, as `vm --brief` does.
        #[arg(long)]
        vm: bool,
        /// Run only the kernel tests whose name contains this.
        filter: Option<String>,
    },
    /// The kernel tests on emulated machines: older and newer kernels, both architectures.
    Vm(vm::Options),
    /// Build the agent as one static file an architecture, into target/dist.
    Dist {
        /// Only this architecture.
        #[arg(long = "arch", value_name = "ARCH")]
        archs: Vec<Arch>,
    },
    /// Pack the static agent up: a Debian package and a tarball an architecture, and a container image, into
    /// target/package.
    Package {
        /// Only this architecture.
        #[arg(long = "arch", value_name = "ARCH")]
        archs: Vec<Arch>,
    },
    /// Measure on this machine: print a table and write it as JSON.
    Bench(bench::Options),
    /// Run fuzz targets, each for a bounded time.
    Fuzz {
        /// Seconds per target.
        #[arg(long, default_value_t = 30)]
        seconds: u32,
        /// Only these targets [default: all].
        targets: Vec<String>,
    },
    /// Write the man page and the shell completions to target/generated.
    Generate,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().chore {
        Chore::BuildEbpf { arch } => ebpf::build(arch).map(|_| ()),
        Chore::Run { args } => run::run(&args),
        Chore::Test { vm, filter } => test::run(vm, filter.as_deref()),
        Chore::Vm(options) => vm::run(&options),
        Chore::Dist { archs } if archs.is_empty() => dist::run(&Arch::ALL),
        Chore::Dist { archs } => dist::run(&archs),
        Chore::Package { archs } if archs.is_empty() => package::run(&Arch::ALL),
        Chore::Package { archs } => package::run(&archs),
        Chore::Bench(options) => bench::run(&options),
        Chore::Fuzz { seconds, targets } => fuzz::run(seconds, &targets),
        Chore::Generate => generate::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
