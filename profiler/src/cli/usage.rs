//! What is wrong with what was typed, in a line.

use std::{error::Error as _, ffi::OsString};

use clap::{
    Command, CommandFactory as _,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::Cli;

/// What of an option may be mistyped for another to be meant: letters that are missing, too many, others or swapped.
const MISTYPED: usize = 2;
/// What the names of options end with whose values may hold secrets, also those that are refused.
const MAY_BE_SECRET: &[&str] = &["-header", "--otlp", "--pyroscope", "--parca"];

/// The message for a command line that clap refuses, with what may have been meant; the usage and the pointer to
/// `--help` are left out.
#[must_use]
pub fn one_line(error: &clap::Error, typed: &[OsString]) -> String {
    let text = without_secret(error, typed).unwrap_or_else(|| error.to_string());
    let message = text.split("\n\nUsage:").next().unwrap_or(&text);
    let is_wanted = |line: &&str| {
        // Nobody who mistypes an option means a value.
        let unwanted = ["For more information", "tip: to pass"];
        !line.is_empty() && !unwanted.iter().any(|it| line.starts_with(it))
    };
    let mut shown = String::new();
    for line in message.lines().map(str::trim).filter(is_wanted) {
        let between = if shown.is_empty() {
            ""
        } else if shown.ends_with(':') {
            " "
        } else {
            "; "
        };
        shown.extend([between, line]);
    }
    if let Some(meant) = meant(error, typed) {
        shown.extend(["; did you mean --", &meant, "?"]);
    }
    shown.strip_prefix("error: ").unwrap_or(&shown).to_owned()
}

/// What is wrong with a value that nobody may see.
fn without_secret(error: &clap::Error, typed: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(found)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let may_be_secret = |it: &str| {
        let name = it.split([' ', '=']).next().unwrap_or(it);
        MAY_BE_SECRET.iter().any(|end| name.starts_with("--") && name.ends_with(end))
    };
    match error.kind() {
        ErrorKind::ValueValidation if may_be_secret(found) => {
            let why = error.source().map_or_else(|| "it is refused".into(), ToString::to_string);
            Some(format!("invalid value for '{found}': {why}"))
        }
        // The end of a header that has no quotes around it.
        ErrorKind::UnknownArgument
            if !found.starts_with('-')
                && typed.iter().any(|it| may_be_secret(&it.to_string_lossy())) =>
        {
            Some("unexpected argument found; a value with spaces needs quotes".into())
        }
        _ => None,
    }
}

/// Which help tells more: that of the subcommand that was typed, or of the profiler.
#[must_use]
pub fn help_of(typed: &[OsString]) -> String {
    match subcommand(&Cli::command(), typed) {
        Some(subcommand) => format!("profiler {} --help", subcommand.get_name()),
        None => "profiler --help".into(),
    }
}

/// The subcommand that was typed, if one was. It stands first, or behind options that all of them have.
fn subcommand(command: &Command, typed: &[OsString]) -> Option<Command> {
    let is_of_all = |it: &&OsString| {
        let it = it.to_string_lossy();
        let is_letter = |it: u8| matches!(it, b'v' | b'q');
        let are_letters = it.strip_prefix('-').is_some_and(|it| it.bytes().all(is_letter));
        are_letters || it == "--verbose" || it == "--quiet"
    };
    let name = typed.iter().skip(1).find(|it| !is_of_all(it))?;
    command.find_subcommand(name).cloned()
}

/// The option that is most like an unknown one, where clap has not found it: it takes letters that were swapped for
/// others.
fn meant(error: &clap::Error, typed: &[OsString]) -> Option<String> {
    if error.get(ContextKind::SuggestedArg).is_some() {
        return None;
    }
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let unknown = unknown.strip_prefix("--").filter(|it| it.len() > MISTYPED)?;
    let root = Cli::command();
    let command = subcommand(&root, typed).unwrap_or(root);
    let known =
        command.get_arguments().filter(|it| !it.is_hide_set()).filter_map(|it| it.get_long());
    let mistyped = |known: &str| strsim::damerau_levenshtein(unknown, known);
    let nearest = known.map(|it| (mistyped(it), it)).min();
    nearest.filter(|(mistyped, _)| *mistyped <= MISTYPED).map(|(_, known)| known.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn refusal(arguments: &[&str]) -> String {
        let typed: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        one_line(&Cli::try_parse_from(&typed).unwrap_err(), &typed)
    }

    #[test]
    fn an_error_is_one_line() {
        for arguments in [
            &["profiler", "-F", "0"][..],
            &["profiler", "-F", "many"],
            &["profiler", "-F", "99", "-c", "1000"],
            &["profiler", "-e", "cycles:z"],
            &["profiler", "-C", "3-1"],
            &["profiler", "--strickt"],
            &["profiler", "-d", "soon"],
            &["profiler", "--children"],
        ] {
            let line = refusal(arguments);
            assert!(!line.is_empty() && !line.contains('\n'), "{line:?}");
            assert!(!line.contains("Usage") && !line.contains("--help"), "{line:?}");
        }
    }

    #[test]
    fn what_may_be_secret_is_not_printed_when_it_is_refused() {
        for (arguments, expected) in [
            (
                &["--otlp-header", "Authorization=Bearer hunter2"][..],
                "'--otlp-header <NAME=VALUE>': a secret does not belong here",
            ),
            (
                &["--otlp-header=Authorization=Bearer hunter2"],
                "'--otlp-header <NAME=VALUE>': a secret does not belong here",
            ),
            (&["--parca-header=X-Token=hunter2"], "'--parca-header <NAME=VALUE>': a secret"),
            (&["--pyroscope-header", "hunter2"], "'--pyroscope-header <NAME=VALUE>': not NAME"),
            (&["--otlp", "http://me:hunter2@a"], "'--otlp <URL>': a password does not belong"),
            (&["--pyroscope", "http://a/?key=hunter2"], "'--pyroscope <URL>': a URL with a query"),
            (&["--parca", "hunter2"], "'--parca <URL>': not a URL"),
        ] {
            let line = refusal(&[&["profiler", "agent"], arguments].concat());
            assert!(line.starts_with(&format!("invalid value for {expected}")), "{line}");
            assert!(!line.contains("hunter2") && !line.contains('\n'), "{line}");
        }
        for words in [
            &["--otlp-header", "Authorization=Bearer", "hunter2"][..],
            &["--otlp-header=X-Token=@a", "hunter2"],
        ] {
            let line = refusal(&[&["profiler", "agent"], words].concat());
            assert!(line.contains("quotes") && !line.contains("hunter2"), "{line}");
        }
    }

    #[test]
    fn what_was_meant_is_suggested() {
        for (arguments, part) in [
            (&["profiler", "recrod"][..], "'record'"),
            (&["profiler", "-e", "cycles:z"], "column 8: no modifier `z`"),
            (&["profiler", "--pdi", "3"], "did you mean --pid?"),
            (&["profiler", "record", "--pdi", "3"], "did you mean --pid?"),
            (&["profiler", "record", "--durration", "3"], "'--duration'"),
            (&["profiler", "report", "--tere"], "'--tree'"),
            (&["profiler", "diff", "a"], "were not provided: <AFTER>"),
        ] {
            let line = refusal(arguments);
            assert!(line.contains(part) && !line.contains("tip: to pass"), "{line}");
        }
        let line = refusal(&["profiler", "--nothing-like-it"]);
        assert_eq!(line, "unexpected argument '--nothing-like-it' found");
    }

    #[test]
    fn help_is_that_of_the_subcommand() {
        for (typed, help) in [
            (&["profiler", "record", "-d"][..], "profiler record --help"),
            (
                &["profiler", "-vv", "--verbose", "-q", "--quiet", "diff", "record"],
                "profiler diff --help",
            ),
            (&["profiler", "unwind-info"], "profiler unwind-info --help"),
            (&["profiler", "-d", "10"], "profiler --help"),
            (&["profiler", "-o", "record"], "profiler --help"),
            (&["profiler", "recrod"], "profiler --help"),
            (&["profiler"], "profiler --help"),
            (&[], "profiler --help"),
        ] {
            let typed: Vec<OsString> = typed.iter().map(OsString::from).collect();
            assert_eq!(help_of(&typed), help, "{typed:?}");
        }
    }
}
