//! `man`: the man page, made from the definition of the command line.

use std::{io, process::ExitCode};

use clap::{Arg, CommandFactory as _};
use clap_mangen::{
    Man,
    roff::{Roff, bold, italic, roman},
};

use super::answer;
use crate::cli::Cli;

const SYNOPSIS: &[&str] = &[
    "profiler [OPTION]...",
    "profiler record [OPTION]... [-o FILE]... [-- COMMAND [ARGUMENT]...]",
    "profiler report [OPTION]... [FILE]",
    "profiler convert [OPTION]... IN OUT",
    "profiler diff [OPTION]... BEFORE AFTER",
    "profiler stat [OPTION]... [-- COMMAND [ARGUMENT]...]",
    "profiler list [--json] [GLOB]",
    "profiler doctor [--json]",
    "profiler unwind-info FILE [--at PC]",
    "profiler completions SHELL",
    "profiler man",
];

const EXAMPLES: [(&str, &str); 8] = [
    ("sudo profiler record -d 10", "Record the whole machine for ten seconds."),
    ("sudo profiler record -o out.folded -- make -j8", "Record a command with all that it starts."),
    (
        "profiler report --tree --focus parse",
        "Show who calls what matches `parse`, and what that calls.",
    ),
    ("profiler diff before.pb.gz after.pb.gz", "Show what takes more or less time than before."),
    ("sudo profiler -p 812 -F 999 --lines", "Stream the stacks of a process, with source lines."),
    ("sudo profiler -d 10 --top 20", "Show the twenty hottest functions."),
    (
        "sudo profiler -f json | jq 'select(.type == \"sample\").comm'",
        "Work on samples with other tools.",
    ),
    ("profiler doctor", "Show whether it can run here, and what to fix."),
];

const ENVIRONMENT: [(&str, &str); 3] = [
    ("DEBUGINFOD_URLS", "Servers that --debuginfod asks for debug files, a blank between two."),
    (
        "SUDO_UID, SUDO_GID, SUDO_USER",
        "Set by sudo(8): the user that files of record belong to, and that its command runs as.",
    ),
    (
        "DISPLAY, WAYLAND_DISPLAY, SSH_CONNECTION",
        "Say whether --open can start a browser here, or how the page is seen on another machine.",
    ),
];

const EXIT_STATUS: [(&str, &str); 8] = [
    ("0", "The run is done. Of record and stat with a command: whatever that exited with."),
    ("1", "The kernel refused, or writing failed."),
    ("2", "The command line makes no sense."),
    ("3", "Samples were lost, and --strict was given."),
    ("4", "A condition of diff --fail-if holds."),
    ("126", "The command of record or stat is not executable."),
    ("127", "There is no such command."),
    ("130", "A second signal ended the run before the last samples were written."),
];

const SEE_ALSO: &str = "perf-record(1), perf_event_open(2), bpf(2), debuginfod(8), sudo(8)";

/// Prints the man page.
pub(super) fn page() -> ExitCode {
    let mut text = Vec::new();
    // Memory takes everything.
    let _ = write_page(&mut text);
    answer(&String::from_utf8_lossy(&text))
}

fn write_page(to: &mut dyn io::Write) -> io::Result<()> {
    // One section of options, as in other pages.
    let flat = |it: Arg| it.help_heading(None::<&str>);
    let mut command = Cli::command().before_help("").after_long_help("").mut_args(flat);
    command.build();
    let subcommands: Vec<_> = command.get_subcommands().cloned().collect();
    let man = Man::new(command.clone());
    man.render_title(to)?;
    man.render_name_section(to)?;
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    for line in SYNOPSIS {
        roff.text([bold(*line)]).control("br", []);
    }
    roff.to_writer(to)?;
    man.render_description_section(to)?;
    man.render_options_section(to)?;
    // Not the options that it has in common with the rest.
    let text = |it: &Arg| it.get_help().map(ToString::to_string);
    let known: Vec<_> = command.get_arguments().map(text).collect();
    for subcommand in subcommands.into_iter().filter(|it| it.get_name() != "help") {
        let name = format!("profiler {}", subcommand.get_name());
        let mut roff = Roff::new();
        roff.control("SH", [&*name.to_uppercase()]);
        let about = subcommand.get_long_about().or(subcommand.get_about());
        roff.text([roman(about.map(ToString::to_string).unwrap_or_default())]);
        let own = subcommand
            .get_arguments()
            .filter(|it| !known.contains(&text(it)) || it.is_positional());
        for argument in own.filter(|it| !it.is_hide_set()) {
            roff.control("TP", []);
            roff.text([bold(argument.to_string())]);
            let help = argument.get_long_help().or(argument.get_help());
            roff.text([roman(help.map(ToString::to_string).unwrap_or_default())]);
        }
        roff.to_writer(to)?;
    }
    section(to, "EXIT STATUS", &EXIT_STATUS)?;
    section(to, "ENVIRONMENT", &ENVIRONMENT)?;
    section(to, "EXAMPLES", &EXAMPLES)?;
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]).text([italic(SEE_ALSO)]);
    roff.to_writer(to)
}

/// A section of terms, and what they mean.
fn section(to: &mut dyn io::Write, name: &str, terms: &[(&str, &str)]) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [name]);
    for (term, meaning) in terms {
        roff.control("TP", []).text([bold(*term)]).text([roman(*meaning)]);
    }
    roff.to_writer(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_its_sections_and_each_option_once() {
        let mut text = Vec::new();
        write_page(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let sections = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "\"PROFILER RECORD\""];
        for section in sections.into_iter().chain([
            "\"EXIT STATUS\"",
            "ENVIRONMENT",
            "EXAMPLES",
            "\"SEE ALSO\"",
        ]) {
            assert!(text.contains(&format!("\n.SH {section}")), "{section}: {text}");
        }
        assert_eq!(text.matches("buffer\\-size").count(), 1, "{text}");
        assert!(text.contains("as\\-root"), "{text}");
    }
}
