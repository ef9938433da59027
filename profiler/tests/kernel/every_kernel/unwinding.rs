//! Stacks of programs without frame pointers come out whole, with each function in its place.
//!
//! The functions of the programs work for a while themselves, before and after they call the next
//! one, so that each is sampled as the innermost, at any of its instructions, and as a caller.

use std::collections::HashMap;

use object::{Object as _, ObjectSymbol as _};
use serde_json::Value;

use crate::support::{Program, Run, fixture, has_tables, symbols};

/// Samples of which each stack has to be right.
pub(crate) const SAMPLES: usize = 400;
/// How often each function has to be the innermost one.
const TIMES: usize = 5;
/// Where programs and threads begin.
const ENTRIES: [&str; 6] =
    ["_start", "__clone3", "clone3", "thread_start", "libc_start_main_stage2", "start"];
pub(crate) const CHAIN: [&str; 4] = ["inner", "middle", "outer", "main"];

pub(crate) fn start(program: &Program, arguments: &[&str]) -> Run {
    Run::start(&[&["-f", "json", "-F", "997", "-p", &program.pid()], arguments].concat())
}

/// Whether a stack is complete by tables in the kernel, and not walked by the agent before they are there.
pub(crate) fn is_by_tables(sample: &Value) -> bool {
    sample["user_end"] == "complete" && sample["user_from_snapshot"] == false
}

/// Reads until a stack is complete in the kernel: from then on the tables of what it goes through are
/// there.
pub(crate) fn wait_for_tables(run: &mut Run) {
    run.sample(is_by_tables);
}

/// Samples as the profiler gives them, each of which must be complete, until each function of the
/// chain has been the innermost one a few times. `judge` says what of a sample is to be in the chain;
/// that must be its end.
pub(crate) fn assert_chain_of(
    run: &mut Run,
    chain: &[&str],
    mut judge: impl FnMut(&Value) -> Option<Vec<String>>,
) {
    let mut times: HashMap<String, usize> = HashMap::new();
    let mut count = 0;
    let often = |times: &HashMap<String, usize>, name: &&str| {
        name.ends_with("main") || times.get(*name).is_some_and(|it| *it >= TIMES)
    };
    while count < SAMPLES || !chain.iter().all(|name| often(&times, name)) {
        let sample = run.sample(|_| true);
        let Some(names) = judge(&sample) else { continue };
        assert_eq!(sample["user_end"], "complete", "{names:?} {sample}");
        assert!(!names.is_empty() && chain.ends_with_names(&names), "{names:?} {sample}");
        *times.entry(names[0].clone()).or_default() += 1;
        count += 1;
    }
}

pub(crate) trait Chain {
    fn ends_with_names(&self, names: &[String]) -> bool;
}

impl Chain for [&str] {
    fn ends_with_names(&self, names: &[String]) -> bool {
        let skipped = self.len().checked_sub(names.len());
        skipped.is_some_and(|skipped| self[skipped..].iter().eq(names))
    }
}

/// The names up to a function, which libc's start must follow, and nothing else.
pub(crate) fn up_to(sample: &Value, outermost: &str) -> Vec<String> {
    let names = symbols(&sample["user"]);
    let Some(at) = names.iter().rposition(|name| *name == outermost) else {
        panic!("no {outermost} in {names:?}: {sample}");
    };
    // What they are called, and whether they have names, differs.
    let below = &sample["user"].as_array().unwrap()[at + 1..];
    assert!((1..=3).contains(&below.len()), "{names:?} {sample}");
    let last = names[names.len() - 1];
    assert!(ENTRIES.contains(&last) || last == "?", "{names:?} {sample}");
    names[..=at].iter().map(|&name| name.to_owned()).collect()
}

/// Each stack is an end of the chain of functions, which goes up to `main`.
pub(crate) fn assert_chain(fixture: &str, arguments: &[&str], chain: &[&str]) {
    if !has_tables() {
        return;
    }
    let program = Program::ready(fixture, arguments);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    assert_chain_of(&mut run, chain, |sample| Some(up_to(sample, "main")));
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_chain_without_frame_pointers_is_complete() {
    assert_chain("nofp.c", &[], &CHAIN);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_static_program_without_frame_pointers_is_complete() {
    assert_chain("nofp_static.c", &[], &CHAIN);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_static_program_that_is_loaded_anywhere_is_complete() {
    assert_chain("nofp_static_pie.c", &[], &CHAIN);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_stripped_program_has_the_same_frames() {
    if !has_tables() {
        return;
    }
    let functions = Functions::of("nofp.c");
    let program = Program::ready("nofp_stripped.c", &[]);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    assert_chain_of(&mut run, &CHAIN, |sample| {
        let frames = sample["user"].as_array().unwrap().iter();
        let own = frames.filter(|it| it["module"].as_str().unwrap().ends_with("nofp_stripped-c"));
        // Its code is that of the program with symbols, which lie behind it in the file.
        let mut names: Vec<String> = own
            .map(|it| it["offset"].as_u64().unwrap())
            .enumerate()
            .map(|(depth, offset)| functions.at(if depth == 0 { offset } else { offset - 1 }))
            .collect();
        assert_eq!(names.pop().as_deref(), Some("_start"), "{sample}");
        Some(names)
    });
}

/// The functions of a program, by where they lie in the file.
pub(crate) struct Functions(Vec<(u64, u64, String)>);

impl Functions {
    pub(crate) fn of(name: &str) -> Self {
        let bytes = std::fs::read(fixture(name)).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let functions = file.symbols().filter(|it| it.is_definition() && it.size() > 0);
        Self(
            functions
                .filter_map(|it| {
                    use object::{ObjectSection as _, SymbolSection};
                    let SymbolSection::Section(index) = it.section() else { return None };
                    let section = file.section_by_index(index).unwrap();
                    let start = it.address() - section.address() + section.file_range()?.0;
                    Some((start, start + it.size(), it.name().unwrap().to_owned()))
                })
                .collect(),
        )
    }

    /// That of an instruction: of a caller, the one before what it returns to.
    pub(crate) fn at(&self, offset: u64) -> String {
        let found = self.0.iter().find(|(start, end, _)| (*start..*end).contains(&offset));
        found.map_or_else(|| "?".to_owned(), |(.., name)| name.clone())
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_rust_program_without_frame_pointers_is_complete() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("nofp.rs", &[]);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    let chain = ["nofp::inner", "nofp::middle", "nofp::outer", "nofp::main", "main"];
    assert_chain_of(&mut run, &chain[..4], |sample| {
        let names = up_to(sample, "main");
        // Between the two mains is what the standard library does at the start.
        let at = names.iter().position(|name| name == "nofp::main").unwrap();
        let start = &names[at + 1..names.len() - 1];
        let is_start = |name: &String| name.starts_with("std::") || name.starts_with("core::");
        assert!(!start.is_empty() && start.iter().all(is_start), "{names:?}");
        Some(names[..=at].to_vec())
    });
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_that_throws_is_complete_in_its_handlers_and_on_the_way_there() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("throws.cpp", &[]);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    let chains = [
        ["in_handler", "catches", "main"].as_slice(),
        &["throws", "cleans_up", "catches", "main"],
        &["destroys", "cleans_up", "catches", "main"],
        &["throws_at_once", "catches_at_once", "main"],
    ];
    let own = chains.concat();
    let (mut times, mut unwinding, mut complete, mut all) = (HashMap::new(), 0, 0, 0);
    while all < SAMPLES || unwinding < TIMES || times.len() < 5 {
        // There the runtime puts the handler's registers in place of its own, one after another, and jumps:
        // what it has saved, and then the stack pointer, is of two stacks. It tells debuggers in between.
        const JUMPS: [&str; 4] = [
            "uw_install_context_1",
            "_Unwind_RaiseException",
            "_Unwind_Resume",
            "_Unwind_DebugHook",
        ];
        let is_between = |it: &Value| JUMPS.iter().any(|name| it["user"][0]["symbol"] == *name);
        let sample = run.sample(|it| !is_between(it));
        all += 1;
        if sample["user_end"] != "complete" {
            // Only in the runtime, where it jumps into the handler, there are instructions that are of
            // no frame.
            let is_loaded = sample["user_end"] != "unwind_info_not_loaded";
            let innermost = symbols(&sample["user"])[0].trim_end_matches(".cold");
            assert!(!(is_loaded && own.contains(&innermost)), "{sample}");
            continue;
        }
        complete += 1;
        // The compiler puts handlers apart from the rest of their function.
        let names = up_to(&sample, "main");
        let names: Vec<&str> = names.iter().map(|it| it.trim_end_matches(".cold")).collect();
        // What the runtime does, with functions of its own, is innermost.
        let runtime = names.iter().position(|name| own.contains(name)).unwrap();
        let names = names[runtime..].to_vec();
        assert!(chains.iter().any(|chain| chain.ends_with(&names)), "{names:?} {sample}");
        if runtime == 0 {
            *times.entry(names[0].to_owned()).or_insert(0) += 1;
        } else if names[0] == "throws_at_once" {
            unwinding += 1;
        }
    }
    assert!(complete * 100 >= all * 95, "{complete} of {all}");
}

/// Before a walk has looked for it there is no table in the kernel.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_first_stack_is_complete() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("nofp.c", &[]);
    // By then it is in its chain, and no longer in what tells that it is ready.
    program.wait_for_ticks(2);
    // Of what executes at the start the tables are made before: this one is not expected.
    program.pause();
    let mut run = start(&program, &[]);
    run.wait_until_it_samples();
    program.go_on();
    let mut sample = run.sample(|_| true);
    assert_eq!(sample["user_from_snapshot"], true, "{sample}");
    while sample["user_from_snapshot"] == true {
        assert_eq!(sample["user_end"], "complete", "{sample}");
        assert!(CHAIN.ends_with_names(&up_to(&sample, "main")), "{sample}");
        sample = run.sample(|_| true);
    }
    assert_eq!(sample["user_end"], "complete", "{sample}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_depth_is_reported_exactly_when_there_are_more_frames() {
    if !has_tables() {
        return;
    }
    let limit = std::fs::read_to_string("/proc/sys/kernel/perf_event_max_stack").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let frames = |calls: usize| {
        let program = Program::ready("depth.c", &[&calls.to_string()]);
        let mut run = start(&program, &["--user-only"]);
        let wanted = |it: &Value| it["user_end"] == "complete" || it["user_end"] == "depth";
        let first = run.sample(wanted);
        for _ in 0..100 {
            let sample = run.sample(|_| true);
            assert_eq!(sample["user_end"], first["user_end"], "{calls} calls: {sample}");
            let (one, other) = (symbols(&first["user"]), symbols(&sample["user"]));
            assert_eq!(one, other, "{calls} calls: {sample}");
        }
        let names: Vec<String> = symbols(&first["user"]).into_iter().map(str::to_owned).collect();
        assert!(names[..calls.min(limit)].iter().all(|it| it == "recurse"), "{names:?}");
        (names.len(), first["user_end"].as_str().unwrap().to_owned(), names)
    };
    let (count, end, names) = frames(20);
    assert_eq!(end, "complete");
    assert_eq!(names[20], "main");
    let below = count - 20;
    assert!((2..=4).contains(&below), "{names:?}");
    for calls in [100, limit - below, limit - below + 1, 126, limit, 200] {
        let (count, end, _) = frames(calls);
        let is_whole = calls + below <= limit;
        assert_eq!(end, if is_whole { "complete" } else { "depth" }, "{calls} calls");
        assert_eq!(count, (calls + below).min(limit), "{calls} calls");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn frames_may_be_large_grow_and_be_aligned() {
    let chain = [
        "leaf",
        "large",
        "medium",
        "growing",
        "aligned",
        "aligned_and_growing",
        "realigned",
        "main",
    ];
    assert_chain("frames.c", &[], &chain);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_follows_a_call_that_never_returns_is_not_the_caller() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("noreturn.c", &[]);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    let chain = ["never_returns", "ends_in_a_call", "caller", "main"];
    for _ in 0..SAMPLES {
        let sample = run.sample(|_| true);
        assert_eq!(sample["user_end"], "complete", "{sample}");
        assert_eq!(up_to(&sample, "main"), chain, "{sample}");
    }
    // That is what the program is for.
    let functions = Functions::of("noreturn.c");
    let (_, end, _) = functions.0.iter().find(|it| it.2 == "ends_in_a_call").unwrap();
    assert!(functions.0.iter().any(|it| it.0 == *end), "nothing begins behind the call");
}
