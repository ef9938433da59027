//! A line that the user types.

/// What it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Search,
    Filter,
    Save,
}

/// A line that is being typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) purpose: Purpose,
    pub(super) text: String,
    /// What is wrong with it.
    pub(super) wrong: Option<String>,
}

impl Prompt {
    /// A line that begins with what is most likely.
    pub(super) fn new(purpose: Purpose, text: &str) -> Self {
        Self { purpose, text: text.to_owned(), wrong: None }
    }

    /// What stands before it.
    pub(super) fn label(&self) -> &'static str {
        match self.purpose {
            Purpose::Search => "/",
            Purpose::Filter => "filter (pid N, cpu N, user NAME, in CONTAINER or UNIT): ",
            Purpose::Save => "save as (.html .pb.gz .svg .folded): ",
        }
    }
}

/// Whether a regular expression has a capital letter that stands for itself, which that in `\S` does not.
pub(super) fn has_capital(pattern: &str) -> bool {
    let mut is_escaped = false;
    pattern.chars().any(|it| {
        let stands_for_itself = !std::mem::take(&mut is_escaped);
        is_escaped = stands_for_itself && it == '\\';
        stands_for_itself && it.is_uppercase()
    })
}

/// What was typed at [`Purpose::Filter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Process(u32),
    Cpu(u32),
    User(String),
    Group(String),
}

impl Wanted {
    /// From the text; a number is a process.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (what, value) = match text.split_once(char::is_whitespace) {
            Some((what, value)) => (what, value.trim()),
            None => ("pid", text),
        };
        let number = || value.parse().map_err(|_| format!("'{value}' is not a number"));
        match what {
            "pid" | "process" => number().map(Self::Process),
            "cpu" => number().map(Self::Cpu),
            "user" | "uid" => Ok(Self::User(value.to_owned())),
            "in" | "container" | "unit" => Ok(Self::Group(value.to_owned())),
            _ => Err(format!("'{what}' is none of pid, cpu, user and in")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capital_is_one_that_was_meant() {
        for (pattern, has) in
            [("memc", false), (r"\S+ \w", false), ("Memc", true), (r"\\S", true), (r"\.Ä", true)]
        {
            assert_eq!(has_capital(pattern), has, "{pattern}");
        }
    }

    #[test]
    fn filters_are_typed_as_they_are_said() {
        for (text, wanted) in [
            ("812", Wanted::Process(812)),
            (" pid  812 ", Wanted::Process(812)),
            ("cpu 3", Wanted::Cpu(3)),
            ("user ann", Wanted::User("ann".into())),
            ("in nginx.service", Wanted::Group("nginx.service".into())),
        ] {
            assert_eq!(Wanted::parse(text), Ok(wanted), "{text}");
        }
        for text in ["", "cpu x", "pid -1", "planet mars"] {
            assert!(Wanted::parse(text).is_err(), "{text}");
        }
    }
}
