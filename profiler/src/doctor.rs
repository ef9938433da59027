//! What this kernel, machine and user can do, each with what to do when it is missing.

use std::{fmt::Write as _, fs, path::Path};

use aya::{
    maps::MapType,
    programs::ProgramType,
    sys::{BpfHelper, is_helper_supported, is_map_supported, is_program_supported},
};
use caps::{CapSet, Capability};
use serde::Serialize;

use clap::Parser as _;

use crate::{
    bpf::{features, load::Program},
    cli::Cli,
    config::Config,
    error::{Error, Result},
    kernel,
    perf::{attr::Rate, event::EventSpec, set, sideband},
};

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// The profiler runs, but something is worse than it could be.
    Warn,
    /// The profiler can't run.
    Fail,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// Whether that is good.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it, where that is possible.
    pub fix: Option<String>,
}

/// All checks.
#[derive(Clone, Debug, Serialize)]
pub struct Diagnosis {
    /// Whether the profiler can run.
    pub can_run: bool,
    /// The lines of the table.
    pub checks: Vec<Check>,
}

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

const NEEDED: [(Capability, &str); 2] =
    [(Capability::CAP_BPF, "CAP_BPF"), (Capability::CAP_PERFMON, "CAP_PERFMON")];
/// What names and mappings of other users' processes and of the kernel need, and rings for records of
/// mappings that are large enough.
const USEFUL: [(Capability, &str); 5] = [
    (Capability::CAP_SYS_PTRACE, "CAP_SYS_PTRACE"),
    (Capability::CAP_DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"),
    (Capability::CAP_SYSLOG, "CAP_SYSLOG"),
    (Capability::CAP_CHECKPOINT_RESTORE, "CAP_CHECKPOINT_RESTORE"),
    (Capability::CAP_IPC_LOCK, "CAP_IPC_LOCK"),
];

fn missing(among: &[(Capability, &'static str)]) -> Vec<&'static str> {
    let has = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
    if has(Capability::CAP_SYS_ADMIN) {
        return Vec::new();
    }
    among.iter().filter(|(capability, _)| !has(*capability)).map(|(_, name)| *name).collect()
}

/// The command that lets this program run without root.
fn setcap() -> String {
    let program = std::env::current_exe().map(|path| path.display().to_string());
    let all = NEEDED.iter().chain(&USEFUL);
    let names: Vec<String> = all.map(|(_, name)| name.to_lowercase()).collect();
    let program = program.unwrap_or_else(|_| "profiler".into());
    format!("sudo setcap {}+ep {program}", names.join(","))
}

/// Refuses to start without the privileges that loading and sampling need.
pub fn require_privileges() -> Result<()> {
    let missing = missing(&NEEDED);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::system_with(
        "not permitted to sample this machine",
        format!("it lacks {}", missing.join(" and ")),
        format!("run it as root (sudo profiler …), or once: {}", setcap()),
    ))
}

/// Looks at everything.
#[must_use]
pub fn diagnose() -> Diagnosis {
    let mut checks = vec![
        ok("kernel", kernel::release()),
        ok("architecture", std::env::consts::ARCH),
        privileges(),
        paranoid(),
        kptr_restrict(),
        lockdown(),
    ];
    if !missing(&NEEDED).is_empty() {
        // All that follows would fail for this one reason.
        return Diagnosis { can_run: false, checks };
    }
    checks.push(pid_namespace());
    checks.extend(events());
    checks.push(build_ids());
    checks.push(btf());
    checks.push(program_type());
    checks.push(ring_buffer());
    checks.extend(HELPERS.iter().map(|(helper, name, since)| self::helper(*helper, name, since)));
    checks.push(user_stacks());
    let program = program();
    let loads = program.verdict == Verdict::Ok;
    checks.extend([program, tracefs(), memlock(loads), jit()]);
    let can_run = checks.iter().all(|check| check.verdict != Verdict::Fail);
    Diagnosis { can_run, checks }
}

impl Diagnosis {
    /// The table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let width = self.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for Check { name, verdict, found, fix } in &self.checks {
            let verdict = match verdict {
                Verdict::Ok => "ok",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            let _ = writeln!(text, "{name:width$}  {verdict:4}  {found}");
            if let Some(fix) = fix {
                let _ = writeln!(text, "{:width$}        → {fix}", "");
            }
        }
        let last = if self.can_run {
            "The profiler can run."
        } else {
            "The profiler can't run: see FAIL above."
        };
        text + last + "\n"
    }
}

fn ok(name: &str, found: impl Into<String>) -> Check {
    Check { name: name.into(), verdict: Verdict::Ok, found: found.into(), fix: None }
}

fn bad(name: &str, verdict: Verdict, found: impl Into<String>, fix: impl Into<String>) -> Check {
    let fix = Some(fix.into());
    Check { name: name.into(), verdict, found: found.into(), fix }
}

fn privileges() -> Check {
    let (needed, useful) = (missing(&NEEDED), missing(&USEFUL));
    let fix = format!("sudo profiler …, or once: {}", setcap());
    if !needed.is_empty() {
        return bad("privileges", Verdict::Fail, format!("no {}", needed.join(", ")), fix);
    }
    if !useful.is_empty() {
        let found = format!("no {}: names are missing", useful.join(", "));
        return bad("privileges", Verdict::Warn, found, fix);
    }
    ok("privileges", "all")
}

fn pid_namespace() -> Check {
    if kernel::in_initial_pid_namespace() {
        return ok("pid namespace", "the initial one");
    }
    let found = "not the initial one: processes have no names, and -p can't be used";
    bad("pid namespace", Verdict::Warn, found, "run it on the host, or in a pod with hostPID")
}

fn paranoid() -> Check {
    // With CAP_PERFMON any value will do.
    let name = "perf_event_paranoid";
    match kernel::sysctl_number("kernel.perf_event_paranoid") {
        Some(level) if level <= 0 || missing(&NEEDED).is_empty() => ok(name, level.to_string()),
        Some(level) => bad(
            name,
            Verdict::Fail,
            format!("{level}: whole CPUs need CAP_PERFMON"),
            "sudo profiler …",
        ),
        None => bad(name, Verdict::Fail, "none", "a kernel with CONFIG_PERF_EVENTS"),
    }
}

fn kptr_restrict() -> Check {
    let name = "kptr_restrict";
    match kernel::sysctl_number("kernel.kptr_restrict") {
        Some(2) => bad(
            name,
            Verdict::Warn,
            "2: kernel functions have no names",
            "sudo sysctl kernel.kptr_restrict=1",
        ),
        Some(1) if missing(&[(Capability::CAP_SYSLOG, "CAP_SYSLOG")]).is_empty() => ok(name, "1"),
        Some(1) => bad(
            name,
            Verdict::Warn,
            "1: kernel functions have no names without CAP_SYSLOG",
            "sudo profiler …",
        ),
        Some(level) => ok(name, level.to_string()),
        None => bad(name, Verdict::Warn, "unknown", "mount -t proc proc /proc"),
    }
}

fn lockdown() -> Check {
    let text = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    // The mode in force stands in brackets.
    let mode = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    match mode.map(|(mode, _)| mode) {
        Some("confidentiality") => bad(
            "lockdown",
            Verdict::Fail,
            "confidentiality: perf and BPF may not read the kernel",
            "boot with lockdown=integrity",
        ),
        Some(mode) => ok("lockdown", mode),
        None => ok("lockdown", "not built into this kernel"),
    }
}

fn first_cpu() -> u32 {
    kernel::cpus("online").ok().and_then(|cpus| cpus.iter().next()).unwrap_or(0)
}

/// Tries the default event and its fallback on the first CPU, as a run would.
fn events() -> Vec<Check> {
    let cpu = first_cpu();
    let try_open = |event| set::try_open(event, Rate::Frequency(99), cpu);
    let event = |event: EventSpec| ok("event", format!("{event} will be sampled"));
    match try_open(EventSpec::CYCLES) {
        Ok(_) => vec![ok("PMU", "counts cycles"), event(EventSpec::CYCLES)],
        Err(set::OpenError::NotCounted(error)) => {
            let pmu = bad(
                "PMU",
                Verdict::Warn,
                format!("none ({error})"),
                "in a virtual machine, have the host pass its PMU on",
            );
            let fallback = match try_open(EventSpec::CPU_CLOCK) {
                Ok(_) => event(EventSpec::CPU_CLOCK),
                Err(error) => cannot_open(error),
            };
            vec![pmu, fallback]
        }
        Err(error) => vec![cannot_open(error)],
    }
}

fn cannot_open(error: set::OpenError) -> Check {
    let (set::OpenError::NotCounted(error) | set::OpenError::Other(error)) = error;
    let found = format!("perf_event_open: {error}");
    bad("event", Verdict::Fail, found, "sudo profiler …, or a kernel with CONFIG_PERF_EVENTS")
}

fn build_ids() -> Check {
    let name = "build ids of mappings";
    match sideband::has_build_ids(first_cpu()) {
        Ok(true) => ok(name, "yes"),
        Ok(false) => {
            bad(name, Verdict::Warn, "no: mapped files are known by their inode", "Linux 5.12")
        }
        Err(error) => {
            let found = format!("cannot tell: perf_event_open: {error}");
            bad(name, Verdict::Fail, found, "sudo profiler doctor")
        }
    }
}

fn btf() -> Check {
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

fn program_type() -> Check {
    let answer = is_program_supported(ProgramType::PerfEvent).map_err(|error| error.to_string());
    probed("perf_event programs", answer, "Linux 4.9 with CONFIG_BPF_EVENTS".into())
}

fn ring_buffer() -> Check {
    let answer = is_map_supported(MapType::RingBuf).map_err(|error| error.to_string());
    probed("BPF ring buffer", answer, "Linux 5.8".into())
}

fn helper(helper: BpfHelper, name: &str, since: &str) -> Check {
    let answer =
        is_helper_supported(ProgramType::PerfEvent, helper).map_err(|error| error.to_string());
    probed(name, answer, format!("Linux {since}"))
}

/// How user stacks are walked on this kernel.
fn user_stacks() -> Check {
    let name = "user stacks";
    match features::missing_for_walk() {
        None => ok(name, "by unwind information, and by frame pointers where there is none"),
        Some(lacks) => bad(
            name,
            Verdict::Warn,
            format!("by frame pointers only: no {lacks}"),
            "Linux 5.15, or build programs with -fno-omit-frame-pointer",
        ),
    }
}

/// Loads the program as a run would, which is the last word on all of the above.
fn program() -> Check {
    let name = "eBPF program";
    let config = Cli::try_parse_from(["profiler"])
        .map_err(|error| Error::Usage(error.to_string()))
        .and_then(|cli| Config::resolve(cli.sampling, 0));
    match config.and_then(|config| Program::load(&config)) {
        Ok(_) => ok(name, "loads"),
        Err(Error::System { what, why, next }) => {
            bad(name, Verdict::Fail, format!("{what}: {why}"), next)
        }
        Err(error) => bad(name, Verdict::Fail, error.to_string(), "sudo profiler doctor"),
    }
}

fn tracefs() -> Check {
    let mounted = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .into_iter()
        .find(|dir| Path::new(dir).join("events").exists());
    match mounted {
        Some(dir) => ok("tracefs", dir),
        None => ok("tracefs", "not mounted; needed for tracepoints only"),
    }
}

fn memlock(program_loads: bool) -> Check {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    let found = match limit.rlim_cur {
        libc::RLIM_INFINITY => "unlimited".to_owned(),
        bytes => format!("{} KiB", bytes >> 10),
    };
    // Since Linux 5.11 maps count against the cgroup's memory in place of this limit.
    if program_loads || limit.rlim_cur == libc::RLIM_INFINITY {
        return ok("memlock", found);
    }
    bad("memlock", Verdict::Warn, format!("{found}: may be too little"), "ulimit -l unlimited")
}

fn jit() -> Check {
    match kernel::sysctl_number("net.core.bpf_jit_enable") {
        Some(0) => bad(
            "BPF JIT",
            Verdict::Warn,
            "off: sampling costs several times as much",
            "sudo sysctl net.core.bpf_jit_enable=1",
        ),
        Some(_) => ok("BPF JIT", "on"),
        // Kernels that can't run BPF without it have no such switch that is readable by all.
        None => ok("BPF JIT", "not to be switched"),
    }
}
