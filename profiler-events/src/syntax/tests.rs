use proptest::prelude::*;

use super::*;

/// What `perf`'s own manual pages and tests have, and how we print it.
const EXAMPLES: &[(&str, &str)] = &[
    ("cycles", "cycles"),
    ("cpu-cycles:u", "cycles:u"),
    ("faults", "page-faults"),
    ("cs,migrations", "context-switches,cpu-migrations"),
    ("r1a", "r1a"),
    ("r0x1a", "r1a"),
    ("r1a8:u", "r1a8:u"),
    ("r1a:kp", "r1a:kp"),
    ("r20000038f", "r20000038f"),
    ("1:1", "1:0x1"),
    ("1:1:hp", "1:0x1:hp"),
    ("4:0x6530160/name=numpmu/", "4:0x6530160/name=numpmu/"),
    ("instructions:I", "instructions:I"),
    ("instructions:kIG", "instructions:kIG"),
    ("instructions:uep", "instructions:uep"),
    ("task-clock:P,cycles", "task-clock:P,cycles"),
    ("cycles/period=100000,config2/", "cycles/period=100000,config2/"),
    ("cycles//u", "cycles:u"),
    ("instructions/name=insn/:u", "instructions/name=insn/u"),
    ("r1234/name=rawpmu/", "r1234/name=rawpmu/"),
    ("L1-dcache-load-miss:kp", "L1-dcache-load-misses:kp"),
    ("L1-dcache-misses/name=cachepmu/", "L1-dcache-load-misses/name=cachepmu/"),
    ("bpu", "branch-loads"),
    ("syscalls:sys_enter_openat", "syscalls:sys_enter_openat"),
    ("syscalls:*:u", "syscalls:*:u"),
    ("sched:sched_*", "sched:sched_*"),
    ("*:*", "*:*"),
    ("mem:0", "mem:0x0:rw"),
    ("mem:0x1000:x", "mem:0x1000:x"),
    ("mem:0:r:hp", "mem:0x0:r:hp"),
    ("mem:0:w:up", "mem:0x0:w:up"),
    ("mem:0:u", "mem:0x0:rw:u"),
    ("mem:0:rw:kp", "mem:0x0:rw:kp"),
    ("mem:0/1", "mem:0x0/1:rw"),
    ("mem:0/4:rw:u", "mem:0x0/4:rw:u"),
    ("mem:0/2:w/name=breakpoint/", "mem:0x0/2:w/name=breakpoint/"),
    ("mem:0/name=breakpoint/u", "mem:0x0:rw/name=breakpoint/u"),
    ("intel_pt//u", "intel_pt//u"),
    (
        "cpu/config=10,config1,config2=3,period=1000/u",
        "cpu/config=10,config1,config2=3,period=1000/u",
    ),
    ("cpu/config=1,name=krava/u,cpu/config=2/u", "cpu/config=1,name=krava/u,cpu/config=2/u"),
    ("cpu/event=0xa8,umask=0x1,cmask=0x1,inv/", "cpu/event=0xa8,umask=0x1,cmask=0x1,inv/"),
    (
        "cpu/event=0xa8,name='LSD.UOPS_CYCLES:cmask=0x1'/",
        "cpu/event=0xa8,name='LSD.UOPS_CYCLES:cmask=0x1'/",
    ),
    (
        "cycles/name='COMPLEX_CYCLES_NAME:orig=cycles,desc=chip-clock-ticks'/Duk",
        "cycles/name='COMPLEX_CYCLES_NAME:orig=cycles,desc=chip-clock-ticks'/ukD",
    ),
    ("cpu/mem-loads,ldlat=30/pp", "cpu/mem-loads,ldlat=30/pp"),
    ("cpu/r0x1a8/", "cpu/r0x1a8/"),
    ("*imc*/cas_count_read/", "*imc*/cas_count_read/"),
    ("hv_gpci/dtbp_ptitc,phys_processor_idx=0x2/", "hv_gpci/dtbp_ptitc,phys_processor_idx=0x2/"),
    ("mem-loads:upp", "mem-loads:upp"),
    ("topdown-retiring", "topdown-retiring"),
    ("{instructions,cycles}", "{instructions,cycles}"),
    ("{faults:k,cache-references}:u,cycles:k", "{page-faults:k,cache-references}:u,cycles:k"),
    (
        "group1{syscalls:sys_enter_openat:H,cycles:kppp},group2{cycles,1:3}:G,instructions:u",
        "group1{syscalls:sys_enter_openat:H,cycles:kppp},group2{cycles,1:0x3}:G,instructions:u",
    ),
    ("{cycles:u,instructions:kp}:p", "{cycles:u,instructions:kp}:p"),
    ("{cycles,cache-misses,branch-misses}:e", "{cycles,cache-misses,branch-misses}:e"),
    (" cycles , { instructions , cs } ", "cycles,{instructions,context-switches}"),
    ("kprobe:do_exit", "kprobe:do_exit"),
    ("kprobe:do_exit+16:k", "kprobe:do_exit+0x10:k"),
    ("kprobe:0xffffffff81000000", "kprobe:0xffffffff81000000"),
    ("kretprobe:do_exit/period=1/", "kretprobe:do_exit/period=1/"),
    ("uprobe:/bin/sh:main+0x4", "uprobe:/bin/sh:main+0x4"),
    ("uretprobe:/usr/lib/libstdc++.so.6:_Znwm", "uretprobe:/usr/lib/libstdc++.so.6:_Znwm"),
    ("uprobe:/bin/sh:0x4000:u", "uprobe:/bin/sh:0x4000:u"),
    ("uprobe:'/a:b':'<a::B as c>::d'", "uprobe:'/a:b':'<a::B as c>::d'"),
];

#[test]
fn examples_read_and_print() {
    for (typed, printed) in EXAMPLES {
        let events = parse(typed).unwrap_or_else(|error| panic!("{typed}: {error}"));
        assert_eq!(events.to_string(), *printed, "{typed}");
        assert_eq!(parse(printed), Ok(events), "{typed}");
    }
}

#[test]
fn errors_say_where_and_what() {
    for (typed, message) in [
        ("", "column 1: expected an event, found the end"),
        ("cycles,", "column 8: expected an event, found the end"),
        ("cycles,,cs", "column 8: expected an event, found `,`"),
        ("cycles;cs", "column 7: expected `,` or the end, found `;`"),
        ("{}", "column 2: expected an event, found `}`"),
        ("{cycles", "column 8: expected `,` or `}`, found the end"),
        ("{a,{b}}", "column 4: expected an event, found `{`"),
        ("é/ü=1", "column 6: expected `,` or the closing `/`, found the end"),
        ("cpu/=1/", "column 5: expected a term, as in `event=0x3c`, found `=`"),
        ("cpu/event=/", "column 11: expected a value, found `/`"),
        ("cpu/event=0x3c", "column 15: expected `,` or the closing `/`, found the end"),
        ("cpu/name='x/", "column 13: expected the closing quote, found the end"),
        ("cpu/name=''/", "column 11: expected text in the quotes, found `'`"),
        (
            "cpu/event=0x10000000000000000/",
            "column 11: 0x10000000000000000 is too large a number; the largest is 0xffffffffffffffff",
        ),
        (
            "r10000000000000000",
            "column 1: r10000000000000000 is too large a number; the largest is 0xffffffffffffffff",
        ),
        ("4294967296:0", "column 1: 4294967296 is too large a number; the largest is 0xffffffff"),
        ("1", "column 2: expected `:` and a number, as in `4:0x1a8`, found the end"),
        ("1:x", "column 3: expected a number, found `x`"),
        ("iTLB-stores", "column 1: iTLB has no event for stores; it has loads"),
        ("mem:", "column 5: expected a number, found the end"),
        ("mem:0/9", "column 7: a breakpoint is 1 to 8 bytes long, not 9"),
        ("mem:0:rr", "column 8: the modifier `r` is there twice"),
        (
            "kprobe:vfs_*",
            "column 12: expected one function (patterns are for tracepoints), found `*`",
        ),
        (
            "kprobe:",
            "column 8: expected one function (patterns are for tracepoints), found the end",
        ),
        ("kretprobe:f+1", "column 12: expected `,` or the end, found `+`"),
        (
            "uprobe:/bin/sh",
            "column 15: expected `:` and a function, as in `uprobe:/bin/sh:main`, found the end",
        ),
        ("uprobe::main", "column 8: expected the path of a file, found `:`"),
        ("cycles:", "column 8: expected modifiers, as in `cycles:u`, found the end"),
        ("sched:", "column 7: expected a tracepoint's name or modifiers, found the end"),
        (
            "cycles:uz",
            "column 9: no modifier `z`; there are u (user), k (kernel), h (hypervisor), I (not idle), \
             G (guests), H (host), p, pp, ppp and P (precise), D (pinned) and e (exclusive)",
        ),
        ("cycles:uu", "column 9: the modifier `u` is there twice"),
        (
            "cycles:pppp",
            "column 11: give one of p, pp, ppp and P; with those of its group, an event has at most ppp",
        ),
        (
            "cycles:pP",
            "column 9: give one of p, pp, ppp and P; with those of its group, an event has at most ppp",
        ),
        (
            "{cycles:pp}:pp",
            "column 12: give one of p, pp, ppp and P; with those of its group, an event has at most ppp",
        ),
        (
            "{cycles,cs:D}",
            "column 9: `D` is for a group's first event, or for the group: `{...}:D`",
        ),
        (
            "{cycles,cs}:S",
            "column 13: the modifier `S` is not supported: each event takes its own samples, \
             and carries no counts of its group's others",
        ),
        (
            "mem-loads:W",
            "column 11: the modifier `W` is not supported: a group that does not fit the PMU is an error; \
             leave out the braces",
        ),
    ] {
        assert_eq!(parse(typed).unwrap_err().to_string(), message, "{typed}");
    }
}

fn name() -> impl Strategy<Value = String> {
    // no name that means something by itself, and none that modifiers could be
    "[xyz][a-z0-9_.*?-]{0,8}"
}

fn text() -> impl Strategy<Value = String> {
    "[^'\\p{Cc}]{1,12}"
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(Value::Decimal),
        any::<u64>().prop_map(Value::Hex),
        text().prop_map(Value::Text),
    ]
}

fn term() -> impl Strategy<Value = Term> {
    (name(), prop::option::of(value())).prop_map(|(name, value)| Term { name, value })
}

fn place(may_have_offset: bool) -> impl Strategy<Value = Place> {
    let symbol = (text(), any::<u64>()).prop_map(move |(name, offset)| Place::Symbol {
        name,
        offset: if may_have_offset { offset } else { 0 },
    });
    prop_oneof![symbol, any::<u64>().prop_map(Place::Address)]
}

fn access() -> impl Strategy<Value = Access> {
    (1_u8..8).prop_map(|bits| Access {
        read: bits & 1 != 0,
        write: bits & 2 != 0,
        execute: bits & 4 != 0,
    })
}

fn what() -> impl Strategy<Value = What> {
    let generic: Vec<_> = Generic::all().collect();
    let cache: Vec<_> = CacheEvent::all().collect();
    prop_oneof![
        prop::sample::select(generic).prop_map(What::Generic),
        prop::sample::select(cache).prop_map(What::Cache),
        any::<u64>().prop_map(What::Raw),
        any::<(u32, u64)>().prop_map(|(kind, config)| What::Numeric { kind, config }),
        name().prop_map(What::Name),
        name().prop_map(What::Pmu),
        (name(), name()).prop_map(|(system, name)| What::Tracepoint { system, name }),
        (any::<u64>(), prop::option::of(1_u8..=8), access())
            .prop_map(|(address, length, access)| What::Breakpoint { address, length, access }),
        any::<bool>().prop_flat_map(|returns| {
            place(!returns).prop_map(move |place| What::Kprobe { place, returns })
        }),
        (text(), place(true), any::<bool>()).prop_map(|(path, place, returns)| What::Uprobe {
            path,
            place,
            returns
        }),
    ]
}

fn modifiers() -> impl Strategy<Value = Modifiers> {
    let precise = prop_oneof![(0..=Precise::MAX).prop_map(Precise::Level), Just(Precise::Most)];
    (any::<[bool; 8]>(), precise).prop_map(|(flags, precise)| {
        let [user, kernel, hypervisor, not_idle, guest, host, pinned, exclusive] = flags;
        Modifiers { user, kernel, hypervisor, not_idle, guest, host, precise, pinned, exclusive }
    })
}

fn event() -> impl Strategy<Value = Event> {
    (what(), prop::collection::vec(term(), 0..4), modifiers()).prop_map(
        |(what, terms, modifiers)| {
            let what = match what {
                What::Name(name) if !terms.is_empty() => What::Pmu(name),
                other => other,
            };
            Event { what, terms, modifiers }
        },
    )
}

fn group() -> impl Strategy<Value = Group> {
    let name = prop::option::of(name());
    (name, prop::collection::vec(event(), 1..4), modifiers()).prop_map(
        |(name, mut events, mut modifiers)| {
            if events.iter().any(|it| it.modifiers.precise != Precise::default()) {
                modifiers.precise = Precise::default();
            }
            for follower in events.iter_mut().skip(1) {
                follower.modifiers = follower.modifiers.of_follower();
            }
            Group { name, events, modifiers }
        },
    )
}

fn events() -> impl Strategy<Value = Events> {
    let item = prop_oneof![event().prop_map(Item::Event), group().prop_map(Item::Group)];
    prop::collection::vec(item, 1..4).prop_map(Events)
}

proptest! {
    #[test]
    fn what_is_printed_reads_as_the_same_tree(tree in events()) {
        prop_assert_eq!(parse(&tree.to_string()), Ok(tree));
    }

    #[test]
    fn any_text_is_events_or_an_error_within_it(text in any::<String>()) {
        if let Err(error) = parse(&text) {
            prop_assert!((1..=text.chars().count() + 1).contains(&error.column));
        }
    }

    #[test]
    fn text_that_nearly_is_an_event_reads_back_or_is_an_error(
        words in prop::collection::vec(prop::sample::select(vec![
            "cycles", "cs", "r1a", "mem", "0x1", "2", "kprobe", "uprobe", "LLC-loads", "u", "p", "rw",
            ":", "/", ",", "{", "}", "=", "'", "+", "*", " ",
        ]), 0..12),
    ) {
        if let Ok(events) = parse(&words.concat()) {
            prop_assert_eq!(parse(&events.to_string()), Ok(events));
        }
    }

    #[test]
    fn any_terms_of_sysfs_are_terms_or_an_error(text in "[a-z0-9x=,?'/]{0,20}") {
        let _ = parse_terms(&text);
    }
}
