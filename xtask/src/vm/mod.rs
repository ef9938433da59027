//! `cargo xtask vm`: the kernel tests on the kernels and hardware counters that users have, emulated.

mod guest;
mod image;
mod kernel;
mod machine;
mod perf;
mod report;
mod retry;

use std::{
    cmp::Reverse,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use self::{kernel::Kernel, machine::Machine, report::Report};
use crate::{apt, arch::Arch, archive::Archive, command, harness::Tally, workspace};

/// A machine that is not done by then hangs. Tests that wait in vain end by themselves after three minutes,
/// and several of them have to come to that before, or nobody is told why.
const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);

/// The modules of the kernel tests say what they depend on: `profiler/tests/kernel/main.rs`.
const EVERY_KERNEL: &[&str] = &["every_kernel::"];
/// Of these, what each series has changed: the program and its verifier, records, events of tasks and of a PMU. What else
/// the oldest and the newest kernel do alike, those between them do, too.
const BETWEEN: &[&str] = &[
    "every_kernel::ledger::",
    "every_kernel::pmu::",
    "every_kernel::sideband::",
    "every_kernel::stat_pmu::",
    "every_kernel::tasks::",
    "every_kernel::traces::",
    "every_kernel::unwinding::",
    "every_kernel::walks::",
];
const OLDEST_AND_NEWEST: &[&str] = &["every_kernel::", "oldest_and_newest::"];
const EVERY_KERNEL_AND_OUR_CODE: &[&str] = &["every_kernel::", "our_code::"];
const ALL: &[&str] = &[];

/// The tests of what is another event where there is no PMU, and of what its count says.
const OF_EVENTS: &[&str] = &["::bad_input::", "::ledger::"];

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
                if compares_with_perf(&machine, &series) {
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

/// The tests that a machine has to run, where others of the matrix run the rest.
fn brief(machine: &Machine, series: &[String]) -> &'static [&'static str] {
    // What kernels seldom change they change on all architectures: two corners of the matrix are enough.
    let corner = if machine.arch == Arch::HOST { series.first() } else { series.last() };
    if machine.lacks_pmu() {
        OF_EVENTS
    } else {
        match (corner == Some(&machine.series), runs_our_code(machine, series)) {
            (true, true) => ALL,
            (true, false) => OLDEST_AND_NEWEST,
            (false, true) => EVERY_KERNEL_AND_OUR_CODE,
            (false, false) if is_between(machine, series) => BETWEEN,
            (false, false) => EVERY_KERNEL,
        }
    }
}

/// Whether it is neither the oldest nor the newest.
fn is_between(machine: &Machine, series: &[String]) -> bool {
    ![series.first(), series.last()].contains(&Some(&machine.series))
}

/// Whether it runs what only our own code decides on its architecture, as nothing else does. The machine before
/// the newest has the time for it.
fn runs_our_code(machine: &Machine, series: &[String]) -> bool {
    let before_newest = series.iter().rev().nth(1).or(series.last());
    machine.arch != Arch::HOST && before_newest == Some(&machine.series)
}

/// Whether it has Debian's perf, to compare the counts of its PMU with.
fn compares_with_perf(machine: &Machine, series: &[String]) -> bool {
    machine.pmu && runs_our_code(machine, series)
}

/// Boots the machines, as many at once as asked for.
fn boot_all(
    bootable: Vec<Bootable>,
    options: &Options,
    series: &[String],
    report: &mut Report,
) -> Result<()> {
    let tests_of = |machine: &Machine| if options.brief { brief(machine, series) } else { ALL };
    let mut waiting: Vec<_> = bootable.into_iter().enumerate().collect();
    // Those that take longest begin first, so that all end at about the same time.
    waiting.sort_by_key(|(_, it)| Reverse(tests_of(&it.machine).len()));
    let waiting = Mutex::new(waiting.into_iter());
    let report = Mutex::new(report);
    let work = || -> Result<()> {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((order, Bootable { machine, kernel, initramfs })) = next else {
                return Ok(());
            };
            let mut qemu = machine.qemu(&kernel.image, &initramfs, tests_of(&machine));
            let log = workspace::target().join(format!("vm/{machine}.log"));
            eprintln!("{machine}: Linux {} …", kernel.release);
            let mut outcome = guest::run(&mut qemu, &log, TIME_LIMIT)?;
            let failed = retry::candidates(&outcome);
            if !failed.is_empty() {
                eprintln!("{machine}: again: {} …", failed.join(", "));
                let tests: Vec<&str> = failed.iter().map(String::as_str).collect();
                let mut again = machine.qemu(&kernel.image, &initramfs, &tests);
                let log = log.with_extension("again.log");
                retry::settle(&mut outcome, &guest::run(&mut again, &log, TIME_LIMIT)?);
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_runs_where_it_may_find_something() {
        let series: Vec<String> = ["5.10", "6.1", "6.12", "7.2"].map(str::to_owned).into();
        let machine = |arch, series: &str, pmu| Machine { arch, series: series.to_owned(), pmu };
        let of = |arch, kernel: &str| brief(&machine(arch, kernel, true), &series);
        for arch in Arch::ALL {
            let (oldest, before_newest, newest) = if arch == Arch::HOST {
                (OLDEST_AND_NEWEST, BETWEEN, EVERY_KERNEL)
            } else {
                (EVERY_KERNEL, EVERY_KERNEL_AND_OUR_CODE, OLDEST_AND_NEWEST)
            };
            assert_eq!((of(arch, "5.10"), of(arch, "6.1")), (oldest, BETWEEN));
            assert_eq!((of(arch, "6.12"), of(arch, "7.2")), (before_newest, newest));
        }
        let alone = ["6.1".to_owned()];
        let of = |arch| brief(&machine(arch, "6.1", true), &alone);
        let others = if Arch::HOST == Arch::X86_64 { Arch::Aarch64 } else { Arch::X86_64 };
        assert_eq!((of(Arch::HOST), of(others)), (OLDEST_AND_NEWEST, ALL));
        assert_eq!(brief(&machine(Arch::Aarch64, "7.2", false), &series), OF_EVENTS);
    }
}
