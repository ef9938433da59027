//! Counts of the processor's PMU. An emulated one counts cycles at a constant rate.

use std::fs;

use profiler::{
    perf::{event::Event, own_count::OwnCount},
    stderr,
};
use serde_json::Value;

use super::stat::{Setting, count, counts_of, stat};

/// So many events of the processor no PMU counts at once.
const TOO_MANY: usize = 16;
/// How often the fixture spins where counters have to be shared: over many of the turns that the kernel gives them.
const LONG: &str = "6000";
/// The number of cycles on ARM.
const CYCLES: &str = "r11";

/// The PMU of the processor; `None`, and said, where there is none of ARM's.
fn pmu() -> Option<String> {
    let devices = fs::read_dir("/sys/bus/event_source/devices").unwrap().flatten();
    let mut names = devices.map(|it| it.file_name().to_string_lossy().into_owned());
    let found = names.find(|it| it.starts_with("armv8_"));
    if found.is_none() {
        stderr::say("skipped: no ARM PMU");
    }
    found
}

/// Whether two numbers differ by so many percent at most.
fn are_near(one: u64, other: u64, percent: u64) -> bool {
    one.abs_diff(other) * 100 <= one.max(other) * percent
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn cycles_are_counted_by_name_number_and_pmu_at_once() {
    let Some(pmu) = pmu() else { return };
    let group = format!("{{cycles,{CYCLES},{pmu}/cpu_cycles/,{pmu}/event=0x11/}}");
    let counts = counts_of(&group, &[], &["spins", "500", "1"]);
    for other in &counts {
        assert!(count(other) > 0 && are_near(count(&counts[0]), count(other), 2), "{counts:#?}");
        assert_eq!(other["running_ns"], counts[0]["running_ns"], "{counts:#?}");
    }
    assert_eq!(counts.len(), 4);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn modifiers_say_which_cycles_count() {
    if pmu().is_none() {
        return;
    }
    let counts = counts_of("{cycles,cycles:u,cycles:k}", &[], &["asks", "20000", "0"]);
    let [all, user, kernel] = [0, 1, 2].map(|at| count(&counts[at]));
    assert!(user > 0 && kernel > 0 && are_near(all, user + kernel, 5), "{counts:#?}");
    let counts = counts_of("{cycles:u,cycles:k}", &[], &["spins", "500", "0"]);
    assert!(count(&counts[0]) > count(&counts[1]), "{counts:#?}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn counts_of_shared_counters_are_scaled() {
    if pmu().is_none() {
        return;
    }
    // The first has a counter always.
    let events = format!("{CYCLES}:D{}", format!(",{CYCLES}").repeat(TOO_MANY));
    let counts = counts_of(&events, &[], &["spins", LONG, "0"]);
    let share = |it: &Value| it["running_share"].as_f64().unwrap();
    assert!(share(&counts[0]) > 0.999, "{counts:#?}");
    assert!(counts[1..].iter().all(|it| share(it) < 0.9), "{counts:#?}");
    let whole = count(&counts[0]);
    assert!(counts.iter().all(|it| are_near(whole, count(it), 5)), "{counts:#?}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn pinned_events_without_a_counter_are_named() {
    if pmu().is_none() {
        return;
    }
    let events = vec![format!("{CYCLES}:D"); TOO_MANY].join(",");
    let arguments = ["-C", "0", "-d", "500ms", "-e", &events];
    let (counts, _, output) = stat(&arguments);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let of = |state: &str| counts.iter().filter(|it| it["state"] == state).count();
    let (counted, failed) = (of("counted"), of("pinned_without_counter"));
    assert!(counted > 0 && failed > 0 && counted + failed == TOO_MANY, "{counts:#?}");
    // What has a counter has it always.
    assert!(counts.iter().all(|it| it["running_share"].as_f64().is_none_or(|it| it > 0.999)));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_usual_events_are_counted_as_far_as_the_pmu_can() {
    if pmu().is_none() {
        return;
    }
    let counted = super::stat::counted();
    let (counts, _, output) = stat(&["--", &counted, "spins", "100", "0"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let of = |name: &str| counts.iter().find(|it| it["event"] == name).unwrap();
    assert_eq!(
        (&of("cycles")["state"], &of("cycles")["ratio_unit"]),
        (&"counted".into(), &"GHz".into())
    );
    for name in ["instructions", "branches", "branch-misses"] {
        let state = of(name)["state"].as_str().unwrap();
        assert!(["counted", "not_supported"].contains(&state), "{counts:#?}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_thread_reads_its_own_counters_where_the_kernel_lets_it() {
    const ACCESS: &str = "/proc/sys/kernel/perf_user_access";
    if pmu().is_none() {
        return;
    }
    let start = || OwnCount::start(&Event::cycles()).unwrap();
    if !fs::exists(ACCESS).unwrap() {
        stderr::say("skipped: this kernel lets no thread read its counters");
        assert_eq!(start().read_directly(), None);
        return;
    }
    for (access, is_allowed) in [("0", false), ("1", true)] {
        let _setting = Setting::set(ACCESS, access);
        let own = start();
        let mut directly = 0;
        for _ in 0..1000 {
            let before = own.read_by_kernel().unwrap();
            let between = own.read_directly();
            let after = own.read_by_kernel().unwrap();
            directly += i32::from(between.is_some());
            let is_between = between.is_none_or(|it| (before..=after).contains(&it));
            assert!(is_between, "{before} {between:?} {after}");
            assert!(own.read().unwrap() >= after);
        }
        // Now and then another event may have the counter.
        assert_eq!(directly > 500, is_allowed, "{directly}");
    }
}
