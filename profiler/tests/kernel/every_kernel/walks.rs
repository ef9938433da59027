//! Each way to walk finds what it promises.

use serde_json::Value;

use crate::{
    every_kernel::unwinding::{SAMPLES, start, up_to, wait_for_tables},
    support::{Program, has_tables, symbols},
};

#[test]
#[ignore = "needs root: cargo xtask test"]
fn frame_pointers_alone_find_what_keeps_them() {
    let program = Program::start("chain.c");
    program.wait_for_ticks(5);
    let mut run = start(&program, &["--call-graph", "fp"]);
    for _ in 0..SAMPLES / 4 {
        let sample = run.sample(|it| it["user"][0]["symbol"] == "inner");
        assert_eq!(symbols(&sample["user"])[..4], ["inner", "middle", "outer", "main"], "{sample}");
        // Of libc, below, it depends on the machine.
        assert!(sample["user_end"] != "no_unwind_info", "{sample}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn frame_pointers_alone_say_where_there_is_none() {
    // It uses the register for a number.
    let program = Program::ready("nocfi.c", &["lost"]);
    let mut run = start(&program, &["--call-graph", "fp"]);
    for _ in 0..SAMPLES / 4 {
        let sample = run.sample(|it| it["user"][0]["symbol"] == "works");
        assert_eq!(sample["user_end"], "no_frame_pointer", "{sample}");
        assert!(symbols(&sample["user"]).len() <= 2, "{sample}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn tables_alone_are_complete_without_frame_pointers() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("nofp.c", &[]);
    let mut run = start(&program, &["--call-graph", "dwarf"]);
    wait_for_tables(&mut run);
    for _ in 0..SAMPLES / 4 {
        let sample = run.sample(|it| it["user"][0]["symbol"] == "inner");
        assert_eq!(sample["user_end"], "complete", "{sample}");
        assert_eq!(up_to(&sample, "main"), ["inner", "middle", "outer", "main"], "{sample}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn tables_alone_do_not_follow_frame_pointers() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("nocfi.c", &["fp"]);
    let mut run = start(&program, &["--call-graph", "dwarf"]);
    let in_works = |it: &Value| it["user"][0]["symbol"] == "works";
    run.sample(|it| in_works(it) && it["user_end"] == "no_unwind_info");
    for _ in 0..SAMPLES / 4 {
        let sample = run.sample(in_works);
        assert_eq!(sample["user_end"], "no_unwind_info", "{sample}");
        assert_eq!(symbols(&sample["user"]), ["works", "keeps_fp"], "{sample}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn without_a_call_graph_there_is_one_frame() {
    let program = Program::ready("nofp.c", &[]);
    let mut run = start(&program, &["--call-graph", "none"]);
    for _ in 0..SAMPLES / 4 {
        let sample = run.sample(|it| it["user_end"] != "not_captured");
        assert_eq!(symbols(&sample["user"]).len(), 1, "{sample}");
        assert_eq!(sample["user_end"], "depth", "{sample}");
    }
}
