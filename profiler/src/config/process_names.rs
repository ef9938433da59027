//! Which process is meant by a name.

use std::collections::HashMap;

use profiler_events::{did_you_mean, near};

use crate::{
    error::{Error, Result},
    procfs::called::Called,
};

/// How many processes of a name are listed, and how much of each.
const LISTED: usize = 10;
const LISTED_CHARS: usize = 100;

/// The process of this name. Of several, one that all others descend from is meant where these are sampled with it.
pub(crate) fn find(name: &str, all: &[Called], with_children: bool) -> Result<u32> {
    let found: Vec<&Called> =
        all.iter().filter(|it| it.names.iter().any(|it| it == name)).collect();
    match found.as_slice() {
        [] => {
            let names = all.iter().flat_map(|it| it.names.iter().cloned());
            let meant = did_you_mean(&near(name, names));
            Err(Error::Usage(format!("-p {name}: no process is called that{meant}")))
        }
        [one] => Ok(one.pid),
        several => match ancestor(several, all) {
            Some(pid) if with_children => Ok(pid),
            root => Err(ambiguous(name, several, root)),
        },
    }
}

/// The one of some processes that all others of them descend from.
fn ancestor(some: &[&Called], all: &[Called]) -> Option<u32> {
    let parents: HashMap<u32, u32> = all.iter().map(|it| (it.pid, it.parent)).collect();
    let descends = |pid: u32, from: u32| {
        let up = std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
        // Read one after another, parents may be out of date, and in a circle.
        up.take(parents.len()).any(|it| it == from)
    };
    let is_ancestor = |it: &&&Called| some.iter().all(|other| descends(other.pid, it.pid));
    some.iter().find(is_ancestor).map(|it| it.pid)
}

fn ambiguous(name: &str, several: &[&Called], root: Option<u32>) -> Error {
    let count = several.len();
    let why = match root {
        Some(pid) => format!(
            "-p {name}: {count} processes are called that, {pid} and descendants of it: give -p {pid} --children \
             for all of them"
        ),
        None => format!("-p {name}: {count} processes are called that: give -p PID"),
    };
    let line = |it: &&Called| {
        let shown: String = it.shown().chars().take(LISTED_CHARS).collect();
        format!("{:>7}  {shown}", it.pid)
    };
    let mut choices: Vec<String> = several.iter().take(LISTED).map(line).collect();
    if count > LISTED {
        choices.push(format!("         and {} more", count - LISTED));
    }
    Error::Choice { why, choices: choices.join("\n  ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(pid: u32, parent: u32, name: &str) -> Called {
        let command_line = format!("/bin/{name} -x");
        Called { pid, parent, names: vec![name.into(), format!("{name}-main")], command_line }
    }

    /// Two of one family, two that are strangers, and one alone.
    fn machine() -> Vec<Called> {
        vec![
            called(1, 0, "init"),
            called(12, 11, "nginx"),
            called(11, 10, "sh"),
            called(10, 1, "nginx"),
            called(20, 1, "worker"),
            called(21, 1, "worker"),
        ]
    }

    fn refusal(name: &str, all: &[Called]) -> (String, String) {
        let error = find(name, all, false).unwrap_err();
        (error.to_string(), error.advice().unwrap_or_default().to_owned())
    }

    #[test]
    fn a_name_that_one_process_has_is_that_process() {
        assert_eq!(find("sh", &machine(), false).unwrap(), 11);
        assert_eq!(find("init-main", &machine(), false).unwrap(), 1);
    }

    #[test]
    fn of_a_family_its_ancestor_is_meant_with_all_its_children() {
        let (why, choices) = refusal("nginx", &machine());
        assert!(why.contains("-p 10 --children"), "{why}");
        assert_eq!(choices, "     12  /bin/nginx -x\n       10  /bin/nginx -x");
        assert_eq!(find("nginx", &machine(), true).unwrap(), 10);
    }

    #[test]
    fn strangers_of_one_name_are_listed() {
        let (why, choices) = refusal("worker", &machine());
        assert!(why.ends_with("2 processes are called that: give -p PID"), "{why}");
        assert_eq!(choices.lines().count(), 2);
        assert!(find("worker", &machine(), true).is_err());
        let many: Vec<Called> = (1..=13).map(|pid| called(pid, 0, "a")).collect();
        let (why, choices) = refusal("a", &many);
        assert!(why.contains("13 processes") && choices.ends_with("and 3 more"), "{choices}");
        assert_eq!(choices.lines().count(), LISTED + 1);
        // Parents that were read at different times.
        let circle = [called(1, 2, "a"), called(2, 1, "a"), called(3, 9, "a")];
        assert!(refusal("a", &circle).0.contains("give -p PID"));
    }

    #[test]
    fn for_a_name_that_none_has_near_ones_are_suggested() {
        let (why, _) = refusal("ngnix", &machine());
        assert_eq!(why, "-p ngnix: no process is called that; did you mean nginx or nginx-main?");
        assert_eq!(refusal("postgres", &machine()).0, "-p postgres: no process is called that");
    }
}
