//! `cargo xtask vm`: the kernel tests on the kernels and hardware counters that users have, emulated.

mod guest;
mod image;
mod kernel;
mod machine;
mod report;

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use self::{kernel::Kernel, machine::Machine, report::Report};
use crate::{apt, arch::Arch, archive::Archive, command, workspace};

/// A machine that is not done by then hangs. Tests that wait in vain end by themselves after three minutes,
/// and several of them have to come to that before, or nobody is told why.
const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);

/// The tests of what kernels differ in: helpers and the verifier, the kernel's records, time, and what a
/// walk of user stacks begins with.
const DIFFER: &[&str] = &["bad_input::", "ledger::", "sideband::", "unwinding::", "walks::"];

/// The tests of what is another event where there is no PMU, and of what its count says.
const OF_EVENTS: &[&str] = &["bad_input::", "ledger::"];

/// What to run where.
#[derive(clap::Args, Debug, Default)]
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
    /// Between the oldest and the newest kernel, run only the tests of what kernels differ in, and
    /// without a PMU, on the architecture that has one, only those of events.
    #[arg(long, conflicts_with_all = ["filter", "bless"])]
    brief: bool,
    /// Run only the tests whose name contains this.
    #[arg(value_name = "TEST")]
    filter: Option<String>,
}

impl Options {
    /// All machines, and the tests whose name contains the filter; without one, what `--brief` runs.
    pub(crate) fn with_filter(filter: Option<&str>) -> Self {
        Self { filter: filter.map(str::to_owned), brief: filter.is_none(), ..Self::default() }
    }
}

/// A machine with all that is needed to boot it.
struct Bootable {
    machine: Machine,
    kernel: Kernel,
    initramfs: PathBuf,
}

/// Runs the tests on each machine, one after another, and prints what became of them.
pub(crate) fn run(options: &Options) -> Result<()> {
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
            let with_image = found.into_iter().map(|(machine, kernel)| Bootable {
                machine,
                kernel,
                initramfs: initramfs.clone(),
            });
            bootable.extend(with_image);
        }
    }

    let mut report = Report::default();
    for Bootable { machine, kernel, initramfs } in bootable {
        let tests = match options.brief {
            true if machine.lacks_pmu() => OF_EVENTS,
            true if machine.is_between(&series) => DIFFER,
            _ => &[],
        };
        let mut qemu = machine.qemu(&kernel.image, &initramfs, tests);
        let log = dir.join(format!("{machine}.log"));
        eprintln!("{machine}: Linux {} …", kernel.release);
        let outcome = guest::run(&mut qemu, &log, TIME_LIMIT)?;
        report.add(machine, kernel.release, outcome, &qemu, &log);
        report.print_last(options.filter.is_none(), options.bless)?;
    }
    if !report.is_empty() {
        println!("\n{}", report.table());
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
