//! `cargo xtask vm`: the kernel tests on the kernels and hardware counters that users have, emulated.

mod guest;
mod image;
mod kernel;
mod machine;
mod perf;
mod report;
mod retry;
mod selection;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use self::{
    guest::{Limits, Outcome},
    kernel::Kernel,
    machine::Machine,
    report::Report,
    retry::Again,
};
use crate::{apt, arch::Arch, archive::Archive, command, harness::Tally, workspace};

/// Tests that wait in vain end by themselves after three minutes.
const LIMITS: Limits =
    Limits { stall: Duration::from_secs(5 * 60), all: Duration::from_secs(25 * 60) };

/// How much each failed test has to say again, at the end.
const FAILURE_LINES: usize = 5;

/// What to run where.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Only this kernel series, as 6.1; any that Debian has. Can be given several times.
    #[arg(long = "kernel", value_name = "SERIES")]
    series: Vec<String>,
    /// Only this architecture.
    #[arg(long = "arch", value_name = "ARCH")]
    archs: Vec<Arch>,
    /// Don't fail for a kernel that can't be found.
    #[arg(long)]
    allow_missing: bool,
    /// Keep what the doctor says as what it has to say, and write the tables of docs/kernels.md.
    #[arg(long, conflicts_with = "filter")]
    bless: bool,
    /// Run each test only where it may find something that it finds nowhere else: docs/kernels.md.
    #[arg(long, conflicts_with_all = ["filter", "bless"])]
    brief: bool,
    /// How many machines run at once, each with two CPUs; by default one for every two CPUs of this machine.
    #[arg(long, value_name = "N", default_value_t = machines_at_once())]
    jobs: usize,
    /// Run only the tests whose name contains this.
    #[arg(value_name = "TEST")]
    filter: Option<String>,
}

impl Options {
    /// All machines, and the tests whose name contains the filter; without one, what `--brief` runs.
    pub(crate) fn with_filter(filter: Option<&str>) -> Self {
        Self {
            series: Vec::new(),
            archs: Vec::new(),
            allow_missing: false,
            bless: false,
            brief: filter.is_none(),
            jobs: machines_at_once(),
            filter: filter.map(str::to_owned),
        }
    }
}

/// A CPU for each emulated one. With fewer, one emulated CPU waits for a lock whose holder does not run, and two
/// machines at once take longer than one after the other.
fn machines_at_once() -> usize {
    thread::available_parallelism().map_or(1, |cpus| (cpus.get() / 2).max(1))
}

/// A machine with all that is needed to boot it.
struct Bootable {
    machine: Machine,
    kernel: Kernel,
    initramfs: PathBuf,
}

impl Bootable {
    /// Runs these tests, and some of them again; also the command of the first run, and where its console is kept.
    fn run(&self, tests: &[&str]) -> Result<(Outcome, Command, PathBuf)> {
        let Self { machine, kernel, initramfs } = self;
        let log = workspace::target().join(format!("vm/{machine}.log"));
        let mut qemu = machine.qemu(&kernel.image, initramfs, tests);
        eprintln!("{machine}: Linux {} …", kernel.release);
        let mut outcome = guest::run(&mut qemu, &log, LIMITS)?;
        if let Some(again) = retry::again(&outcome) {
            let failed: Vec<&str>;
            let tests = match &again {
                Again::Tests(names) => {
                    eprintln!("{machine}: again: {} …", names.join(", "));
                    failed = names.iter().map(String::as_str).collect();
                    &*failed
                }
                Again::Machine => {
                    let why = outcome.failure.as_deref().unwrap_or_default();
                    eprintln!("{machine}: {why}; all of it again …");
                    tests
                }
            };
            let mut qemu = machine.qemu(&kernel.image, initramfs, tests);
            let second = guest::run(&mut qemu, &log.with_extension("again.log"), LIMITS)?;
            outcome = again.settle(outcome, second);
        }
        Ok((outcome, qemu, log))
    }
}

/// Runs the tests on each machine, and prints what became of them.
pub(crate) fn run(options: &Options) -> Result<()> {
    run_counted(options).1
}

/// The same; also how many tests ended how.
pub(crate) fn run_counted(options: &Options) -> (Tally, Result<()>) {
    let mut report = Report::default();
    let done = run_all(options, &mut report);
    (report.tally(), done)
}

fn run_all(options: &Options, report: &mut Report) -> Result<()> {
    let archs = if options.archs.is_empty() { &Arch::ALL[..] } else { &options.archs };
    let series =
        if options.series.is_empty() { kernel::all_series() } else { options.series.clone() };
    let dir = workspace::target().join("vm");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;

    let mut bootable = Vec::new();
    let mut missing = Vec::new();
    for &arch in archs {
        find_qemu(arch)?;
        let mut archive = Archive::new(arch);
        let mut found = Vec::new();
        for machine in Machine::matrix(&[arch], &series) {
            match kernel::find(&machine.series, &mut archive, arch) {
                Ok(kernel) => found.push((machine, kernel)),
                Err(error) => {
                    eprintln!("xtask: {machine} is skipped: {error:#}");
                    missing.push(machine.to_string());
                }
            }
        }
        if !found.is_empty() {
            let initramfs = image::build(&mut archive, arch, options.filter.as_deref())?;
            for (machine, kernel) in found {
                let mut initramfs = initramfs.clone();
                if selection::compares_with_perf(&machine, &series) {
                    match perf::find(&mut archive, arch) {
                        Ok(perf) => initramfs = image::add_perf(&initramfs, &perf)?,
                        // The tests that need it say that they are skipped.
                        Err(error) => eprintln!("xtask: {machine} has no perf: {error:#}"),
                    }
                }
                bootable.push(Bootable { machine, kernel, initramfs });
            }
        }
    }

    boot_all(bootable, options, &series, report)?;
    report.sort();
    if !report.is_empty() {
        println!("\n{}\n{}", report.table(), report.failures(FAILURE_LINES));
    }
    if options.bless {
        report.write_docs()?;
    }
    if report.has_failed() {
        bail!("not all tests passed on all machines");
    }
    if !missing.is_empty() && !options.allow_missing {
        bail!("skipped: {}; --allow-missing lets that pass", missing.join(", "));
    }
    Ok(())
}

/// Boots the machines, as many at once as asked for.
fn boot_all(
    bootable: Vec<Bootable>,
    options: &Options,
    series: &[String],
    report: &mut Report,
) -> Result<()> {
    let tests_of = |machine: &Machine| {
        if options.brief { selection::brief(machine, series) } else { Vec::new() }
    };
    let waiting = Mutex::new(bootable.into_iter().enumerate());
    let report = Mutex::new(report);
    let work = || -> Result<()> {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((order, bootable)) = next else {
                return Ok(());
            };
            let (outcome, qemu, log) = bootable.run(&tests_of(&bootable.machine))?;
            let Bootable { machine, kernel, .. } = bootable;
            let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
            report.add(order, machine, kernel.release, outcome, &qemu, &log);
            report.print_last(options.filter.is_none(), options.bless)?;
        }
    };
    thread::scope(|scope| {
        let workers = (0..options.jobs.max(1)).map(|_| scope.spawn(work)).collect::<Vec<_>>();
        let mut joined = workers.into_iter().map(thread::ScopedJoinHandle::join);
        joined.try_for_each(|done| done.unwrap_or_else(|_| bail!("a machine's thread panicked")))
    })
}

/// Looks for the emulator, and installs it where it can.
fn find_qemu(arch: Arch) -> Result<()> {
    let program = Machine::qemu_program(arch);
    let package = match arch {
        Arch::X86_64 => "qemu-system-x86",
        Arch::Aarch64 => "qemu-system-arm",
    };
    if !command::on_path(&program).is_empty() {
        return Ok(());
    }
    apt::install(&[package]).with_context(|| {
        format!("no {program} on PATH: install QEMU, on Debian with `apt-get install {package}`")
    })
}

/// Where the doctor's words on a machine are kept.
fn snapshot(machine: &Machine) -> PathBuf {
    let dir: &Path = workspace::root();
    dir.join("profiler/tests/kernel/doctor").join(format!("{machine}.txt"))
}
