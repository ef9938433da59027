//! `diff`, as a user runs it: no privileges, no kernel.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    process::{Command, Output},
};

const FILES: [(&str, &str); 3] = [
    ("before.folded", "a;main;parse 10000\na;main;write 4000\n"),
    ("after.folded", "a;main;parse 12000\na;main;write 4030\n"),
    ("bad.folded", "a;main\n"),
];

fn diff(arguments: &[&str]) -> (Output, Option<String>) {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in FILES {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
    let output = command.arg("diff").args(arguments).current_dir(dir.path()).output().unwrap();
    (output, fs::read_to_string(dir.path().join("out.folded")).ok())
}

#[test]
fn what_has_changed_is_shown_and_written() {
    let (output, written) = diff(&["before.folded", "after.folded", "-o", "out.folded"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("+20.0%  parse\n") && !text.contains("write"), "{text}");
    assert_eq!(written.unwrap(), "a;main;parse 10000 12000\na;main;write 4000 4030\n");
}

#[test]
fn changes_are_drawn_by_the_extension() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in FILES {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let draw = |output: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
        command.args(["diff", "before.folded", "after.folded", "-o", output]).args(more);
        let result = command.current_dir(dir.path()).output().unwrap();
        let text = fs::read_to_string(dir.path().join(output)).unwrap_or_default();
        (result.status.code(), String::from_utf8(result.stderr).unwrap(), text)
    };
    let parse = "<title>parse (12,000 samples, 74.86%; before 10,000: +20.0%)</title>";
    let (code, said, svg) = draw("out.svg", &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("wrote out.svg, for any browser"), "{said}");
    assert!(svg.starts_with("<?xml") && svg.contains(parse), "{svg}");
    let (_, _, svg) = draw("out.svg", &["--normalize"]);
    assert!(svg.contains("; before 11,450: +4.8%)</title>"), "{svg}");
    let (code, said, html) = draw("out.html", &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(html.contains("\"change\":{\"scale\":1.0,\"deviations\":"));
    for other in ["out.pb.gz", "out.png", "-"] {
        let (code, said, text) = draw(other, &[]);
        assert_eq!((code, text.as_str()), (Some(2), ""));
        assert!(said.contains("are written to .svg, .html and .folded"), "{said}");
    }
    // Nothing is left beside them.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), FILES.len() + 2);
}

#[test]
fn a_condition_fails_a_script() {
    for (condition, code) in
        [("self(parse) > +5%", 4), ("self(write) > +5%", 0), ("total(main) < +5%", 0)]
    {
        let (output, _) = diff(&["before.folded", "after.folded", "--fail-if", condition]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{condition}: {said}");
        assert_eq!(said.contains(condition), code == 4, "{said}");
    }
}

#[test]
fn what_can_not_be_compared_is_refused() {
    for (arguments, code, part) in [
        (&["before.folded"][..], 2, "AFTER"),
        (&["before.folded", "none.folded"], 1, "cannot read none.folded"),
        (&["bad.folded", "after.folded"], 1, "cannot read bad.folded: line 1"),
        (&["before.folded", "after.folded", "--fail-if", "parse > 5%"], 2, "total(REGEX) > +5%"),
    ] {
        let (output, _) = diff(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}
