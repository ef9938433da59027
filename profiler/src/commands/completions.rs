//! `completions`: what shells complete, made from the definition of the command line.
//!
//! Processes come and go, so the shells are asked for them: zsh and fish know how to list them, and bash is told.

use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::{Shell, generate};

use super::answer;
use crate::cli::Cli;

/// How bash and fish complete processes.
const OF_BASH: &str = include_str!("completions/processes.bash");
const OF_FISH: &str = include_str!("completions/processes.fish");
/// What zsh is told to do for a process, and what it is to do.
const ANYTHING: &str = ":PID|NAME:_default'";
const PROCESSES: &str = ":PID|NAME:_pids'";

/// Prints the completions of a shell.
pub(super) fn run(shell: Shell) -> ExitCode {
    answer(&script(shell))
}

fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "profiler", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script + OF_BASH,
        Shell::Fish => script + OF_FISH,
        Shell::Zsh => script.replace(ANYTHING, PROCESSES),
        _ => script,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_list_processes_wherever_they_are_named() {
        // By the short option and the long one.
        assert_eq!(script(Shell::Zsh).matches(PROCESSES).count(), 12);
        let fish = script(Shell::Fish);
        for condition in [
            "__fish_profiler_needs_command",
            "__fish_profiler_using_subcommand agent",
            "__fish_profiler_using_subcommand record",
            "__fish_profiler_using_subcommand serve",
            "__fish_profiler_using_subcommand stat",
            "__fish_profiler_using_subcommand top",
        ] {
            // Those that the lines above use.
            let line = format!(r#"complete -c profiler -n "{condition}" -s p -l pid -"#);
            assert_eq!(fish.matches(&line).count(), 2, "{condition}");
        }
        assert!(script(Shell::Bash).starts_with("_profiler() {\n"));
    }
}
