//! What machine it is.

use std::{ffi::OsStr, fmt::Write as _, fs};

use profiler_profile::cpus::CpuList;
use serde::Serialize;

use crate::Result;

#[derive(Serialize)]
pub(crate) struct Machine {
    cpus: usize,
    model: String,
    kernel: String,
    virtualized: bool,
    pmu: bool,
    /// Of the last minute, before anything was measured: what else the machine was doing.
    load_average: String,
}

impl Machine {
    pub(crate) fn read(cpus: &CpuList) -> Result<Self> {
        let cpu_info = fs::read_to_string("/proc/cpuinfo")?;
        let model = cpu_info.lines().find_map(|line| line.strip_prefix("model name"));
        let devices = fs::read_dir("/sys/bus/event_source/devices")?;
        let load_average = fs::read_to_string("/proc/loadavg")?;
        Ok(Self {
            cpus: cpus.len(),
            model: model.unwrap_or("unknown").trim_start_matches([' ', '\t', ':']).to_owned(),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            virtualized: cpu_info.contains(" hypervisor"),
            // `cpu` on most machines, `cpu_core` and the like on hybrid ones, `armv8_pmuv3` on arm64.
            pmu: devices.flatten().any(|device| {
                let name = device.file_name();
                name == "cpu" || ["cpu_", "armv"].iter().any(|it| starts_with(&name, it))
            }),
            load_average: load_average.split(' ').next().unwrap_or_default().to_owned(),
        })
    }

    pub(crate) fn write(&self, text: &mut String) -> std::fmt::Result {
        let Self { cpus, model, kernel, virtualized, pmu, load_average } = self;
        let kind = if *virtualized { "virtual machine" } else { "no virtual machine" };
        let pmu = if *pmu { "PMU" } else { "no PMU" };
        writeln!(text, "{cpus} CPUs ({model}), {kind}, {pmu}, Linux {kernel}")?;
        writeln!(text, "load average before: {load_average}")
    }
}

fn starts_with(name: &OsStr, start: &str) -> bool {
    name.as_encoded_bytes().starts_with(start.as_bytes())
}
