//! Stacks stay whole where they cross what compilers know nothing of: signals, the kernel, stubs,
//! libraries, threads, assembly, and code made at run time.

use std::{collections::HashSet, process::Command};

use profiler::stderr;
use serde_json::{Value, json};

use crate::{
    every_kernel::unwinding::{
        Chain as _, SAMPLES, assert_chain_of, is_by_tables, start, up_to, wait_for_tables,
    },
    support::{Program, Run, has_tables, is_installed, symbols},
};

/// The name of the code that a handler returns to; on aarch64 it is the kernel's.
const TRAMPOLINE: &str =
    if cfg!(target_arch = "aarch64") { "__kernel_rt_sigreturn" } else { "__restore_rt" };

#[test]
#[ignore = "needs root: cargo xtask test"]
fn below_a_handler_is_what_the_signal_interrupted() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("signals.c", &["timer"]);
    let mut run = start(&program, &[]);
    wait_for_trampoline(&mut run);
    let chain = ["in_handler", "handler", TRAMPOLINE, "interrupted", "main"];
    assert_chain_of(&mut run, &chain, names_around_signal);
}

/// The names up to `main`, with that of the trampoline also while the kernel ends the signal. `None`
/// while the kernel writes registers.
fn names_around_signal(sample: &Value) -> Option<Vec<String>> {
    if is_between_registers(sample) {
        return None;
    }
    let mut names = up_to(sample, "main");
    // The program counter is behind the call that ends the signal, and on aarch64 the symbol ends with
    // that.
    let is_in_kernel = sample["kernel"] != json!([]);
    if is_in_kernel && sample["user"][0]["module"] == "[vdso]" && names[0] == "?" {
        TRAMPOLINE.clone_into(&mut names[0]);
    }
    Some(names)
}

/// Whether the kernel was about to give a handler its registers, or what the signal interrupted: it
/// writes one after another, and between two of them they are those of neither.
pub(crate) fn is_between_registers(sample: &Value) -> bool {
    let kernel = symbols(&sample["kernel"]);
    let Some(kernel_innermost) = kernel.first() else { return false };
    if cfg!(target_arch = "x86_64") {
        let writes = [
            "restore_sigcontext",
            "__do_sys_rt_sigreturn",
            "__x64_sys_rt_sigreturn",
            "x64_setup_rt_frame",
            "__setup_rt_frame",
            "arch_do_signal_or_restart",
        ];
        return writes.contains(kernel_innermost);
    }
    // From and to memory of the process there, and emulated CPUs are often interrupted right then. The
    // handler's are complete with the link register, which comes after the program counter.
    let innermost = &sample["user"][0];
    let is_handler = ["handler", "short_handler"].iter().any(|it| innermost["symbol"] == *it);
    let ends = ["restore_sigframe", "__arm64_sys_rt_sigreturn"];
    is_handler && innermost["offset"] == 0 || kernel.iter().any(|it| ends.contains(it))
}

/// Waits for the tables of a program with signals, and on aarch64, where it is in no file of the
/// program, for that of what ends them.
fn wait_for_trampoline(run: &mut Run) {
    wait_for_tables(run);
    if cfg!(target_arch = "aarch64") {
        run.sample(|it| is_by_tables(it) && symbols(&it["user"]).contains(&TRAMPOLINE));
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_end_of_a_signal_is_no_end_of_the_stack() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("signals.c", &["often"]);
    let mut run = start(&program, &[]);
    wait_for_trampoline(&mut run);
    let (mut all, mut ending) = (0, 0);
    while all < SAMPLES || ending < 5 {
        let sample = run.sample(|_| true);
        let Some(names) = names_around_signal(&sample) else { continue };
        assert_eq!(sample["user_end"], "complete", "{sample}");
        let Some(own) = names.iter().position(|it| it == "raises") else { continue };
        assert_eq!(names[own + 1..], ["main"], "{names:?} {sample}");
        all += 1;
        ending += usize::from(names[0] == TRAMPOLINE && sample["kernel"] != json!([]));
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_function_whose_first_instruction_faults_is_not_its_neighbour() {
    for stack in ["fault", "stack"] {
        if !has_tables() {
            return;
        }
        let program = Program::ready("signals.c", &[stack]);
        let mut run = start(&program, &[]);
        let chain = ["in_handler", "handler", TRAMPOLINE, "faults", "caller", "main"];
        run.sample(|it| is_by_tables(it) && symbols(&it["user"]).contains(&TRAMPOLINE));
        for _ in 0..SAMPLES {
            let sample = run.sample(|_| true);
            assert_eq!(sample["user_end"], "complete", "{sample}");
            let names = up_to(&sample, "main");
            assert!(names == chain || names == chain[1..], "{stack}: {names:?} {sample}");
            let interrupted = sample["user"].as_array().unwrap();
            let interrupted = interrupted.iter().find(|it| it["symbol"] == "faults").unwrap();
            assert_eq!(interrupted["offset"], 0, "{sample}");
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_stub_that_leads_to_a_library_is_one_frame() {
    assert_stub_is_one_frame("plt.c");
}

/// Calls go through `.plt.sec` there, and `.plt` has the rest of each stub.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_stub_that_begins_with_a_mark_is_one_frame() {
    if cfg!(target_arch = "aarch64") {
        return stderr::say("skipped: the mark is one of x86-64");
    }
    assert_stub_is_one_frame("plt_marked.c");
}

fn assert_stub_is_one_frame(fixture: &str) {
    if !has_tables() {
        return;
    }
    let program = Program::ready(fixture, &[]);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    let mut in_stub = 0;
    for _ in 0..SAMPLES {
        let sample = run.sample(|_| true);
        assert_eq!(sample["user_end"], "complete", "{sample}");
        let names = up_to(&sample, "main");
        let module = sample["user"][0]["module"].as_str().unwrap();
        match names[..] {
            [_] => {}
            [ref calls, _] => assert_eq!(calls, "calls"),
            // The stub has no symbol, and that of the library differs.
            [_, ref calls, _] => {
                assert_eq!(calls, "calls", "{sample}");
                in_stub +=
                    usize::from(module.ends_with(&format!("/{}", fixture.replace('.', "-"))));
            }
            _ => panic!("{names:?} {sample}"),
        }
    }
    assert!(in_stub > 0);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_code_that_the_kernel_maps_is_one_step_of_the_chain() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("clock.c", &[]);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    let mut in_vdso = 0;
    for _ in 0..SAMPLES {
        let sample = run.sample(|_| true);
        assert_eq!(sample["user_end"], "complete", "{sample}");
        let names = up_to(&sample, "main");
        let frames = sample["user"].as_array().unwrap();
        let is_vdso = |it: &&Value| it["module"] == "[vdso]";
        let vdso = frames.iter().take_while(is_vdso).count();
        let libc =
            frames[vdso..].iter().take_while(|it| it["module"].as_str().unwrap().contains("libc"));
        let own = &names[vdso + libc.count()..];
        assert!(
            ["stub", "asks", "wants", "main"].ends_with_names(own) || own[1] == "asks",
            "{names:?}"
        );
        if vdso > 0 {
            // It calls functions of its own, and is called by libc.
            assert!(vdso <= 2 && names.len() - own.len() == vdso + 1, "{names:?} {sample}");
            assert_eq!(*own, ["asks", "wants", "main"], "{names:?} {sample}");
            in_vdso += 1;
        }
    }
    assert!(in_vdso > 0);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_sample_in_a_system_call_has_both_halves_whole() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("reads.c", &[]);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    let mut both = 0;
    for _ in 0..SAMPLES {
        let sample = run.sample(|_| true);
        assert_eq!(sample["user_end"], "complete", "{sample}");
        if symbols(&sample["kernel"]).contains(&"vfs_read") {
            let names = up_to(&sample, "main");
            assert!(sample["user"][0]["module"].as_str().unwrap().contains("libc"), "{sample}");
            assert_eq!(names[1..], ["reads", "wants", "main"], "{sample}");
            both += 1;
        }
    }
    assert!(both > SAMPLES / 2, "{both}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_thread_ends_where_it_was_started() {
    if has_tables() {
        assert_threads_end_where_they_were_started("threads.c");
    }
}

pub(crate) fn assert_threads_end_where_they_were_started(fixture: &str) {
    let program = Program::ready(fixture, &[]);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    assert_chain_of(&mut run, &["inner", "worker"], |sample| {
        assert_ne!(sample["tid"], sample["pid"], "{sample}");
        Some(up_to(sample, "worker"))
    });
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_coroutine_has_the_frames_of_its_own_stack() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("coroutines.c", &[]);
    let mut run = start(&program, &[]);
    let is_loaded = |it: &Value| it["user_end"] != "unwind_info_not_loaded";
    run.sample(|it| symbols(&it["user"]).contains(&"pings") && is_loaded(it));
    let (mut pings, mut pongs) = (0, 0);
    while pings < SAMPLES / 4 || pongs < SAMPLES / 4 {
        // Between the two is libc, which has frames of neither for some instructions.
        let sample = run.sample(|it| it["user"][0]["symbol"] == "works");
        let names = symbols(&sample["user"]);
        match names[..] {
            ["works", "pings", _] => pings += 1,
            ["works", "pongs", _] => pongs += 1,
            _ => panic!("{names:?} {sample}"),
        }
        // libc has them return to the first instruction of a function of its own, and nothing is said
        // of what is before it.
        if cfg!(target_arch = "x86_64") {
            assert_eq!(sample["user_end"], "no_unwind_info", "{sample}");
        }
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_child_of_vfork_has_the_stack_of_its_parent() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("vforks.c", &[]);
    let mut run = Run::start(&["-f", "json", "-F", "997"]);
    let of_child = |it: &Value| it["comm"] == "vforks-c" && it["pid"] != program.0.id();
    run.sample(|it| of_child(it) && is_by_tables(it));
    for _ in 0..SAMPLES {
        let sample = run.sample(of_child);
        assert_eq!(sample["user_end"], "complete", "{sample}");
        assert_eq!(up_to(&sample, "main"), ["in_child", "forks", "main"], "{sample}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_loaded_library_that_calls_back_is_in_between() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("callback.c", &[]);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    for _ in 0..SAMPLES {
        let sample = run.sample(|it| symbols(&it["user"]).contains(&"called_back"));
        assert_eq!(sample["user_end"], "complete", "{sample}");
        let chain = ["called_back", "one_inner", "one_calls_back", "wants_one", "main"];
        assert_eq!(up_to(&sample, "main"), chain, "{sample}");
    }
}

/// Samples that come between the change and its record are still walked by the rules of what was there
/// before, and can be wrong.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_library_in_the_place_of_another_has_its_own_rules_when_it_is_known() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("callback.c", &[]);
    let mut run = start(&program, &[]);
    let chains = [
        ["called_back", "one_inner", "one_calls_back", "wants_one", "main"].as_slice(),
        &["called_back", "two_calls_back", "wants_two", "main"],
    ];
    let mut places = HashSet::new();
    for round in 0..20 {
        let chain = chains[round % 2];
        let is_called = |it: &Value| symbols(&it["user"]).contains(&"called_back");
        let is_right = |it: &Value| is_by_tables(it) && symbols(&it["user"]).starts_with(chain);
        let first = run.sample(is_right);
        let addresses = first["user"].as_array().unwrap()[1..chain.len() - 2].iter();
        places.extend(addresses.map(|it| address(it) >> 12));
        for _ in 0..SAMPLES / 8 {
            let sample = run.sample(is_called);
            assert_eq!(sample["user_end"], "complete", "{sample}");
            assert_eq!(up_to(&sample, "main"), chain, "{sample}");
        }
        // SAFETY: no preconditions; the child has not been waited for, so the pid is its own.
        assert_eq!(unsafe { libc::kill(program.0.id().try_into().unwrap(), libc::SIGUSR1) }, 0);
    }
    assert_eq!(places.len(), 1, "the code of both was to lie in the same page");
}

fn address(frame: &Value) -> u64 {
    let hex = frame["addr"].as_str().unwrap().trim_start_matches("0x");
    u64::from_str_radix(hex, 16).unwrap()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_that_becomes_another_is_complete_before_and_after() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("changes.c", &[]);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    assert_chain_of(&mut run, &["first", "main"], |sample| {
        let names = up_to(sample, "main");
        assert!(["first", "before", "main"].ends_with_names(&names), "{names:?} {sample}");
        Some(vec![names[0].clone(), "main".to_owned()])
    });
    // SAFETY: no preconditions; the child has not been waited for, so the pid is its own.
    assert_eq!(unsafe { libc::kill(program.0.id().try_into().unwrap(), libc::SIGUSR1) }, 0);
    // On a slow machine it is seen in libc's start, too.
    let is_in_chain = |it: &Value| it["user"][0]["symbol"] == "inner" && is_by_tables(it);
    run.sample(|it| it["comm"] == "nofp_static-c" && is_in_chain(it));
    assert_chain_of(&mut run, &["inner", "middle", "outer", "main"], |sample| {
        assert_eq!(sample["comm"], "nofp_static-c");
        Some(up_to(sample, "main"))
    });
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn assembly_that_keeps_the_frame_pointer_needs_no_tables() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("nocfi.c", &["fp"]);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    for _ in 0..SAMPLES {
        // Its own instructions before the frame is there lead to the caller's caller.
        let sample = run.sample(|it| it["user"][0]["symbol"] == "works");
        assert_eq!(sample["user_end"], "complete", "{sample}");
        assert_eq!(up_to(&sample, "main"), ["works", "keeps_fp", "calls", "main"], "{sample}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn assembly_without_tables_or_frame_pointer_ends_the_stack() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("nocfi.c", &["lost"]);
    let mut run = start(&program, &[]);
    let is_in_works = |it: &Value| it["user"][0]["symbol"] == "works";
    run.sample(|it| is_in_works(it) && it["user_end"] == "no_unwind_info");
    for _ in 0..SAMPLES {
        let sample = run.sample(is_in_works);
        assert_eq!(sample["user_end"], "no_unwind_info", "{sample}");
        assert_eq!(symbols(&sample["user"]), ["works", "loses_fp"], "{sample}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn code_made_at_run_time_is_crossed_by_its_frame_pointers() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("jitframes.c", &[]);
    let mut run = start(&program, &[]);
    wait_for_tables(&mut run);
    for _ in 0..SAMPLES {
        let sample = run.sample(|it| it["user"][0]["symbol"] == "called_back");
        assert_eq!(sample["user_end"], "complete", "{sample}");
        let names = up_to(&sample, "main");
        assert_eq!(names, ["called_back", "?", "runs", "main"], "{sample}");
        assert_eq!(sample["user"][1]["module"], "[anon]", "{sample}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn javascript_is_complete_down_to_the_start_of_its_engine() {
    if !has_tables() {
        return;
    }
    if !is_installed("node") {
        return;
    }
    let script = "function hot_in_javascript(n) {
                      let sum = 0;
                      for (let i = 0; i < n; i++) sum = (sum + 7 * i) % 1000003;
                      return sum;
                  }
                  function calls(n) { return [1, 2, 3].map((it) => hot_in_javascript(it * n)); }
                  for (;;) calls(1000);";
    let mut node = Command::new("node");
    let program =
        Program(node.args(["--perf-basic-prof-only-functions", "-e", script]).spawn().unwrap());
    let mut run = start(&program, &[]);
    let is_made =
        |it: &Value| it["user"].as_array().unwrap().iter().any(|it| it["module"] == "[JIT]");
    // The engine's table is a large one, and what its compiler makes comes with time.
    run.sample(|it| is_made(it) && is_by_tables(it));
    let (mut complete, mut all) = (0, 0);
    while all < SAMPLES {
        let sample = run.sample(is_made);
        all += 1;
        if sample["user_end"] == "complete" {
            complete += 1;
            let frames = sample["user"].as_array().unwrap();
            // From made code to the engine's, libc's, and its own start.
            let engine = frames[frames.len() - 1]["module"].as_str().unwrap();
            let made = frames.iter().rposition(|it| it["module"] == "[JIT]").unwrap();
            let below = frames[made..].iter().filter(|it| it["module"] == engine).count();
            assert!(below > 3, "{sample}");
        }
    }
    // Code that is being called has no frame yet: its caller's caller is found.
    assert!(complete * 100 >= all * 99, "{complete} of {all}");
}
