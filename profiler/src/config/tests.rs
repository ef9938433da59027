use clap::Parser as _;

use std::path::Path;

use super::*;
use crate::{
    cli::{Cli, StreamArgs},
    filter::{CgroupName, Filter},
    perf::config::{CountedEvent, EventChoice, Target, Tasks},
    procfs::called::Called,
};

/// A machine without limits, whose kernel has all that the walk needs.
fn machine() -> Machine {
    Machine {
        online: (0..2).collect(),
        possible_cpus: 2,
        memory_bytes: None,
        page_bytes: 4096,
        max_sample_rate: Some(100_000),
        max_stack: Some(127),
        registers: Ok(EntryRegisters::Helpers),
        has_proc: true,
        in_initial_pid_namespace: true,
        // Threads of the process 80 are 81 to 89.
        process_of: |tid| (80..90).contains(&tid).then_some(80),
        steps_over_breakpoints: false,
        find_events: |events| {
            profiler_events::Machine::here().resolve(events, profiler_events::Purpose::Sample)
        },
        find_hit_filter: |event, filter| profiler_events::Machine::here().hit_filter(event, filter),
        user_id: |user| (user == "ann").then_some(7),
        find_cgroups: |name| match name {
            CgroupName::Path(path) => Ok(vec![Path::new("/cgroups").join(path)]),
            CgroupName::Container(name) => Err(format!("no {name}")),
            CgroupName::Unit(name) => Ok((0..33).map(|it| format!("{name}{it}").into()).collect()),
        },
        processes: || {
            // And the one that asks, which nobody means.
            let called = |pid| Called { pid, names: vec!["web".into()], ..Called::default() };
            vec![called(80), called(std::process::id())]
        },
    }
}

fn parsed(arguments: &[&str]) -> StreamArgs {
    Cli::try_parse_from([&["profiler"], arguments].concat()).unwrap().stream
}

fn typed(arguments: &[&str]) -> SamplingArgs {
    parsed(arguments).sampling
}

fn reports(arguments: &[&str]) -> Vec<Report> {
    vec![Report::Samples(parsed(arguments).format)]
}

fn resolved(arguments: &[&str], machine: &Machine) -> Result<Config> {
    Config::resolve(&typed(arguments), reports(arguments), 0, machine)
}

fn refusal(arguments: &[&str], machine: &Machine) -> String {
    let Err(Error::Usage(message)) = resolved(arguments, machine) else { panic!("accepted") };
    message
}

#[test]
fn a_rate_above_the_limit_is_clamped_and_said() {
    let mut notices = Vec::new();
    assert_eq!(
        resolve_rate(Some(Frequency::Hz(50)), None, Some(49), &mut notices),
        Rate::Frequency(49)
    );
    assert!(notices[0].contains("sysctl kernel.perf_event_max_sample_rate=50"), "{notices:?}");

    notices.clear();
    assert_eq!(resolve_rate(None, None, Some(100), &mut notices), Rate::Frequency(99));
    assert_eq!(resolve_rate(Some(Frequency::Hz(7)), None, None, &mut notices), Rate::Frequency(7));
    assert_eq!(resolve_rate(None, Some(1 << 40), Some(1), &mut notices), Rate::Period(1 << 40));
    assert!(notices.is_empty());
}

#[test]
fn rings_are_powers_of_two_of_at_least_a_page() {
    assert_eq!(resolve_ring(None, 1, 4096).unwrap(), 4 << 20);
    assert_eq!(resolve_ring(None, 9, 4096).unwrap(), 8 << 20);
    assert_eq!(resolve_ring(Some(5 << 20), 1, 4096).unwrap(), 8 << 20);
    assert_eq!(resolve_ring(Some(1), 1, 65_536).unwrap(), 65_536);
    assert_eq!(resolve_ring(None, 1 << 16, 4096).unwrap(), 1 << 31);
    assert!(resolve_ring(Some(3 << 30), 1, 4096).is_err());
}

#[test]
fn caches_fit_into_what_the_cgroup_allows() {
    let fitted = |memory_bytes: Option<u64>, arguments: &[&str]| {
        let mut notices = Vec::new();
        let machine = Machine { memory_bytes, ..machine() };
        let sizes = Sizes::fit(&typed(arguments), &machine, &mut notices);
        (sizes.budget.symbols >> 20, sizes.unwind_bytes >> 20, sizes.ring_bytes, notices.len())
    };
    assert_eq!(fitted(None, &[]), (24, 256, None, 0));
    assert_eq!(fitted(Some(256 << 30), &[]), (24, 256, None, 0));
    assert_eq!(fitted(None, &["--lines"]), (256, 256, None, 0));
    assert_eq!(fitted(Some(64 << 20), &["--lines"]).0, 4);
    let (symbols, tables, ring, notices) = fitted(Some(64 << 20), &[]);
    assert_eq!((symbols, tables, notices), (4, 8, 1));
    assert!(ring.is_some_and(|ring| (256 << 10..=1 << 20).contains(&ring)), "{ring:?}");
    // What was asked for is meant.
    let asked = fitted(Some(64 << 20), &["--symbol-cache", "9M", "--buffer-size", "8M"]);
    assert_eq!(asked, (9, 8, Some(8 << 20), 1));
    assert_eq!(fitted(Some(64 << 20), &["--max-unwind-memory", "256M"]).1, 256);
}

#[test]
fn the_profile_fits_into_what_the_cgroup_allows() {
    let fitted = |memory_bytes: Option<u64>, arguments: &[&str]| {
        let machine = Machine { memory_bytes, ..machine() };
        Sizes::fit(&typed(arguments), &machine, &mut Vec::new()).profile_bytes >> 20
    };
    assert_eq!((fitted(None, &[]), fitted(Some(64 << 30), &[])), (256, 256));
    assert_eq!(fitted(Some(512 << 20), &[]), 64);
    assert_eq!(fitted(Some(512 << 20), &["--max-memory", "1G"]), 1024);
}

#[test]
fn the_walk_is_what_the_kernel_can_do() {
    let full = machine();
    let lacking = Machine { registers: Err("bpf_x (Linux 9)".into()), ..machine() };
    let walk = |arguments: &[&str], machine| {
        let config = resolved(arguments, machine).unwrap();
        let user_walk = config.program.user_walk;
        let by_agent = config.worker.walk.map(|walk| walk.or_frame_pointers);
        assert_eq!(by_agent, user_walk.tables().map(|tables| tables.or_frame_pointers));
        (matches!(user_walk, UserWalk::Own { .. }), by_agent, config.notices.len())
    };
    assert_eq!(walk(&[], &full), (true, Some(true), 0));
    assert_eq!(walk(&["--call-graph", "dwarf"], &full), (true, Some(false), 0));
    assert_eq!(walk(&["--call-graph", "fp"], &full), (true, None, 0));
    assert_eq!(walk(&["--call-graph", "fp"], &lacking), (false, None, 0));
    assert_eq!(walk(&[], &lacking), (false, None, 1));
    // So little that no walk by tables could do with it.
    let kernel_only = ["--kernel-only", "--max-unwind-memory", "1"];
    assert_eq!(walk(&kernel_only, &full), (false, None, 0));
    assert_eq!(walk(&kernel_only, &lacking), (false, None, 0));
    let refused = refusal(&["--call-graph", "dwarf"], &lacking);
    assert!(refused.contains("bpf_x (Linux 9)"), "{refused}");
}

#[test]
fn processes_are_named_by_their_own_id_where_that_can_be_known() {
    let pids = |arguments: &[&str]| {
        let config = resolved(arguments, &machine()).unwrap();
        (config.process.pids, config.program.filter.pids)
    };
    assert_eq!(pids(&["-p", "80"]), (vec![80], vec![80]));
    // The program can't tell whose child a process is.
    assert_eq!(pids(&["-p", "80", "--children"]), (vec![80], vec![]));
    assert_eq!(pids(&["-p", "web,80", "-p", "web"]), (vec![80], vec![80]));
    assert!(refusal(&["-p", "weeb"], &machine()).contains("did you mean web?"));
    assert!(refusal(&["-p", "81"], &machine()).contains("give -p 80"));
    assert!(refusal(&["-p", "7"], &machine()).contains("no process"));
    let inside = Machine { in_initial_pid_namespace: false, ..machine() };
    assert!(refusal(&["-p", "80"], &inside).contains("run it on the host"));
    let config = resolved(&[], &inside).unwrap();
    assert!(!config.program.exclude_own && config.notices.len() == 1, "{:?}", config.notices);
    let without = Machine { has_proc: false, ..machine() };
    assert!(refusal(&["-p", "80"], &without).contains("mount -t proc"));
}

#[test]
fn only_cpus_that_are_online_are_sampled() {
    let config = resolved(&["-C", "1"], &machine()).unwrap();
    assert!(config.perf.cpus_named && config.perf.cpus.iter().eq([1]));
    assert!(refusal(&["-C", "1-2"], &machine()).contains("CPU 2 is not online"));
}

#[test]
fn each_event_is_one_source_of_a_few() {
    let resolve = |names: &[&str]| {
        let events = names.iter().map(|it| profiler_events::parse(it).unwrap()).collect();
        let args = SamplingArgs { events, ..SamplingArgs::default() };
        let choices = events::resolve(&args, &machine()).map_err(|error| error.to_string())?;
        Ok(choices
            .into_iter()
            .map(|it| match it {
                EventChoice::Counted(CountedEvent::Default) => "the default".to_owned(),
                event => event.to_string(),
            })
            .collect::<Vec<_>>())
    };
    let error = |names: &[&str]| -> String { resolve(names).unwrap_err() };
    assert_eq!(resolve(&[]), Ok(vec!["the default".to_owned()]));
    let two = ["cpu-clock:u".to_owned(), "page-faults".into()];
    assert_eq!(resolve(&["cpu-clock:u", "page-faults"]), Ok(two.to_vec()));
    assert_eq!(resolve(&["cpu-clock:u,page-faults"]), Ok(two.to_vec()));
    let twice = error(&["faults", "cpu-clock", "page-faults"]);
    assert!(twice.contains("-e page-faults: this event was given twice"), "{twice}");
    let four = ["faults", "cs", "migrations", "cpu-clock"];
    assert_eq!(resolve(&four).unwrap().len(), 4);
    let five = error(&[&four[..], &["task-clock"]].concat());
    assert!(five.contains("at most 4 events"), "{five}");
    assert!(error(&["{faults,cs}"]).contains("leave the braces out"));
    assert!(error(&["mem:0x1000:w"]).contains("before Linux 6.6"));
    assert!(error(&["cpu-clock:G"]).contains("leave G and H out"));
    assert!(error(&["cycels"]).contains("did you mean cycles?"));
    assert!(error(&["nothing"]).contains("no event `nothing`"));
}

/// A machine on which everything is a tracepoint, which has a field `pid` and a text `name`.
fn traced_machine() -> Machine {
    use profiler_events::{Attr, HitFilter, Rate, Set, Text, parse, syntax};
    Machine {
        find_events: |events| {
            let text = events.to_string();
            let Ok(parsed) = parse(&text) else { panic!("{text}") };
            let points = if text.contains('*') { 600 } else { 2 };
            let [syntax::Item::Event(event)] = parsed.0.as_slice() else { panic!("{text}") };
            let mut attr = Attr { name: text.clone(), ..Attr::new(2, text.len() as u64) };
            attr.exclude.kernel = event.modifiers != syntax::Modifiers::default();
            attr.rate = text.contains("freq").then_some(Rate::Frequency(5));
            attr.rate = if text.contains("period") { Some(Rate::Period(7)) } else { attr.rate };
            let points = if text == "cycles" { 0 } else { points };
            let set = |attr| Set { name: None, attrs: vec![attr] };
            if points == 0 {
                return Ok(vec![set(Attr { kind: 0, ..attr })]);
            }
            Ok((0..points).map(|_| set(attr.clone())).collect())
        },
        find_hit_filter: |_, filter| {
            let texts = filter.tests().len();
            let texts = vec![Text::Like("a*".into()); texts];
            Ok(HitFilter { tests: Vec::new(), texts })
        },
        ..machine()
    }
}

#[test]
fn tracepoints_and_probes_are_one_source_each() {
    let machine = traced_machine();
    let traced = |arguments: &[&str]| {
        let events = resolved(arguments, &machine).unwrap().perf.events;
        let traced = events.into_iter().filter_map(|it| match it {
            EventChoice::Traced(traced) => Some(traced),
            EventChoice::Counted(_) => None,
        });
        traced.collect::<Vec<_>>()
    };
    let one = traced(&["-e", "a:b1"]);
    assert_eq!((one.len(), one[0].sites.len(), one[0].to_string()), (1, 2, "a:b1".into()));
    assert_eq!(one[0].period(Rate::Frequency(99)), 1);
    assert_eq!(one[0].period(Rate::Period(5)), 5);
    assert_eq!(traced(&["-e", "a:b1/period=7/"])[0].period(Rate::Period(5)), 7);
    // Each filter is for the last event before it, and all of one event count.
    let filters = ["-e", "a:b1,a:b22", "--filter", "pid==1", "--filter", "pid<9", "-e", "c:d333"];
    let texts = traced(&filters).into_iter().map(|it| it.filter.map(|it| it.texts.len()));
    assert_eq!(texts.collect::<Vec<_>>(), [None, Some(2), None]);
    for (arguments, part) in [
        (&["-e", "a:b1,a:b1"][..], "was given twice"),
        (&["-e", "a:b*"], "matches 600 tracepoints, and at most 512"),
        (&["-e", "a:bbbbb:u"], "leave them out"),
        (&["-e", "a:b1/freq=5/"], "have no frequency"),
        (&["-e", "a:b1", "-F", "99"], "-F: tracepoints and probes have no frequency"),
        (&["--filter", "pid==1", "-e", "a:b1"], "it is for the tracepoint before it"),
        (
            &["-e", "cycles", "--filter", "pid==1"],
            "only hits of tracepoints have fields, and cycles",
        ),
        (
            &[
                "-e",
                "a:b1",
                "--filter",
                "pid==1||pid==2||pid==3||pid==4||pid==5||pid==6||pid==7||pid==8||pid==9",
            ],
            "at most 8",
        ),
    ] {
        let message = refusal(arguments, &machine);
        assert!(message.contains(part), "{arguments:?}: {message}");
    }
    assert!(resolved(&["-e", "a:b1,cycles", "-F", "99"], &machine).is_ok());
}

#[test]
fn several_events_have_several_caches_and_names() {
    let budget = |arguments: &[&str]| {
        let config = resolved(arguments, &machine()).unwrap();
        let tables = config.program.user_walk.tables().unwrap();
        (tables.memory.other_bytes(), config.worker.output.names_events)
    };
    let one = budget(&["-e", "cpu-clock"]);
    let two = budget(&["-e", "cpu-clock", "-e", "page-faults"]);
    assert!(two.0 > one.0 && two.1 && !one.1, "{one:?} {two:?}");
}

#[test]
fn too_little_memory_for_the_walk_is_refused_with_the_least_that_would_do() {
    let Err(Error::Usage(message)) = resolve_memory(4096, 32_768, 2, 1) else { panic!("accepted") };
    let (_, least) = message.split_once("at least ").unwrap();
    let (least, _) = least.split_once("M ").unwrap();
    let least: u64 = least.parse().unwrap();
    assert!(resolve_memory(least << 20, 32_768, 2, 1).is_ok(), "{message}");
    assert!(resolve_memory((least - 1) << 20, 32_768, 2, 1).is_err(), "{message}");
}

#[test]
fn nothing_typed_is_the_default() {
    let default = Config::resolve(&SamplingArgs::default(), reports(&[]), 0, &machine()).unwrap();
    assert_eq!(format!("{default:?}"), format!("{:?}", resolved(&[], &machine()).unwrap()));
}

#[test]
fn filters_are_those_that_were_typed() {
    let arguments = ["-p", "80", "-t", "81,82", "--uid", "ann", "--comm", "a*", "--cgroup", "a"];
    let config = resolved(&arguments, &machine()).unwrap();
    let filter = &config.program.filter;
    assert_eq!((&*filter.pids, &*filter.tids, &*filter.uids), (&[80][..], &[81, 82][..], &[7][..]));
    assert_eq!(filter.cgroups, [Path::new("/cgroups/a")]);
    assert!(!filter.comms.is_empty());
    assert_eq!(config.process.filters, ["-t 81", "-t 82", "--uid ann", "--comm a*", "--cgroup a"]);
    let none = resolved(&[], &machine()).unwrap();
    assert_eq!((none.program.filter, none.process.filters.len()), (Filter::default(), 0));
    for (arguments, message) in [
        (["-t", "91"], "-t 91: there is no thread with this id"),
        (["-p", "81"], "-p 81: this is a thread of process 80: give -p 80, or -t 81"),
        (["--container", "web"], "--container web: no web"),
    ] {
        assert_eq!(refusal(&arguments, &machine()), message);
    }
    for (arguments, part) in [(["--uid", "bob"], "`id -u`"), (["--unit", "a"], "33 cgroups")] {
        let message = refusal(&arguments, &machine());
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_root_is_for_formats_that_begin_with_one() {
    let config = resolved(&["-f", "folded", "--root", "thread"], &machine()).unwrap();
    assert_eq!(config.worker.output.root, profiler_profile::export::root::Root::Thread);
    assert!(resolved(&["-f", "json", "--root", "process"], &machine()).is_ok());
    assert!(refusal(&["-f", "json", "--root", "pid"], &machine()).contains("give folded or svg"));
}

#[test]
fn events_are_opened_on_what_was_asked_for() {
    let opened = |arguments: &[&str]| {
        let config = resolved(arguments, &machine()).unwrap();
        (config.perf.target, config.program.filter)
    };
    assert_eq!(opened(&["-p", "80"]).0, Target::Cpus);
    let tasks = Tasks { pids: vec![80], ..Tasks::default() };
    // Where threads alone can't inherit, the program drops the rest.
    let (target, filter) = opened(&["-p", "80", "--per-task"]);
    assert_eq!((target, filter.pids), (Target::Tasks(tasks.clone()), vec![80]));
    let (target, filter) = opened(&["-p", "80", "--children", "--per-task"]);
    let children = Tasks { children: true, ..tasks };
    assert_eq!((target, filter), (Target::Tasks(children), Filter::default()));
    let (target, filter) = opened(&["-t", "81,82", "--per-task", "-C", "0"]);
    let threads = Tasks { tids: vec![81, 82], ..Tasks::default() };
    assert_eq!((target, filter.tids), (Target::Tasks(threads), vec![81, 82]));
    // Nothing else fires, and what is below another one fires with it.
    let cgroups = ["--per-cgroup", "--cgroup", "a/b", "--cgroup", "a", "--cgroup", "ab"];
    let (target, filter) = opened(&cgroups);
    let folders = ["/cgroups/a", "/cgroups/ab"].map(Into::into).to_vec();
    assert_eq!((target, filter), (Target::Cgroups(folders), Filter::default()));
    assert!(refusal(&["--per-task"], &machine()).contains("Add -p, -t, or a command"));
    assert!(refusal(&["--per-cgroup", "-p", "80"], &machine()).contains("which cgroup?"));
}
