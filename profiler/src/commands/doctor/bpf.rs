//! What the kernel has for the eBPF program.

use std::path::Path;

use aya::{
    maps::MapType,
    programs::ProgramType,
    sys::{BpfHelper, is_helper_supported, is_map_supported, is_program_supported},
};

use super::{Check, Verdict, bad, ok};
use crate::{
    bpf::load::{Program, SlotSettings},
    cli::SamplingArgs,
    config::{Config, Machine},
    error::{Error, Result},
};

/// The helpers that the eBPF program calls, with the kernel that brought each.
const HELPERS: [(BpfHelper, &str, &str); 8] = [
    (BpfHelper::BPF_FUNC_ktime_get_ns, "bpf_ktime_get_ns", "4.1"),
    (BpfHelper::BPF_FUNC_get_smp_processor_id, "bpf_get_smp_processor_id", "4.1"),
    (BpfHelper::BPF_FUNC_get_current_pid_tgid, "bpf_get_current_pid_tgid", "4.2"),
    (BpfHelper::BPF_FUNC_get_current_comm, "bpf_get_current_comm", "4.2"),
    (BpfHelper::BPF_FUNC_get_stack, "bpf_get_stack", "4.18"),
    (BpfHelper::BPF_FUNC_get_current_cgroup_id, "bpf_get_current_cgroup_id", "4.18"),
    (BpfHelper::BPF_FUNC_ringbuf_output, "bpf_ringbuf_output", "5.8"),
    (BpfHelper::BPF_FUNC_ringbuf_query, "bpf_ringbuf_query", "5.8"),
];

pub(super) fn btf() -> Check {
    if Path::new("/sys/kernel/btf/vmlinux").exists() {
        return ok("BTF", "/sys/kernel/btf/vmlinux");
    }
    let fix = "a kernel with CONFIG_DEBUG_INFO_BTF; the profiler runs without";
    bad("BTF", Verdict::Warn, "none", fix)
}

/// A probe that itself was refused says nothing of what it asked for.
fn probed(name: &str, answer: Result<bool, String>, fix: String) -> Check {
    match answer {
        Ok(true) => ok(name, "yes"),
        Ok(false) => bad(name, Verdict::Fail, "no", fix),
        Err(error) => {
            bad(name, Verdict::Fail, format!("cannot tell: {error}"), "sudo profiler doctor")
        }
    }
}

pub(super) fn program_type() -> Check {
    let answer = is_program_supported(ProgramType::PerfEvent).map_err(|error| error.to_string());
    probed("perf_event programs", answer, "Linux 4.9 with CONFIG_BPF_EVENTS".into())
}

pub(super) fn ring_buffer() -> Check {
    let answer = is_map_supported(MapType::RingBuf).map_err(|error| error.to_string());
    probed("BPF ring buffer", answer, "Linux 5.8".into())
}

/// Each helper that the program calls.
pub(super) fn helpers() -> impl Iterator<Item = Check> {
    HELPERS.iter().map(|(helper, name, since)| self::helper(*helper, name, since))
}

fn helper(helper: BpfHelper, name: &str, since: &str) -> Check {
    let answer =
        is_helper_supported(ProgramType::PerfEvent, helper).map_err(|error| error.to_string());
    probed(name, answer, format!("Linux {since}"))
}

/// How user stacks are walked on this kernel.
pub(super) fn user_stacks(machine: &Machine) -> Check {
    let name = "user stacks";
    match &machine.registers {
        Ok(_) => ok(name, "by unwind information, and by frame pointers where there is none"),
        Err(lacks) => bad(
            name,
            Verdict::Warn,
            format!("by frame pointers only: no {lacks}"),
            "Linux 5.15, or build programs with -fno-omit-frame-pointer",
        ),
    }
}

/// Loads the program as a run would, which is the last word on all of the above.
pub(super) fn program(machine: Result<Machine>) -> Check {
    let name = "eBPF program";
    let config = machine
        .and_then(|machine| Config::resolve(&SamplingArgs::default(), Vec::new(), 0, &machine));
    match config
        .and_then(|config| Program::load(&config.program, &[SlotSettings::Event { moved: true }]))
    {
        Ok(_) => ok(name, "loads"),
        Err(Error::System { what, why, next }) => {
            bad(name, Verdict::Fail, format!("{what}: {why}"), next)
        }
        Err(error) => bad(name, Verdict::Fail, error.to_string(), "sudo profiler doctor"),
    }
}
