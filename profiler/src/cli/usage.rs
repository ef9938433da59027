//! What is wrong with what was typed, in a line.

/// A message of clap in one line: the usage and the pointer to `--help` left out.
#[must_use]
pub fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let message = text.split("\n\nUsage:").next().unwrap_or(&text);
    let lines = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let line = lines.collect::<Vec<_>>().join("; ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::Parser as _;

    #[test]
    fn an_error_is_one_line() {
        for arguments in [
            &["profiler", "-F", "0"][..],
            &["profiler", "-F", "many"],
            &["profiler", "-F", "99", "-c", "1000"],
            &["profiler", "-e", "cycle"],
            &["profiler", "-C", "3-1"],
            &["profiler", "--strickt"],
            &["profiler", "-d", "soon"],
            &["profiler", "--children"],
        ] {
            let line = one_line(&Cli::try_parse_from(arguments).unwrap_err());
            assert!(!line.is_empty() && !line.contains('\n'), "{line:?}");
            assert!(!line.contains("Usage") && !line.contains("--help"), "{line:?}");
        }
    }

    #[test]
    fn an_unknown_event_names_the_near_ones() {
        let error = Cli::try_parse_from(["profiler", "-e", "cycels"]).unwrap_err();
        assert!(one_line(&error).contains("cycles"), "{error}");
    }
}
