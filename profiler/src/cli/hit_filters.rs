//! `--filter`, of which each belongs to the `-e` before it.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use profiler_events::{parse_filter, syntax::filter::Filter};

const FILTERS: &str = "filters";
const EVENTS: &str = "events";

/// The filters in the order of the command line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HitFilters(pub Vec<TypedFilter>);

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub struct TypedFilter {
    /// Which of the `-e` it follows, counted from 0; `None` if it comes first.
    pub follows: Option<usize>,
    /// What fields have to be.
    pub filter: Filter,
}

impl Args for HitFilters {
    fn augment_args(command: Command) -> Command {
        command.arg(
            Arg::new(FILTERS)
                .long("filter")
                .value_name("EXPR")
                .value_parser(parse_filter)
                .action(ArgAction::Append)
                .allow_hyphen_values(true)
                .help_heading(super::sampling::FILTERS)
                .hide_short_help(true)
                .help("Sample only hits of the preceding tracepoint whose fields match: 'prev_prio < 100'")
                .long_help(
                    "Sample only hits of the preceding tracepoint whose fields match: 'prev_prio < 100'.\n\n\
                     Fields are compared with numbers by == != < <= > >= and &, and with text by ==, != and ~, \
                     which takes a pattern. && || ! and parentheses combine that. What fields there are is in \
                     /sys/kernel/tracing/events/SYSTEM/NAME/format.",
                ),
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for HitFilters {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let places = |name| matches.indices_of(name).into_iter().flatten();
        let filters = matches.get_many::<Filter>(FILTERS).into_iter().flatten();
        let filters = places(FILTERS).zip(filters).map(|(place, filter)| TypedFilter {
            follows: places(EVENTS).take_while(|event| *event < place).count().checked_sub(1),
            filter: filter.clone(),
        });
        Ok(Self(filters.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::cli::Cli;
    use clap::Parser as _;

    #[test]
    fn a_filter_belongs_to_the_event_before_it() {
        let arguments = [
            "profiler",
            "--filter",
            "a == 0",
            "-e",
            "x:x,y:y",
            "--filter",
            "a == 1",
            "-e",
            "cycles",
            "-e",
            "z:z",
            "--filter=a == 2",
            "--filter",
            "a == 3",
        ];
        let filters = Cli::try_parse_from(arguments).unwrap().stream.sampling.hit_filters.0;
        let found: Vec<_> = filters.iter().map(|it| (it.follows, it.filter.to_string())).collect();
        let expected = [(None, 0), (Some(0), 1), (Some(2), 2), (Some(2), 3)];
        assert_eq!(found, expected.map(|(event, number)| (event, format!("a == {number}"))));
        let wrong = Cli::try_parse_from(["profiler", "-e", "x:x", "--filter", "a ="]).unwrap_err();
        assert!(wrong.to_string().contains("column 3"), "{wrong}");
    }
}
