use std::{sync::Arc, time::Duration};

use super::*;
use crate::{
    export::{Row, tests::location},
    frame::Frame,
    process::Metadata,
    profile::BEYOND,
    sample::{Comm, Sample, Task},
    source::Source,
    stack_end::StackEnd,
    store::Store,
};

const SECOND: u64 = 1_000_000_000;
const ENOUGH: usize = 1 << 20;

/// A sample of a program at a time, its user stack innermost first.
pub(crate) fn sample(store: &mut Store, time_ns: u64, name: &str, stack: &[&str]) -> Sample {
    let frame = |name: &&str| {
        let (symbol, module) = (Some(Arc::from(*name)), Some(Arc::from("/bin/a")));
        // Each function is at a place of its own, by which a store tells most stacks apart.
        let address = name.bytes().fold(7, |sum: u64, byte| sum * 31 + u64::from(byte));
        location(address, &[Frame { symbol, module, ..Frame::default() }])
    };
    let user = store.intern(stack.iter().map(frame).collect());
    let tgid = u32::try_from(name.len()).unwrap();
    let task = Task { tgid, tid: tgid, comm: Comm::of(name), ..Task::default() };
    Sample { time_ns, task, user, cpu: 0, ..crate::export::tests::sample() }
}

fn window(length: u64, limit_bytes: usize, samples: &[Sample]) -> Window {
    let mut window = Window::new(Duration::from_secs(length), limit_bytes, 0);
    for it in samples {
        window.add(&Row::from(it));
    }
    window
}

fn count(snapshot: &Snapshot) -> u64 {
    snapshot.lines.iter().map(|it| it.count).sum()
}

/// Samples of the window, of all sources.
fn in_window(snapshot: &Snapshot) -> u64 {
    snapshot.sources.iter().map(|it| it.samples).sum()
}

/// The rows of functions by name, hottest first: own and total.
fn functions(stacks: &Stacks, filter: &Filter) -> Vec<(String, u64, u64)> {
    let rows = stacks.function_rows(&filter.stacks(stacks));
    let name = |it: &FunctionRow| stacks.get(it.function).unwrap().name.name.clone();
    let mut rows: Vec<_> = rows.iter().map(|it| (name(it), it.own, it.total)).collect();
    rows.sort_by_key(|(name, own, total)| (std::cmp::Reverse((*own, *total)), name.clone()));
    rows
}

#[test]
fn the_window_moves_and_the_start_stays() {
    let mut store = Store::default();
    let samples: Vec<Sample> =
        (0..20).map(|it| sample(&mut store, it * SECOND, "web", &["a", "main"])).collect();
    let mut window = window(5, ENOUGH, &samples);
    let now = 19 * SECOND + SECOND / 4;
    let snapshot = window.snapshot(Span::Window, now);
    assert_eq!((count(&snapshot), in_window(&snapshot)), (5, 5));
    // Ten slices, of which every second has a sample.
    assert_eq!((snapshot.rate.len(), snapshot.rate.iter().sum::<u64>()), (10, 5));
    let start = window.snapshot(Span::Start, now);
    assert_eq!((count(&start), start.time), (20, Duration::from_nanos(now)));
    // Nothing comes any more.
    assert_eq!(count(&window.snapshot(Span::Window, now + 60 * SECOND)), 0);
    assert_eq!(count(&window.snapshot(Span::Start, now + 60 * SECOND)), 20);
}

#[test]
fn a_sample_that_comes_late_is_of_its_own_slice() {
    let mut store = Store::default();
    let samples = [4, 1, 3].map(|it| sample(&mut store, it * SECOND, "web", &["a"]));
    let mut window = window(5, ENOUGH, &samples);
    assert_eq!(count(&window.snapshot(Span::Window, 4 * SECOND)), 3);
    assert_eq!(count(&window.snapshot(Span::Window, 10 * SECOND)), 0);
}

#[test]
fn memory_is_bounded_and_no_sample_is_forgotten() {
    let mut store = Store::default();
    let name = |it: u64| format!("f{it}");
    let samples: Vec<Sample> = (0..5000_u64)
        .map(|it| sample(&mut store, it * SECOND / 500, "web", &[&name(it), "main"]))
        .collect();
    for limit in [40_000, 200_000] {
        let mut window = window(60, limit, &samples);
        let most = limit as u64 + limit as u64 / 4;
        assert!(window.account().bytes <= most, "{:?}", window.account());
        let snapshot = window.snapshot(Span::Window, 10 * SECOND);
        assert!(snapshot.short_of > Duration::ZERO && count(&snapshot) == in_window(&snapshot));
        let start = window.snapshot(Span::Start, 10 * SECOND);
        assert_eq!(count(&start), 5000);
        let stacks = Stacks::of(start);
        let rows = functions(&stacks, &Filter::default());
        assert_eq!(rows[0].0, BEYOND, "{rows:?}");
    }
    // One slice that is too much.
    let all: Vec<Sample> = samples.iter().map(|it| Sample { time_ns: 1, ..it.clone() }).collect();
    let mut window = window(60, 40_000, &all);
    assert!(window.account().bytes < 60_000, "{:?}", window.account());
    assert_eq!(count(&window.snapshot(Span::Window, 2)), 5000);
}

#[test]
fn functions_are_counted_once_a_stack() {
    let mut store = Store::default();
    let samples = [
        sample(&mut store, 1, "web", &["f", "f", "main"]),
        sample(&mut store, 1, "web", &["f", "f", "main"]),
        sample(&mut store, 1, "sql+", &["g", "main"]),
        sample(&mut store, 1, "sql+", &["main"]),
    ];
    let stacks = Stacks::of(window(5, ENOUGH, &samples).snapshot(Span::Window, 2));
    let rows = |of: &[(&str, u64, u64)]| -> Vec<(String, u64, u64)> {
        of.iter().map(|(name, own, total)| ((*name).to_owned(), *own, *total)).collect()
    };
    let all = functions(&stacks, &Filter::default());
    assert_eq!(all, rows(&[("f", 2, 2), ("main", 1, 4), ("g", 1, 1)]));
    let web = Filter { process: Some(3), ..Filter::default() };
    assert_eq!(functions(&stacks, &web), rows(&[("f", 2, 2), ("main", 0, 2)]));
    let g = FunctionName { name: "g".into(), module: "/bin/a".into() };
    let of_g = Filter { function: Some(g.clone()), ..Filter::default() };
    assert_eq!(functions(&stacks, &of_g), rows(&[("g", 1, 1), ("main", 0, 1)]));
    // They combine.
    let neither = Filter { function: Some(g), ..web };
    assert!(functions(&stacks, &neither).is_empty());
    let none = FunctionName { name: "none".into(), module: String::new() };
    let of_none = Filter { function: Some(none), ..Filter::default() };
    assert!(functions(&stacks, &of_none).is_empty());
}

#[test]
fn neighbours_are_what_calls_and_is_called() {
    let mut store = Store::default();
    let samples = [
        sample(&mut store, 1, "web", &["leaf", "f", "f", "main"]),
        sample(&mut store, 1, "web", &["f", "other"]),
        sample(&mut store, 1, "web", &["f", "other"]),
        sample(&mut store, 1, "web", &["f"]),
    ];
    let stacks = Stacks::of(window(5, ENOUGH, &samples).snapshot(Span::Window, 2));
    let all = Filter::default().stacks(&stacks);
    let f = stacks.find(&FunctionName { name: "f".into(), module: "/bin/a".into() }).unwrap();
    let found = stacks.neighbours(&all, f);
    let named = |of: &[(usize, u64)]| -> Vec<(String, u64)> {
        of.iter().map(|(it, count)| (stacks.get(*it).unwrap().name.name.clone(), *count)).collect()
    };
    assert_eq!((found.own, found.total, found.outermost), (3, 4, 1));
    assert_eq!(named(&found.callers), [("other".to_owned(), 2), ("main".to_owned(), 1)]);
    assert_eq!(named(&found.callees), [("leaf".to_owned(), 1)]);
}

#[test]
fn flames_add_up() {
    let mut store = Store::default();
    let samples = [
        sample(&mut store, 1, "web", &["b", "main"]),
        sample(&mut store, 1, "web", &["a", "main"]),
        sample(&mut store, 1, "web", &["a", "main"]),
        sample(&mut store, 1, "sql+", &["a"]),
    ];
    let stacks = Stacks::of(window(5, ENOUGH, &samples).snapshot(Span::Window, 2));
    let flame = Flame::of(&stacks, &Filter::default().stacks(&stacks));
    assert_eq!(flame.get(0).unwrap().total, 4);
    for (place, node) in flame.nodes().iter().enumerate() {
        let calls: Vec<_> = flame.calls(place).map(|it| flame.get(it).unwrap()).collect();
        assert!(calls.iter().all(|it| it.parent == place), "{node:?}");
        let totals: u64 = calls.iter().map(|it| it.total).sum();
        assert_eq!(node.total, node.own + totals, "{node:?}");
        let names: Vec<_> = calls.iter().map(|it| &it.name).collect();
        assert!(names.is_sorted(), "{names:?}");
    }
    let path: Vec<FunctionName> = [("web", ""), ("main", "/bin/a"), ("a", "/bin/a")]
        .map(|(name, module)| FunctionName { name: name.into(), module: module.into() })
        .into();
    let place = flame.follow(&path);
    assert_eq!((flame.path(place), flame.get(place).unwrap().total), (path.clone(), 2));
    // What is not there any more leads to where it was called.
    let gone = [&path[..2], &[FunctionName { name: "c".into(), module: String::new() }]].concat();
    assert_eq!(flame.path(flame.follow(&gone)), path[..2]);
    assert_eq!(flame.matching(|it| it.name.name == "a"), 3);
    assert_eq!(flame.matching(|it| ["main", "a"].contains(&&*it.name.name)), 4);
}

#[test]
fn stacks_that_are_cut_are_told_by_why() {
    let mut store = Store::default();
    let ends = [
        (StackEnd::Complete, 5),
        (StackEnd::NoFramePointer, 2),
        (StackEnd::Depth, 3),
        (StackEnd::NoUserMemory, 9),
    ];
    let mut samples = Vec::new();
    for (end, count) in ends {
        let of = sample(&mut store, 1, "web", &["a"]);
        samples.extend((0..count).map(|_| Sample { user_end: end, ..of.clone() }));
    }
    // Of another event.
    let one = sample(&mut store, 1, "web", &["a"]);
    let source = Arc::new(Source { slot: 2, ..(*one.source).clone() });
    samples.push(Sample { source, user_end: StackEnd::Depth, ..one });
    let snapshot = window(5, ENOUGH, &samples).snapshot(Span::Window, 2);
    let of = |slot: usize| (snapshot.sources[slot].samples, snapshot.sources[slot].cut.clone());
    assert_eq!(of(0), (19, vec![(StackEnd::Depth, 3), (StackEnd::NoFramePointer, 2)]));
    assert_eq!((of(1), of(2)), ((0, vec![]), (1, vec![(StackEnd::Depth, 1)])));
}

#[test]
fn processes_that_have_begun_have_their_samples() {
    let mut store = Store::default();
    let samples = ["a", "bb", "bb", "ccc"].map(|name| sample(&mut store, 1, name, &["f"]));
    let stacks = Stacks::of(window(5, ENOUGH, &samples).snapshot(Span::Window, SECOND));
    let mut spawns = Spawns::new(Duration::from_secs(5), 0);
    for (tgid, parent) in [(2, 9), (2, 9), (7, 9), (7, 8)] {
        spawns.forked((tgid, parent), Comm::of("sh"), None, 1);
        spawns.executed(tgid, Comm::of("bb"));
        spawns.ended(tgid, 3);
    }
    let begun = spawns.snapshot(Span::Window, SECOND);
    let rows = |filter: &Filter| -> Vec<(u64, u64, u64)> {
        let rows = stacks.spawn_rows(&filter.stacks(&stacks), &begun, filter);
        rows.iter().map(|it| (it.spawned.count, it.spawned.ended, it.count)).collect()
    };
    assert_eq!(rows(&Filter::default()), [(4, 4, 2)]);
    let of = |process| Filter { process: Some(process), ..Filter::default() };
    assert_eq!((rows(&of(9)), rows(&of(8))), (vec![(3, 3, 0)], vec![(1, 1, 0)]));
    assert_eq!((rows(&of(2)), rows(&of(5))), (vec![(2, 2, 2)], vec![]));
    let by_name = |name: &str| Filter { name: Some(Comm::of(name)), ..Filter::default() };
    assert_eq!((rows(&by_name("sh")), rows(&by_name("bb"))), (vec![(4, 4, 0)], vec![(4, 4, 2)]));
    assert_eq!(functions(&stacks, &by_name("bb")), [("f".to_owned(), 2, 2)]);
}

#[test]
fn a_process_counts_once_and_what_is_known_of_it_may_change() {
    let mut store = Store::default();
    let described = |line: usize| {
        let command_line = Some("a".repeat(line));
        Some(Arc::new(Metadata { command_line, ..Metadata::default() }))
    };
    let (one, other) = (described(10_000), described(20_000));
    let of = |store: &mut Store, at, function: &str, process: &Option<Arc<Metadata>>| {
        let it = sample(store, at, "web", &[function]);
        Sample { task: Task { process: process.clone(), ..it.task.clone() }, ..it }
    };
    let mut window = window(5, ENOUGH, &[]);
    for function in ["a", "b"] {
        window.add(&Row::from(&of(&mut store, 1, function, &one)));
    }
    let bytes = window.account().bytes;
    assert!((10_000..15_000).contains(&bytes), "{bytes}");
    let before = window.snapshot(Span::Window, 2);
    for function in ["a", "b"] {
        window.add(&Row::from(&of(&mut store, 1, function, &other)));
    }
    let bytes = window.account().bytes;
    assert!((20_000..25_000).contains(&bytes), "{bytes}");
    // A snapshot keeps what it has.
    let is = |it: &Snapshot, process: &Option<Arc<Metadata>>| {
        it.lines.iter().all(|it| it.entry.task.process == *process)
    };
    assert!(is(&before, &one) && is(&window.snapshot(Span::Window, 2), &other));
}

#[test]
fn what_a_reader_holds_takes_its_part_of_the_limit() {
    let mut store = Store::default();
    let samples: Vec<Sample> = (0..200_u64)
        .map(|it| sample(&mut store, it * SECOND / 10, "web", &[&format!("f{it}"), "main"]))
        .collect();
    let snapshot = window(60, ENOUGH, &samples).snapshot(Span::Window, 20 * SECOND);
    assert_eq!((count(&snapshot), snapshot.short_of), (200, Duration::ZERO));
    let mut stacks = Stacks::default();
    stacks.take(snapshot);
    assert!(stacks.bytes() > 200 * size_of::<Line>(), "{}", stacks.bytes());
    let mut with_reader = window(60, ENOUGH, &[]);
    with_reader.set_beside(ENOUGH - 40_000);
    for it in &samples {
        with_reader.add(&Row::from(it));
    }
    let snapshot = with_reader.snapshot(Span::Window, 20 * SECOND);
    assert!(snapshot.short_of > Duration::ZERO, "{:?}", with_reader.account());
}

#[test]
fn lines_that_are_given_up_were_cold_longest() {
    let mut store = Store::default();
    let mut window = window(2, 60_000, &[]);
    let mut add = |window: &mut Window, at: u64, name: &str| {
        window.add(&Row::from(&sample(&mut store, at * SECOND, "web", &[name])));
    };
    // One that is sampled again and again, and is in each window, is never given up.
    for it in 0..2000 {
        add(&mut window, it, "hot");
        add(&mut window, it, &format!("f{it}"));
    }
    let stacks = Stacks::of(window.snapshot(Span::Start, 2000 * SECOND));
    let rows = functions(&stacks, &Filter::default());
    let of = |name: &str| rows.iter().find(|it| it.0 == name).map(|it| it.1);
    assert_eq!((of("hot"), of("f1990"), of("f0")), (Some(2000), Some(1), None));
    assert_eq!(rows.iter().map(|it| it.1).sum::<u64>(), 4000);
}

#[test]
fn stacks_of_the_next_snapshot_are_its_own() {
    let mut store = Store::default();
    let mut stacks = Stacks::default();
    for round in 0..600_u64 {
        let now = round * SECOND / 2;
        let name = format!("f{round}");
        let samples = [
            sample(&mut store, now, "web", &[&name, "main"]),
            sample(&mut store, now, "web", &["g", "main"]),
        ];
        stacks.take(window(5, ENOUGH, &samples).snapshot(Span::Window, now));
        let rows = functions(&stacks, &Filter::default());
        let expected = [(name, 1, 1), ("g".into(), 1, 1), ("main".into(), 0, 2)];
        let mut expected: Vec<(String, u64, u64)> = expected.into();
        expected
            .sort_by_key(|(name, own, total)| (std::cmp::Reverse((*own, *total)), name.clone()));
        assert_eq!(rows, expected);
    }
    // What was there once is not kept for ever.
    assert!(stacks.functions().len() < 300, "{}", stacks.functions().len());
}

#[test]
fn who_is_behind_sees_the_last_that_has_names() {
    let mut store = Store::default();
    let live = Live::new(window(5, ENOUGH, &[sample(&mut store, 9 * SECOND, "web", &["a"])]));
    live.tell(Vitals { is_behind: true, ..Vitals::default() });
    let snapshot = live.snapshot(Span::Window, 30 * SECOND);
    assert_eq!((count(&snapshot), snapshot.behind), (1, Duration::from_millis(20_500)));
    // Nothing waits: nothing was sampled since.
    live.tell(Vitals::default());
    let snapshot = live.snapshot(Span::Window, 30 * SECOND);
    assert_eq!((count(&snapshot), snapshot.behind), (0, Duration::ZERO));
}
