//! The machines that the tests run on, and how QEMU makes them.

use std::{
    fmt::{self, Write as _},
    path::Path,
    process::Command,
};

use crate::arch::Arch;

/// An emulated machine: two CPUs and a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Of its CPUs.
    pub(crate) arch: Arch,
    /// The kernel's series, as `6.1`.
    pub(crate) series: String,
    /// Whether it has the hardware counters that QEMU emulates.
    pub(crate) pmu: bool,
}

impl Machine {
    /// The machines of some architectures and series. aarch64 has a PMU, and once has none: the rest
    /// of the kernel is the same with it and without.
    pub(crate) fn matrix(archs: &[Arch], series: &[String]) -> Vec<Self> {
        let mut machines = Vec::new();
        for &arch in archs {
            let pmu = arch == Arch::Aarch64;
            machines.extend(series.iter().map(|it| Self { arch, series: it.clone(), pmu }));
            if let (true, Some(last)) = (pmu, series.last()) {
                machines.push(Self { arch, series: last.clone(), pmu: false });
            }
        }
        machines
    }

    /// Whether it has no PMU, though others of its architecture have one.
    pub(crate) fn lacks_pmu(&self) -> bool {
        self.arch == Arch::Aarch64 && !self.pmu
    }

    fn variant(&self) -> &'static str {
        if self.lacks_pmu() { "-no-pmu" } else { "" }
    }

    /// The column's heading in tables, below the architecture's.
    pub(crate) fn heading(&self) -> String {
        format!("{}{}", self.series, self.variant())
    }

    /// The program that emulates it.
    pub(crate) fn qemu_program(arch: Arch) -> String {
        format!("qemu-system-{arch}")
    }

    /// The command that boots it, has it run these tests, all if none is named, and ends when it powers
    /// off. Its console is on standard output.
    pub(crate) fn qemu(&self, kernel: &Path, initramfs: &Path, tests: &[&str]) -> Command {
        let mut qemu = Command::new(Self::qemu_program(self.arch));
        qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            // The same on a machine with KVM and on one without.
            .args(["-accel", "tcg,thread=multi", "-smp", "2", "-m", "1024"])
            .args(["-serial", "stdio"]);
        let console = match (self.arch, self.pmu) {
            (Arch::X86_64, _) => {
                qemu.args(["-machine", "q35", "-cpu", "max,la57=off"]);
                "ttyS0"
            }
            (Arch::Aarch64, pmu) => {
                let cpu = if pmu { "cortex-a57" } else { "cortex-a57,pmu=off" };
                qemu.args(["-machine", "virt", "-cpu", cpu]);
                "ttyAMA0"
            }
        };
        // Errors are shown, the rest would come between the lines of the tests. The kernel's statistics of
        // used memory mark pages as old, and then this CPU can't read them in an interrupt.
        let mut line =
            format!("console={console} loglevel=4 panic=-1 damon_stat.enabled=N rdinit=/init");
        if !tests.is_empty() {
            // What the kernel does not know it hands to the first process, as a variable.
            let _ = write!(line, " tests={}", tests.join(","));
        }
        qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initramfs).args(["-append", &line]);
        qemu
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}{}", self.arch, self.series, self.variant())
    }
}
