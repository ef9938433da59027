//! Several events in one run, each a source of samples by itself.

use serde_json::Value;

use super::ledger::{assert_identity, assert_sound};
use crate::support::{Program, Run, parse_json, run, symbols};

pub(crate) const EVENTS: [&str; 2] = ["cpu-clock", "page-faults"];

/// So many samples of each event, and maybe more.
fn samples_of_each(run: &mut Run, least: usize) -> Vec<Value> {
    let mut samples: Vec<Value> = Vec::new();
    let of =
        |samples: &[Value], event: &str| samples.iter().filter(|it| it["event"] == event).count();
    while EVENTS.into_iter().any(|event| of(&samples, event) < least) {
        samples.push(run.sample(|_| true));
    }
    samples
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn two_events_at_once_are_each_sampled_and_accounted_for() {
    let program = Program::start("faults.c");
    // The program is in the kernel half of the time, so the clock often interrupts what a fault has begun.
    let arguments = ["-f", "json", "-e", EVENTS[0], "-e", EVENTS[1], "-F", "1999"];
    let mut run = Run::start(&[&arguments[..], &["-p", &program.pid()]].concat());
    let mut samples = samples_of_each(&mut run, 200);
    let ended = run.end_by(libc::SIGINT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let (others, summary) = parse_json(&ended.stdout);
    samples.extend(others);

    // All together as if they were one, and each by itself.
    assert_sound(&samples, &summary);
    let sources = summary["sources"].as_array().unwrap();
    assert_eq!(sources.len(), EVENTS.len(), "{summary}");
    for (source, event) in sources.iter().zip(EVENTS) {
        assert_eq!(source["event"], event, "{summary}");
        let own = samples.iter().filter(|it| it["event"] == event).cloned();
        assert_sound(&own.collect::<Vec<Value>>(), source);
        assert_eq!(source["lost"]["scratch_busy"], 0, "{source}");
    }
    // What moves the periods of the clock is nothing to the faults.
    assert_eq!((&sources[0]["dithered"], &sources[1]["dithered"]), (&true.into(), &false.into()));
    let is_fault = |it: &&Value| it["event"] == EVENTS[1];
    let in_touch = |it: &Value| symbols(&it["user"]).first() == Some(&"touch");
    assert!(samples.iter().filter(is_fault).any(in_touch), "{summary}");

    let stderr = ended.stderr;
    let title = "cpu-clock at 1999 Hz and page-faults at 1999 Hz for ";
    assert!(stderr.contains(title), "{stderr}");
    assert!(stderr.contains("\ncpu-clock at 1999 Hz:\n"), "{stderr}");
    assert!(stderr.contains("\npage-faults at 1999 Hz:\n"), "{stderr}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_single_event_is_not_listed_as_one_of_several() {
    let output = run(&["-f", "json", "-e", "page-faults", "-c", "1", "-d", "1"]);
    let (_, summary) = parse_json(&String::from_utf8(output.stdout).unwrap());
    assert_identity(&summary);
    assert_eq!((summary.get("sources"), &summary["event"]), (None, &"page-faults".into()));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_event_can_be_given_once_and_four_at_a_time() {
    let message = |events: &[&str]| {
        let arguments: Vec<&str> = events.iter().flat_map(|event| ["-e", event]).collect();
        let output = run(&[&arguments[..], &["-d", "1", "-o", "/dev/null"]].concat());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, twice) = message(&["faults", "cpu-clock", "page-faults"]);
    assert!(
        code == Some(2) && twice.contains("-e page-faults: this event was given twice"),
        "{twice}"
    );
    let four = ["cpu-clock", "task-clock", "page-faults", "context-switches"];
    let (code, five) = message(&[&four[..], &["cpu-migrations"]].concat());
    assert!(code == Some(2) && five.contains("-e: at most 4 events at a time, not 5"), "{five}");
    let (code, ledger) = message(&four);
    assert!(code == Some(0) && ledger.contains("\ncontext-switches at 99 Hz:\n"), "{ledger}");
}
