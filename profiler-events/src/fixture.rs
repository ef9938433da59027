//! Machines for the tests: folders with what sysfs and tracefs have on real ones.

use std::{fs, path::Path};

use tempfile::TempDir;

use crate::Machine;

/// A machine in a folder, which goes away with this.
pub(crate) struct Fixture {
    root: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }.pmu("software", 1, &[]).pmu(
            "breakpoint",
            5,
            &[],
        )
    }

    /// A PMU with files below its folder.
    pub(crate) fn pmu(self, name: &str, kind: u32, files: &[(&str, &str)]) -> Self {
        let folder = format!("sys/bus/event_source/devices/{name}");
        let with_kind = self.file(&format!("{folder}/type"), &kind.to_string());
        files.iter().fold(with_kind, |it, (path, text)| it.file(&format!("{folder}/{path}"), text))
    }

    pub(crate) fn tracepoint(self, system: &str, name: &str, id: u32) -> Self {
        let path = format!("sys/kernel/tracing/events/{system}/{name}/id");
        self.file(&path, &id.to_string())
    }

    pub(crate) fn file(self, path: &str, text: &str) -> Self {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn machine(&self) -> Machine {
        Machine::at(self.path())
    }
}

/// Paths below a PMU's folder, and what the files have.
type Files = [(&'static str, &'static str)];

const PROBES: [(&str, u32, &Files); 2] = [
    ("kprobe", 6, &[("format/retprobe", "config:0")]),
    ("uprobe", 7, &[("format/retprobe", "config:0"), ("format/ref_ctr_offset", "config:32-63")]),
];

/// What a processor of Intel's has in each of its PMUs.
const INTEL: [(&str, &str); 9] = [
    ("format/event", "config:0-7"),
    ("format/umask", "config:8-15"),
    ("format/edge", "config:18"),
    ("format/inv", "config:23"),
    ("format/cmask", "config:24-31"),
    ("format/ldlat", "config1:0-15"),
    ("format/offcore_rsp", "config1:0-63"),
    ("events/cpu-cycles", "event=0x3c"),
    ("caps/max_precise", "3"),
];

/// A laptop with CPUs of two kinds, and memory controllers.
pub(crate) fn intel_hybrid() -> Fixture {
    let core = [
        INTEL.as_slice(),
        &[
            ("cpus", "0-7"),
            ("events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
            ("events/topdown-retiring", "event=0x00,umask=0x80"),
        ],
    ];
    let atom = [
        INTEL.as_slice(),
        &[("cpus", "8-15"), ("events/mem-loads", "event=0xd0,umask=0x5,ldlat=3")],
    ];
    let imc = [
        ("cpumask", "0"),
        ("format/event", "config:0-7"),
        ("events/data_read", "event=0x20"),
        ("events/data_read.scale", "6.103515625e-5"),
        ("events/data_read.unit", "MiB"),
        ("events/clockticks", "event=0x01"),
    ];
    let power = [
        ("cpumask", "0"),
        ("format/event", "config:0-7"),
        ("events/energy-cores", "event=0x01"),
        ("events/energy-cores.scale", "2.3283064365386962890625e-10"),
        ("events/energy-cores.unit", "Joules"),
    ];
    let machine = PROBES.iter().fold(Fixture::new(), |it, pmu| it.pmu(pmu.0, pmu.1, pmu.2));
    machine
        .pmu("cpu_core", 4, &core.concat())
        .pmu("cpu_atom", 10, &atom.concat())
        .pmu("uncore_imc_0", 23, &imc)
        .pmu("uncore_imc_1", 24, &imc)
        .pmu("power", 9, &power)
        .pmu("msr", 12, &[("format/event", "config:0-63"), ("events/tsc", "event=0x00")])
        .pmu("intel_pt", 8, &[("format/tsc", "config:10")])
        .tracepoint("sched", "sched_switch", 316)
        .tracepoint("sched", "sched_wakeup", 318)
        .tracepoint("sched", "sched_stat_wait", 312)
        .tracepoint("syscalls", "sys_enter_openat", 675)
        .file("sys/kernel/tracing/events/sched/enable", "0")
}

/// A server of AMD's.
pub(crate) fn amd() -> Fixture {
    Fixture::new()
        .pmu(
            "cpu",
            4,
            &[
                ("format/event", "config:0-7,32-35"),
                ("format/umask", "config:8-15"),
                ("format/cmask", "config:24-31"),
                ("format/inv", "config:23"),
                ("events/cpu-cycles", "event=0x76"),
                ("events/branch-misses", "event=0xc3"),
                ("caps/max_precise", "0"),
            ],
        )
        .pmu("ibs_op", 11, &[("format/cnt_ctl", "config:19")])
        .pmu("amd_df", 13, &[("cpumask", "0,64"), ("format/event", "config:0-7,32-35,59-60")])
}

/// An ARM server, of which all CPUs are alike.
pub(crate) fn arm() -> Fixture {
    Fixture::new().pmu(
        "armv8_pmuv3_0",
        8,
        &[
            ("cpus", "0-63"),
            ("format/event", "config:0-15"),
            ("format/long", "config1:0"),
            ("events/cpu_cycles", "event=0x0011"),
            ("events/ll_cache_miss_rd", "event=0x0037"),
        ],
    )
}
