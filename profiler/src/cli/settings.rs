//! A file with settings of `agent`: TOML, in which each option is a key.
//!
//! What was typed comes first, then what the file says, then what is built in. All of it becomes one command line, so that a
//! key means what its option means, and can't have another check or another default.

use std::{collections::BTreeMap, ffi::OsString, fmt::Write as _};

use clap::{
    Arg, ArgAction, ArgMatches, Command, CommandFactory as _, error::ErrorKind, parser::ValueSource,
};
use profiler_events::{did_you_mean, near};
use toml::{Spanned, Value};

use super::{Cli, one_line};

/// What holds where nobody says anything else: a rate off the beat of timers, that is hardly to be noticed.
const BUILT_IN: &str = "frequency = 19\n";

const AGENT: &str = "agent";
/// Options that are no settings.
const TYPED_ONLY: &[&str] = &["config", "print-config", "help", "version", "verbose"];

/// A file with settings.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// What it is called, for messages.
    pub name: &'a str,
    /// What it says.
    pub text: &'a str,
}

/// The command line that `agent` has with these settings.
///
/// # Errors
///
/// Says in a line what is wrong with the file, and in which line of it.
pub fn settled(typed: &[OsString], file: Option<File>) -> Result<Vec<OsString>, String> {
    let mut words = typed.to_vec();
    let built_in = File { name: "built in", text: BUILT_IN };
    for file in file.into_iter().chain([built_in]) {
        words.extend(missing(&words, file)?);
    }
    let name = file.map_or("the settings", |it| it.name);
    match Cli::command().try_get_matches_from(&words) {
        Ok(_) => Ok(words),
        Err(error) => Err(format!("{name}: {}", one_line(&error, &words))),
    }
}

/// All settings of a command line as such a file, with what each is for.
#[must_use]
pub fn shown(words: &[OsString]) -> String {
    let matches = matches_of(words);
    let mut text =
        String::from("# The settings of `profiler agent`. Those behind a # are not set.\n");
    let mut heading = None;
    let mut arguments = arguments();
    let headings: Vec<_> =
        arguments.iter().map(|it| it.get_help_heading().map(str::to_owned)).collect();
    // Those of a group together, and groups as the help has them.
    arguments
        .sort_by_key(|arg| headings.iter().position(|it| it.as_deref() == arg.get_help_heading()));
    for arg in &arguments {
        if heading != arg.get_help_heading() {
            heading = arg.get_help_heading();
            let _ = write!(text, "\n## {}\n", heading.unwrap_or("Other"));
        }
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = write!(text, "\n# {help}\n");
        let key = arg.get_long().unwrap_or_default();
        let values = matches.as_ref().map_or_else(Vec::new, |it| values_of(it, arg));
        let _ = match (&*values, arg.get_action()) {
            ([], ArgAction::SetTrue) => writeln!(text, "# {key} = true"),
            ([], _) => {
                let names = arg.get_value_names().unwrap_or_default();
                let like = names.first().map_or_else(|| "true".into(), |it| format!("\"{it}\""));
                writeln!(text, "# {key} = {like}")
            }
            (_, ArgAction::SetTrue) => writeln!(text, "{key} = true"),
            ([value], ArgAction::Set) => {
                let number = value.parse().map(Value::Integer);
                writeln!(text, "{key} = {}", number.unwrap_or_else(|_| value.as_str().into()))
            }
            _ => writeln!(text, "{key} = {}", Value::from(values)),
        };
    }
    text
}

/// The options that are settings, in the order of the help.
fn arguments() -> Vec<Arg> {
    let mut root = Cli::command();
    root.build();
    let agent = root.find_subcommand(AGENT).map(Command::get_arguments);
    let is_setting = |it: &&Arg| {
        let name = it.get_long().filter(|name| !TYPED_ONLY.contains(name));
        name.is_some() && !it.is_hide_set()
    };
    agent.into_iter().flatten().filter(is_setting).cloned().collect()
}

fn matches_of(words: &[OsString]) -> Option<ArgMatches> {
    let matches = Cli::command().try_get_matches_from(words).ok()?;
    matches.subcommand_matches(AGENT).cloned()
}

/// What was given for an option, or is its default.
fn values_of(matches: &ArgMatches, arg: &Arg) -> Vec<String> {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return if matches.get_flag(arg.get_id().as_str()) {
            vec![String::new()]
        } else {
            Vec::new()
        };
    }
    let raw = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
    raw.map(|it| it.to_string_lossy().into_owned()).collect()
}

/// The options of a file that the command line does not have, and nothing that it rules out.
fn missing(words: &[OsString], File { name, text }: File) -> Result<Vec<OsString>, String> {
    let line = |at: usize| 1 + text.get(..at).unwrap_or(text).matches('\n').count();
    let keys: BTreeMap<Spanned<String>, Spanned<Value>> =
        toml::from_str(text).map_err(|error| {
            let line = line(error.span().map_or(0, |it| it.start));
            format!("{name}:{line}: {}", error.message().lines().collect::<Vec<_>>().join(", "))
        })?;
    let arguments = arguments();
    let taken = taken(words);
    let mut more = Vec::new();
    for (key, value) in keys {
        let failed = |why: String| format!("{name}:{}: {why}", line(key.span().start));
        let Some(arg) = arguments.iter().find(|it| it.get_long() == Some(key.get_ref())) else {
            let known = arguments.iter().filter_map(|it| it.get_long()).map(str::to_owned);
            let near = did_you_mean(&near(key.get_ref(), known));
            return Err(failed(format!("no setting is called `{}`{near}", key.get_ref())));
        };
        let options = options(arg, key.get_ref(), value.into_inner()).map_err(failed)?;
        check(&options).map_err(failed)?;
        if !taken.iter().any(|it| it == arg.get_id().as_str()) {
            more.extend(options);
        }
    }
    Ok(more)
}

/// The options that are on a command line, and those that they rule out.
fn taken(words: &[OsString]) -> Vec<String> {
    let Some(matches) = matches_of(words) else { return Vec::new() };
    let mut root = Cli::command();
    root.build();
    let Some(agent) = root.find_subcommand(AGENT) else { return Vec::new() };
    let is_typed = |it: &&Arg| {
        let id = it.get_id().as_str();
        matches.try_contains_id(id).is_ok_and(|it| it)
            && matches.value_source(id) == Some(ValueSource::CommandLine)
    };
    let typed: Vec<&Arg> = agent.get_arguments().filter(is_typed).collect();
    let ruled_out = typed.iter().flat_map(|it| agent.get_arg_conflicts_with(it));
    let all = typed.iter().copied().chain(ruled_out);
    all.map(|it| it.get_id().to_string()).collect()
}

/// What a key and its value are on a command line.
fn options(arg: &Arg, key: &str, value: Value) -> Result<Vec<OsString>, String> {
    let found = value.type_str();
    let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
    let is_list = matches!(arg.get_action(), ArgAction::Append);
    let word = |value: Value| match value {
        Value::String(text) => Some(format!("--{key}={text}").into()),
        Value::Integer(number) => Some(format!("--{key}={number}").into()),
        Value::Float(number) => Some(format!("--{key}={number}").into()),
        _ => None,
    };
    let words = match value {
        Value::Boolean(is_on) if is_flag => {
            Some(is_on.then(|| format!("--{key}").into()).into_iter().collect())
        }
        Value::Array(values) if is_list => values.into_iter().map(word).collect(),
        value if !is_flag => word(value).map(|it| vec![it]),
        _ => None,
    };
    let wanted = match (is_flag, is_list) {
        (true, _) => "true or false",
        (_, true) => "text, a number or a list of these",
        _ => "text or a number",
    };
    words.ok_or_else(|| format!("`{key}` takes {wanted}, and this is of type {found}"))
}

/// Whether the options have values that they take. What they need beside them, others may say.
fn check(options: &[OsString]) -> Result<(), String> {
    let words: Vec<OsString> = ["profiler", AGENT]
        .into_iter()
        .map(OsString::from)
        .chain(options.iter().cloned())
        .collect();
    match Cli::command().try_get_matches_from(&words) {
        Err(error)
            if !matches!(
                error.kind(),
                ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict
            ) =>
        {
            Err(one_line(&error, &words))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::units::Frequency;

    fn words(all: &[&str]) -> Vec<OsString> {
        ["profiler", "agent"].iter().chain(all).map(OsString::from).collect()
    }

    fn with(typed: &[&str], text: &str) -> Result<Vec<OsString>, String> {
        settled(&words(typed), Some(File { name: "a.toml", text }))
    }

    fn args(words: &[OsString]) -> crate::cli::AgentArgs {
        match Cli::try_parse_from(words).unwrap().command {
            Some(crate::cli::Command::Agent(args)) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_typed_comes_before_the_file_and_that_before_what_is_built_in() {
        let rate = |words: &[OsString]| match args(words).sampling.frequency {
            Some(Frequency::Hz(rate)) => rate,
            other => panic!("{other:?}"),
        };
        assert_eq!(rate(&settled(&words(&[]), None).unwrap()), 19);
        let file = "frequency = 49\nwindow = \"5m\"\nallow-remote = false\nkeep-bytes = \"2G\"\n";
        let all = with(&["--window", "30"], file).unwrap();
        assert_eq!((rate(&all), args(&all).window.as_secs()), (49, 30));
        assert_eq!((args(&all).keep_bytes, args(&all).allow_remote), (2 << 30, false));
        // What rules an option out comes in its place.
        let by_period = args(&with(&["-c", "1000"], file).unwrap()).sampling;
        assert_eq!((by_period.frequency, by_period.period.is_some()), (None, true));
        let lists = args(&with(&[], "comm = [\"ng*\", \"web\"]\nlines = true\n").unwrap()).sampling;
        assert!(lists.lines);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, why) in [
            ("\n\nwindw = 60", "a.toml:3: no setting is called `windw`; did you mean window?"),
            (
                "keep = \"7d\"\nwindow = true",
                "a.toml:2: `window` takes text or a number, and this is of type boolean",
            ),
            ("lines = 1", "a.toml:1: `lines` takes true or false, and this is of type integer"),
            (
                "window = [1]",
                "a.toml:1: `window` takes text or a number, and this is of type array",
            ),
            ("config = \"b.toml\"", "a.toml:1: no setting is called `config`"),
            ("# a\nwindow = \"soon\"", "a.toml:2: invalid value 'soon' for '--window <TIME>'"),
            ("window = 1\nwindow = 2", "a.toml:2: duplicate key"),
            ("window 1", "a.toml:1: "),
            ("children = true", "a.toml: the following required arguments were not provided"),
        ] {
            let error = with(&[], text).unwrap_err();
            assert!(error.starts_with(why), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn what_may_be_secret_is_not_printed_when_it_is_refused() {
        for text in [
            "otlp-header = \"Authorization=Bearer hunter2\"",
            "otlp-header = [\"X-Token=$A\", \"Authorization=Bearer hunter2\"]",
            "pyroscope = \"http://me:hunter2@a\"",
        ] {
            let error = with(&[], text).unwrap_err();
            assert!(error.starts_with("a.toml:1: invalid value for '--"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_header_may_be_typed_and_its_store_be_in_the_file() {
        let all = with(&["--otlp-header", "X-Team=a"], "otlp = \"http://a\"").unwrap();
        let sending = args(&all).sending;
        assert_eq!((sending.otlp.is_some(), sending.otlp_header.len()), (true, 1));
        let cert = with(&["--client-cert", "a"], "client-key = \"b\"").unwrap();
        assert!(args(&cert).sending.client_key.is_some());
        // Before the file is read.
        assert!(Cli::try_parse_from(words(&["--otlp-header", "X-Team=a"])).is_ok());
        assert!(Cli::try_parse_from(words(&["--client-cert", "a"])).is_ok());
    }

    #[test]
    fn what_is_shown_means_the_same() {
        let text = "frequency = 49\ncomm = [\"ng*\", \"web\"]\nlines = true\nlisten = \"none\"\n";
        let first = with(&["--window", "30", "-e", "cpu-clock"], text).unwrap();
        let again = with(&[], &shown(&first)).unwrap();
        assert_eq!(format!("{:?}", args(&first)), format!("{:?}", args(&again)));
        assert_eq!(shown(&first), shown(&again));
        assert!(shown(&first).contains("\nlisten = \"none\"\n"), "{}", shown(&first));
        assert!(shown(&first).contains("\n# children = true\n"), "{}", shown(&first));
    }
}
