//! Whose samples are kept.

use std::path::PathBuf;

use profiler_common::settings::MAX_CGROUPS;

use super::{Error, Machine, Result, process_names};
use crate::{
    cli::SamplingArgs,
    filter::{CgroupName, CommPattern, Filter, comm},
    units::ProcessSpec,
};

/// What the eBPF program is to keep of these processes.
pub(super) fn resolve(args: &SamplingArgs, pids: &[u32], machine: &Machine) -> Result<Filter> {
    Ok(Filter {
        // Whose child a process is, the eBPF program can't tell: the agent does.
        pids: if args.children { Vec::new() } else { pids.to_vec() },
        tids: threads(args),
        uids: args.users.iter().map(|it| uid(it, machine)).collect::<Result<_>>()?,
        comms: comms(&args.comms)?,
        cgroups: cgroups(args, machine)?,
    })
}

/// The threads that were named, each once.
pub(super) fn threads(args: &SamplingArgs) -> Vec<u32> {
    let mut tids = args.tids.clone();
    tids.sort_unstable();
    tids.dedup();
    tids
}

/// What was typed of filters beside `-p`, for people to read.
pub(super) fn describe(args: &SamplingArgs) -> Vec<String> {
    let tids = threads(args).into_iter().map(|it| format!("-t {it}"));
    let users = args.users.iter().map(|it| format!("--uid {it}"));
    let comms = args.comms.iter().map(|it| format!("--comm {it}"));
    tids.chain(users).chain(comms).chain(names(args).map(|it| it.to_string())).collect()
}

/// The processes that were named, which have to be there, as have the threads; and whether any can have names.
pub(super) fn processes(
    args: &SamplingArgs,
    machine: &Machine,
    notices: &mut Vec<String>,
) -> Result<Vec<u32>> {
    let option = match (args.pids.is_empty(), args.tids.is_empty()) {
        (false, _) => Some("-p"),
        (true, false) => Some("-t"),
        (true, true) => None,
    };
    if !machine.has_proc {
        if let Some(option) = option {
            let why = "processes are looked for in /proc: mount -t proc proc /proc";
            return Err(Error::Usage(format!("{option}: {why}")));
        }
        notices.push("nothing has a name without /proc: mount -t proc proc /proc".into());
    } else if !machine.in_initial_pid_namespace {
        let why = "this is not the initial pid namespace, so process ids here are not those of \
                   the samples";
        if let Some(option) = option {
            return Err(Error::Usage(format!("{option}: {why}; run it on the host")));
        }
        notices.push(format!("{why}: processes have no names; run it on the host"));
    }
    if let Some(tid) = args.tids.iter().find(|tid| (machine.process_of)(**tid).is_none()) {
        return Err(Error::Usage(format!("-t {tid}: there is no thread with this id")));
    }
    let has_names = args.pids.iter().any(|it| matches!(it, ProcessSpec::Name(_)));
    let mut others = if has_names { (machine.processes)() } else { Vec::new() };
    others.retain(|it| it.pid != std::process::id());
    let mut pids = Vec::new();
    for process in &args.pids {
        let pid = match process {
            ProcessSpec::Pid(pid) => *pid,
            ProcessSpec::Name(name) => process_names::find(name, &others, args.children)?,
        };
        match (machine.process_of)(pid) {
            Some(process) if process == pid => {}
            Some(process) => {
                let why = format!("-p {pid}: this is a thread of process {process}");
                return Err(Error::Usage(format!("{why}: give -p {process}, or -t {pid}")));
            }
            None => {
                return Err(Error::Usage(format!("-p {pid}: there is no process with this id")));
            }
        }
        if !pids.contains(&pid) {
            pids.push(pid);
        }
    }
    Ok(pids)
}

fn uid(user: &str, machine: &Machine) -> Result<u32> {
    (machine.user_id)(user).ok_or_else(|| {
        let next = "give the number that `id -u` shows";
        Error::Usage(format!("--uid {user}: /etc/passwd has no user of this name; {next}"))
    })
}

fn comms(patterns: &[CommPattern]) -> Result<Vec<profiler_common::comm_patterns::States>> {
    if patterns.is_empty() {
        return Ok(Vec::new());
    }
    comm::table(patterns).ok_or_else(|| {
        let count = patterns.len();
        Error::Usage(format!(
            "--comm: {count} patterns are too many; 16 always fit, shorter ones more"
        ))
    })
}

/// What was typed of cgroups.
fn names(args: &SamplingArgs) -> impl Iterator<Item = CgroupName> {
    let paths = args.cgroups.iter().cloned().map(CgroupName::Path);
    let containers = args.containers.iter().cloned().map(CgroupName::Container);
    paths.chain(containers).chain(args.units.iter().cloned().map(CgroupName::Unit))
}

fn cgroups(args: &SamplingArgs, machine: &Machine) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = Vec::new();
    for name in names(args) {
        let paths = (machine.find_cgroups)(&name);
        found.extend(paths.map_err(|why| Error::Usage(format!("{name}: {why}")))?);
    }
    found.sort();
    found.dedup();
    let count = found.len();
    if count > MAX_CGROUPS as usize {
        let why = format!("these are {count} cgroups, and at most {MAX_CGROUPS} can be told apart");
        return Err(Error::Usage(format!("{why}; --cgroup takes what is above them")));
    }
    Ok(found)
}
