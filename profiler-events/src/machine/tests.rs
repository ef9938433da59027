mod errors;

use proptest::prelude::*;

use super::*;
use crate::{
    abi::{
        PERF_TYPE_BREAKPOINT, PERF_TYPE_HARDWARE, PERF_TYPE_HW_CACHE, PERF_TYPE_RAW,
        PERF_TYPE_SOFTWARE, PERF_TYPE_TRACEPOINT,
    },
    fixture::{Fixture, amd, arm, intel_hybrid},
    parse,
    syntax::{Place, Precise},
};

fn resolve(machine: &Fixture, text: &str, purpose: Purpose) -> Result<Vec<Set>, ResolveError> {
    machine.machine().resolve(&parse(text).unwrap(), purpose)
}

fn sampled(machine: &Fixture, text: &str) -> Vec<Set> {
    resolve(machine, text, Purpose::Sample).unwrap()
}

/// The events of sets that are one each.
fn singles(sets: Vec<Set>) -> Vec<Attr> {
    sets.into_iter()
        .map(|mut set| {
            assert_eq!((set.attrs.len(), set.name), (1, None));
            set.attrs.remove(0)
        })
        .collect()
}

fn only(machine: &Fixture, text: &str) -> Attr {
    let mut attrs = singles(sampled(machine, text));
    assert_eq!(attrs.len(), 1, "{text}");
    attrs.remove(0)
}

fn error(machine: &Fixture, text: &str) -> String {
    resolve(machine, text, Purpose::Sample).unwrap_err().to_string()
}

/// Name, type, config and CPUs.
fn short(attr: &Attr) -> (&str, u32, u64, Option<&str>) {
    (&attr.name, attr.kind, attr.config, attr.cpus.as_deref())
}

#[test]
fn events_have_the_numbers_of_the_kernel() {
    let machine = amd();
    for (text, kind, config) in [
        ("cycles", PERF_TYPE_HARDWARE, 0),
        ("branch-misses", PERF_TYPE_HARDWARE, 5),
        ("page-faults", PERF_TYPE_SOFTWARE, 2),
        ("LLC-load-misses", PERF_TYPE_HW_CACHE, 0x1_0002),
        ("r1a8", PERF_TYPE_RAW, 0x1a8),
        ("7:0x12", 7, 0x12),
        ("cpu/event=0x28f,umask=3/", 4, 0x2_0000_038f),
        ("cpu/event=0xc0,cmask=1,inv/", 4, 0x180_00c0),
        ("cpu/cpu-cycles/", 4, 0x76),
        ("cpu/cycles/", PERF_TYPE_HARDWARE, 0),
        ("cpu/LLC-loads/", PERF_TYPE_HW_CACHE, 2),
        ("cpu/r0x1a8/", 4, 0x1a8),
        ("cpu/config=0x1234,umask=0/", 4, 0x34),
        ("ibs_op/cnt_ctl=1/", 11, 1 << 19),
    ] {
        let attr = only(&machine, text);
        assert_eq!(short(&attr), (text, kind, config, None));
    }
}

#[test]
fn terms_set_registers_name_and_rate() {
    let machine = amd();
    let attr =
        only(&machine, "cpu/config=10,config1,config2=3,config3=0x4,name='a b',period=1000/");
    assert_eq!((attr.config, attr.config1, attr.config2, attr.config3), (10, 1, 3, 4));
    assert_eq!((attr.name.as_str(), attr.rate), ("a b", Some(Rate::Period(1000))));

    let attr = only(&machine, "cycles/freq=99,config2=7/u");
    assert_eq!((attr.config2, attr.rate), (7, Some(Rate::Frequency(99))));
    assert_eq!(attr.name, "cycles/freq=99,config2=7/u");
    assert_eq!(only(&machine, "cs/name=7/").name, "7");
}

#[test]
fn modifiers_say_when_to_count_and_how() {
    let machine = amd();
    let exclude = |text| only(&machine, text).exclude;
    let all = Exclude::default();
    assert_eq!(exclude("cycles"), all);
    assert_eq!(exclude("cycles:u"), Exclude { kernel: true, hypervisor: true, ..all });
    assert_eq!(exclude("cycles:kh"), Exclude { user: true, ..all });
    assert_eq!(exclude("cycles:I"), Exclude { idle: true, ..all });
    assert_eq!(exclude("cycles:G"), Exclude { host: true, ..all });
    assert_eq!(exclude("cycles:H"), Exclude { guest: true, ..all });
    assert_eq!(exclude("cycles:GH"), all);
    assert_eq!(exclude("cycles:p"), Exclude { guest: true, ..all });
    assert_eq!(exclude("cycles:pG"), Exclude { host: true, ..all });

    let attr = only(&machine, "cycles:ppDe");
    assert_eq!((attr.precise, attr.pinned, attr.exclusive), (Precise::Level(2), true, true));
    assert_eq!(only(&machine, "cycles:P").precise, Precise::Most);
}

#[test]
fn what_all_cpus_have_is_opened_for_each_kind_of_cpu() {
    let machine = intel_hybrid();
    let on_both = |text| singles(sampled(&machine, text));
    let attrs = on_both("cycles:u");
    assert_eq!(
        attrs.iter().map(short).collect::<Vec<_>>(),
        [
            ("cpu_core/cycles/u", PERF_TYPE_HARDWARE, 4 << 32, Some("0-7")),
            ("cpu_atom/cycles/u", PERF_TYPE_HARDWARE, 10 << 32, Some("8-15")),
        ]
    );
    assert!(attrs.iter().all(|it| it.exclude.kernel && !it.exclude.user));

    let attrs = on_both("LLC-load-misses/period=7/");
    assert_eq!(
        attrs.iter().map(short).collect::<Vec<_>>(),
        [
            (
                "cpu_core/LLC-load-misses,period=7/",
                PERF_TYPE_HW_CACHE,
                4 << 32 | 0x1_0002,
                Some("0-7")
            ),
            (
                "cpu_atom/LLC-load-misses,period=7/",
                PERF_TYPE_HW_CACHE,
                10 << 32 | 0x1_0002,
                Some("8-15")
            ),
        ]
    );
    assert!(attrs.iter().all(|it| it.rate == Some(Rate::Period(7))));

    let attrs = on_both("r1a8");
    assert_eq!(
        attrs.iter().map(short).collect::<Vec<_>>(),
        [("cpu_core/r1a8/", 4, 0x1a8, Some("0-7")), ("cpu_atom/r1a8/", 10, 0x1a8, Some("8-15")),]
    );

    // a name of sysfs, which has other numbers on each, and a pattern that not all have the event of
    let names = |text| on_both(text).into_iter().map(|it| (it.name, it.config)).collect::<Vec<_>>();
    assert_eq!(
        names("mem-loads"),
        [("cpu_atom/mem-loads/".into(), 0x5d0), ("cpu_core/mem-loads/".into(), 0x1cd),]
    );
    assert_eq!(names("cpu/topdown-retiring/"), [("cpu_core/topdown-retiring/".into(), 0x8000)]);
    assert_eq!(names("cpu_atom/cycles/"), [("cpu_atom/cycles/".into(), 10 << 32)]);
}

#[test]
fn one_kind_of_cpu_needs_no_type_but_its_cpus() {
    let machine = arm();
    let attr = only(&machine, "cycles");
    assert_eq!(short(&attr), ("cycles", PERF_TYPE_HARDWARE, 0, Some("0-63")));
    assert_eq!(attr.pmu.as_deref(), Some("armv8_pmuv3_0"));
    let attr = only(&machine, "armv8_pmuv3/event=0x11,long/");
    assert_eq!((attr.kind, attr.config, attr.config1), (8, 0x11, 1));
    assert_eq!(
        short(&only(&machine, "ll_cache_miss_rd")),
        ("ll_cache_miss_rd", 8, 0x37, Some("0-63"))
    );
}

#[test]
fn a_kind_of_cpu_that_is_offline_is_left_out() {
    let machine = intel_hybrid().file("sys/bus/event_source/devices/cpu_atom/cpus", "");
    let attr = only(&machine, "cycles");
    assert_eq!(short(&attr), ("cycles", PERF_TYPE_HARDWARE, 4 << 32, Some("0-7")));
    assert_eq!(
        error(&machine, "cpu_atom/cycles/"),
        "`cpu_atom/cycles/` has no CPU: none of those of `cpu_atom` is online"
    );
}

#[test]
fn terms_change_what_an_event_of_sysfs_sets_wherever_they_stand() {
    let machine = intel_hybrid();
    for text in ["cpu_core/mem-loads,ldlat=30/pp", "cpu_core/ldlat=30,mem-loads/pp"] {
        let attr = only(&machine, text);
        assert_eq!((attr.config, attr.config1, attr.precise), (0x1cd, 30, Precise::Level(2)));
    }
    let attrs = singles(sampled(&machine, "mem-loads/ldlat=30/"));
    assert_eq!(attrs.iter().map(|it| it.config1).collect::<Vec<_>>(), [30, 30]);
}

#[test]
fn uncore_events_are_counted_on_their_cpus_in_their_units() {
    let machine = intel_hybrid();
    let count = |text| singles(resolve(&machine, text, Purpose::Count).unwrap());
    for text in ["imc/data_read/", "uncore_imc/data_read/", "*imc*/data_read/", "data_read"] {
        let attrs = count(text);
        assert_eq!(
            attrs.iter().map(short).collect::<Vec<_>>(),
            [
                ("uncore_imc_0/data_read/", 23, 0x20, Some("0")),
                ("uncore_imc_1/data_read/", 24, 0x20, Some("0")),
            ]
        );
        for attr in attrs {
            assert_eq!((attr.scale, attr.unit.as_deref()), (Some(6.103_515_625e-5), Some("MiB")));
            assert_eq!(attr.counting_only, Some("its PMU only counts"));
        }
    }
    let energy = count("power/energy-cores/").remove(0);
    assert_eq!(
        (energy.scale, energy.unit.as_deref()),
        (Some(2.328_306_436_538_696_3e-10), Some("Joules"))
    );

    assert_eq!(
        error(&machine, "data_read"),
        "`uncore_imc_0/data_read/` can't be sampled: its PMU only counts"
    );
    assert_eq!(error(&machine, "msr/tsc/"), "`msr/tsc/` can't be sampled: its PMU only counts");
    assert_eq!(
        error(&machine, "intel_pt/tsc/"),
        "`intel_pt/tsc/` can't be sampled: it writes a trace, which is not read here"
    );
    assert_eq!(error(&machine, "dummy"), "`dummy` can't be sampled: it never fires");
    assert_eq!(
        resolve(&machine, "cs/period=1/", Purpose::Count).unwrap_err().to_string(),
        "`context-switches/period=1/` has a period or a frequency, but is only counted; leave it out"
    );
}

#[test]
fn groups_are_one_for_each_pmu() {
    let machine = intel_hybrid();
    let sets = sampled(&machine, "pair{cycles:u,instructions,cs}:kD");
    let shown = |set: &Set| {
        let names: Vec<_> = set.attrs.iter().map(|it| (it.name.clone(), it.pinned)).collect();
        let cpus: Vec<_> = set.attrs.iter().map(|it| it.cpus.clone().unwrap()).collect();
        (set.name.clone(), names, cpus)
    };
    let group = |pmu: &str, cpus: &str| {
        let names = vec![
            (format!("{pmu}/cycles/ukD"), true),
            (format!("{pmu}/instructions/k"), false),
            ("context-switches:k".to_owned(), false),
        ];
        (Some("pair".to_owned()), names, vec![cpus.to_owned(); 3])
    };
    assert_eq!(
        sets.iter().map(shown).collect::<Vec<_>>(),
        [group("cpu_core", "0-7"), group("cpu_atom", "8-15"),]
    );

    let sets = sampled(&amd(), "{cycles,cache-misses:G}:H,{cs,faults}:u");
    let exclude: Vec<Vec<_>> =
        sets.iter().map(|set| set.attrs.iter().map(|it| it.exclude).collect()).collect();
    let (all, user) =
        (Exclude::default(), Exclude { kernel: true, hypervisor: true, ..Exclude::default() });
    assert_eq!(exclude, [vec![Exclude { guest: true, ..all }, all], vec![user, user]]);

    assert_eq!(
        error(&machine, "{cycles,cpu_core/event=1/}"),
        "`{cycles,cpu_core/event=1/}` can't be one group: `cpu_core/event=1/` is not on `cpu_atom`; \
         leave out the braces"
    );
    let counted = resolve(&machine, "{cpu_core/event=1/,msr/tsc/}", Purpose::Count).unwrap();
    assert_eq!(counted.len(), 1);
}

#[test]
fn tracepoints_are_found_by_name_and_pattern() {
    let machine = intel_hybrid();
    assert_eq!(
        short(&only(&machine, "sched:sched_switch")),
        ("sched:sched_switch", PERF_TYPE_TRACEPOINT, 316, None)
    );
    let names = |text| {
        singles(sampled(&machine, text))
            .into_iter()
            .map(|it| (it.name, it.config))
            .collect::<Vec<_>>()
    };
    assert_eq!(names("sched:sched_[sw]*wi*:k"), [("sched:sched_[sw]*wi*:k".to_owned(), 316)]);
    assert_eq!(
        names("s*:s*w*"),
        [
            ("sched:sched_stat_wait".to_owned(), 312),
            ("sched:sched_switch".to_owned(), 316),
            ("sched:sched_wakeup".to_owned(), 318),
        ]
    );
    assert_eq!(sampled(&machine, "{sched:*}").len(), 1);

    assert_eq!(
        error(&machine, "sched:sched_swich"),
        "no tracepoint `sched:sched_swich`; did you mean sched:sched_switch, sched:sched_stat_wait or \
         sched:sched_wakeup?"
    );
    assert_eq!(error(&machine, "nothing:x"), "no tracepoint `nothing:x`");
    assert_eq!(error(&machine, "..:sched"), "no tracepoint `..:sched`");
    assert_eq!(
        error(&machine, "sched:sched_switch/config1=1/"),
        "`sched:sched_switch` has no term `config1`, only name, period, freq"
    );
    let bare = amd();
    let at = bare.path().join("sys/kernel/tracing");
    let at = at.display();
    assert_eq!(
        error(&bare, "sched:sched_switch"),
        format!("no tracefs at {at}; mount it: mount -t tracefs nodev {at}")
    );
    let older = amd().file("sys/kernel/debug/tracing/events/sched/sched_switch/id", "5");
    assert_eq!(only(&older, "sched:sched_switch").config, 5);
}

#[test]
fn breakpoints_and_probes_carry_their_place() {
    let machine = intel_hybrid();
    let breakpoint = |text| only(&machine, text).breakpoint.unwrap();
    assert_eq!(breakpoint("mem:0x1000"), Breakpoint { kind: 3, address: 0x1000, length: 4 });
    assert_eq!(breakpoint("mem:0x1000/8:w"), Breakpoint { kind: 2, address: 0x1000, length: 8 });
    let code = Breakpoint { kind: 4, address: 0x1000, length: size_of::<usize>() as u64 };
    assert_eq!(breakpoint("mem:0x1000:x:u"), code);
    assert_eq!(only(&machine, "mem:0").kind, PERF_TYPE_BREAKPOINT);

    let attr = only(&machine, "kretprobe:do_exit");
    assert_eq!((attr.kind, attr.config), (6, 1));
    let place = |name: &str, offset| Place::Symbol { name: name.into(), offset };
    assert_eq!(attr.probe, Some(Probe { path: None, place: place("do_exit", 0), returns: true }));

    let attr = only(&machine, "uprobe:/bin/sh:main+4/period=1/");
    assert_eq!((attr.kind, attr.config, attr.rate), (7, 0, Some(Rate::Period(1))));
    let path = Some("/bin/sh".to_owned());
    assert_eq!(attr.probe, Some(Probe { path, place: place("main", 4), returns: false }));

    assert_eq!(
        error(&amd(), "kprobe:do_exit"),
        "this kernel has no PMU `kprobe`: it needs CONFIG_KPROBE_EVENTS, and Linux 4.17"
    );
}

#[test]
fn a_machine_without_sysfs_still_has_what_needs_none() {
    let empty = tempfile::tempdir().unwrap();
    let events = parse("cycles:p,cs,LLC-loads,r1,mem:0").unwrap();
    let sets = Machine::at(empty.path()).resolve(&events, Purpose::Sample).unwrap();
    let kinds: Vec<_> = singles(sets).iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [0, 1, 3, 4, 5]);
}

#[test]
fn this_machine_has_what_every_kernel_counts() {
    let events = parse("cpu-clock,page-faults:u,{cs,migrations}").unwrap();
    let sets = Machine::here().resolve(&events, Purpose::Sample).unwrap();
    assert_eq!(sets.iter().map(|it| it.attrs.len()).collect::<Vec<_>>(), [1, 1, 2]);
}

proptest! {
    #[test]
    fn any_event_is_resolved_or_refused(
        words in prop::collection::vec(prop::sample::select(vec![
            "cycles", "cpu_core", "imc", "mem-loads", "event", "inv", "ldlat", "config1", "r1", "0x1ff", "3",
            "sched", "*", "name", "..", "?", "u", "p", ":", "/", ",", "=", "{", "}",
        ]), 0..10),
    ) {
        thread_local!(static MACHINE: Fixture = intel_hybrid());
        if let Ok(events) = parse(&words.concat()) {
            let sets = MACHINE.with(|it| it.machine().resolve(&events, Purpose::Count));
            match sets {
                Ok(sets) => prop_assert!(sets.iter().all(|it| !it.attrs.is_empty())),
                Err(error) => prop_assert!(!error.to_string().contains('\n')),
            }
        }
    }
}
