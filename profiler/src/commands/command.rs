//! A command that is started for a run: whether that is possible, and what the run follows then.

use crate::{
    cli::SamplingArgs,
    config::Config,
    error::{Error, Result},
    hardening::capabilities::SIGNALS_TO_OTHERS,
    kernel,
    launch::Launch,
    perf::config::Target,
    units::ProcessSpec,
};

/// Refuses a command where that can't be started.
pub(super) fn check(sampling: &SamplingArgs) -> Result<()> {
    check_command(sampling.all_cpus, kernel::has_proc(), kernel::in_initial_pid_namespace())
}

/// What is sampled: the command and its descendants, or all while it runs.
pub(super) fn followed(sampling: SamplingArgs, launch: Option<&Launch>) -> SamplingArgs {
    let Some(launch) = launch else { return sampling };
    let pids = if sampling.all_cpus { Vec::new() } else { vec![ProcessSpec::Pid(launch.pid())] };
    SamplingArgs { children: !sampling.all_cpus, pids, ..sampling }
}

/// How a run has a command, which may be another user's.
pub(super) fn settle(config: &mut Config, is_of_other: bool) {
    if let Target::Tasks(tasks) = &mut config.perf.target {
        tasks.enable_on_exec = true;
    }
    if is_of_other {
        config.set_aside |= SIGNALS_TO_OTHERS;
    }
}

/// Refuses a command that can't be started, or that samples could not be told to be of.
fn check_command(all_cpus: bool, has_proc: bool, in_initial_pid_namespace: bool) -> Result<()> {
    let why = if !has_proc {
        "a command can't be started without /proc: mount -t proc proc /proc"
    } else if !all_cpus && !in_initial_pid_namespace {
        "a command can't be told from other processes here: this is not the initial pid namespace; add -a to \
         sample the whole machine while the command runs, or run it on the host"
    } else {
        return Ok(());
    };
    Err(Error::Usage(why.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_can_not_be_followed_is_refused_by_what_it_is() {
        assert!(
            check_command(false, true, true).is_ok() && check_command(true, true, false).is_ok()
        );
        for (all_cpus, has_proc, part) in [(false, true, "-a"), (true, false, "mount -t proc")] {
            let Err(Error::Usage(message)) = check_command(all_cpus, has_proc, false) else {
                panic!("{part}");
            };
            assert!(message.contains("command") && message.contains(part), "{message}");
            assert!(!message.contains("-p"), "{message}");
        }
    }
}
