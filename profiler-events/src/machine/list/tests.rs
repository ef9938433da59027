use super::*;
use crate::{
    Purpose,
    fixture::{Fixture, amd, arm, intel_hybrid},
    parse,
};

fn names(machine: &Fixture, pattern: &str) -> Vec<String> {
    machine.machine().list(pattern).events.into_iter().map(|it| it.name).collect()
}

#[test]
fn a_pattern_is_for_whole_names_and_a_word_for_parts() {
    let machine = intel_hybrid();
    assert_eq!(names(&machine, "sched:sched_s*"), ["sched:sched_stat_wait", "sched:sched_switch"]);
    assert_eq!(
        names(&machine, "clock"),
        ["cpu-clock", "task-clock", "uncore_imc_0/clockticks/", "uncore_imc_1/clockticks/",]
    );
    // by what the PMU calls it, and by its other name
    assert_eq!(names(&machine, "mem-l*"), ["cpu_atom/mem-loads/", "cpu_core/mem-loads/"]);
    assert_eq!(
        names(&machine, "idle-cycles-*"),
        ["stalled-cycles-backend", "stalled-cycles-frontend"]
    );
    assert_eq!(names(&machine, "LLC-store*"), ["LLC-store-misses", "LLC-stores"]);
    assert_eq!(names(&machine, "k*probe:*"), ["kprobe:FUNCTION[+OFFSET]", "kretprobe:FUNCTION"]);
    assert_eq!(names(&machine, "nothing"), [""; 0]);
}

#[test]
fn an_event_is_listed_with_its_pmus_its_terms_and_its_needs() {
    let machine = intel_hybrid();
    let one = |name: &str| {
        let listed = machine.machine().list(name).events;
        listed.into_iter().find(|it| it.name == name).unwrap()
    };
    assert_eq!(
        one("uncore_imc_1/data_read/"),
        Listed {
            name: "uncore_imc_1/data_read/".into(),
            kind: Kind::Pmu,
            pmus: vec!["uncore_imc_1".into()],
            description: Some("event=0x20".into()),
            unit: Some("MiB".into()),
            counting_only: Some("its PMU only counts"),
            needs: vec![Need::WholeCpus],
        }
    );
    assert_eq!(
        one("cycles"),
        Listed {
            name: "cycles".into(),
            kind: Kind::Hardware,
            pmus: vec!["cpu_core".into(), "cpu_atom".into()],
            description: Some("cycles of a CPU that is not halted".into()),
            unit: None,
            counting_only: None,
            needs: vec![],
        }
    );
    let raw = one("power/TERM=VALUE,.../");
    assert_eq!((raw.kind, raw.description.as_deref()), (Kind::Raw, Some("terms: event")));
    assert_eq!(one("sched:sched_switch").needs, [Need::Tracefs]);
    assert_eq!(one("dummy").counting_only, Some("it never fires"));
}

#[test]
fn a_parameter_is_shown_as_what_is_needed() {
    let files = [
        ("format/request", "config:0-31"),
        ("format/core", "config1:0-31"),
        ("events/odd", "request=0x10,core=?"),
    ];
    let listing = Fixture::new().pmu("hv", 9, &files).machine().list("odd");
    let [odd] = listing.events.as_slice() else { panic!("{listing:?}") };
    assert_eq!(
        (odd.name.as_str(), odd.needs.as_slice()),
        ("hv/odd,core=?/", [Need::Value("core".into())].as_slice())
    );
    assert_eq!(odd.needs[0].to_string(), "a value for core");
}

#[test]
fn what_can_not_be_read_is_said_beside_the_rest() {
    let machine = amd().pmu("cpu", 4, &[("events/odd", "event=,")]);
    let listing = machine.machine().list("");
    let missing: Vec<_> = listing.missing.iter().map(ToString::to_string).collect();
    let [pmu, tracefs] = missing.as_slice() else { panic!("{missing:?}") };
    assert!(pmu.contains("events/odd is not as expected"), "{pmu}");
    assert!(tracefs.contains("no tracefs at"), "{tracefs}");
    assert!(listing.events.iter().any(|it| it.name == "page-faults"));
    assert!(listing.events.iter().any(|it| it.name == "amd_df/TERM=VALUE,.../"));

    let empty = tempfile::tempdir().unwrap();
    let listing = Machine::at(empty.path()).list("");
    assert!(listing.events.iter().all(|it| it.kind == Kind::Software));
}

/// Reads each name of a list that stands for an event as it is, and looks it up.
fn check_that_names_resolve(machine: &Machine) {
    for listed in machine.list("").events {
        let is_form = matches!(listed.kind, Kind::Raw | Kind::Breakpoint | Kind::Probe);
        if is_form || listed.name.contains('?') {
            continue;
        }
        let events = parse(&listed.name).unwrap_or_else(|error| panic!("{listed:?}: {error}"));
        let sets = machine.resolve(&events, Purpose::Count);
        if let Err(ResolveError::NoCpus { .. }) = sets {
            continue;
        }
        let sets = sets.unwrap_or_else(|error| panic!("{listed:?}: {error}"));
        assert!(
            sets.iter().flat_map(|it| &it.attrs).all(|it| it.counting_only == listed.counting_only)
        );
    }
}

#[test]
fn what_is_listed_resolves() {
    for machine in [intel_hybrid(), amd(), arm()] {
        check_that_names_resolve(&machine.machine());
    }
}

#[test]
fn what_is_listed_of_this_machine_resolves() {
    check_that_names_resolve(&Machine::here());
}
