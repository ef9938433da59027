//! Each way to walk finds what it promises, and tables find what perf finds.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::{Command, Stdio},
};

use profiler::stderr;
use serde_json::Value;

use crate::{
    support::{Program, has_tables, symbols},
    unwinding::{SAMPLES, start, up_to, wait_for_tables},
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
    }
}

/// A line of `perf script`.
struct PerfFrame {
    name: String,
    place: Place,
}

/// A file's name, and an address in a page of it: perf's addresses are those of the file, ours those
/// of the process.
type Place = (String, u64);

fn place(file: &str, address: &str) -> Option<Place> {
    let name = file.rsplit('/').next()?;
    Some((name.to_owned(), u64::from_str_radix(address, 16).ok()? & 0xfff))
}

/// What perf finds of a program by DWARF in as many samples, while `beside` runs: the user half of
/// each sample, innermost first. `None`, and said, where there is no perf.
fn perf(program: &Program, beside: impl FnOnce()) -> Option<Vec<Vec<PerfFrame>>> {
    if Command::new("perf").arg("--version").output().is_err() {
        stderr::say("skipped: perf is not installed");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("perf.data");
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-e", "cpu-clock:u", "-F", "499", "--call-graph", "dwarf,32768"]);
    record.args(["-p", &program.pid(), "-o"]).arg(&data).args(["--", "sleep", "3"]);
    let mut record = Program(record.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    beside();
    assert!(record.0.wait().unwrap().success());
    let mut script = Command::new("perf");
    script.args(["script", "--no-inline", "-F", "ip,sym,dso", "-i"]).arg(&data);
    let output = script.stderr(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let stacks = text.split("\n\n").map(|block| {
        let frames = block.lines().filter_map(|line| {
            let (address, name) = line.trim().split_once(' ')?;
            let (name, file) = name.rsplit_once(" (")?;
            let place = place(file.trim_end_matches(')'), address)?;
            Some(PerfFrame { name: name.to_owned(), place })
        });
        frames.collect::<Vec<_>>()
    });
    Some(stacks.filter(|frames| !frames.is_empty()).collect())
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_chains_are_those_that_perf_finds() {
    if !has_tables() {
        return;
    }
    let program = Program::ready("nofp.c", &[]);
    let mut ours = BTreeMap::<String, usize>::new();
    let add = |chains: &mut BTreeMap<String, usize>, names: &[&str]| {
        let main = names.iter().rposition(|name| *name == "main").unwrap_or(names.len() - 1);
        // How many there are below, since libc's functions have names here or there.
        let folded = format!("{};+{}", names[..=main].join(";"), names.len() - main - 1);
        *chains.entry(folded).or_default() += 1;
    };
    let theirs = perf(&program, || {
        let mut run = start(&program, &["--user-only"]);
        wait_for_tables(&mut run);
        for _ in 0..SAMPLES * 3 {
            add(&mut ours, &symbols(&run.sample(|_| true)["user"]));
        }
    });
    let Some(stacks) = theirs else { return };
    let mut theirs = BTreeMap::new();
    for stack in &stacks {
        add(&mut theirs, &stack.iter().map(|it| &*it.name).collect::<Vec<_>>());
    }
    stderr::say(&format!("ours: {ours:?}\nperf: {theirs:?}"));
    // The loop in main takes so little that one of the two may have no sample of it.
    let chains = |of: &BTreeMap<String, usize>| -> BTreeSet<String> {
        of.keys().filter(|chain| !chain.starts_with("main")).cloned().collect()
    };
    assert_eq!(chains(&ours), chains(&theirs));
    assert_eq!(chains(&ours).len(), 3);
}

const PYTHON: &str = "
import json
def encode(depth):
    return encode(depth - 1) if depth else json.dumps([{'a': [1, 2.5, None]}] * 20)
print(flush=True)
while True:
    encode(5)
";

/// Where the two differ, elsewhere: perf takes a copy of the top of the stack, of 64 KiB at most, and
/// so ends where that does; it shows 127 frames at most; where code has no symbol it names the nearest
/// before, so that places are compared here, and not names. Chains that perf has in few samples are
/// left out, since we have others in as many.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_stacks_of_python_are_those_that_perf_finds() {
    if !has_tables() {
        return;
    }
    let mut python = Command::new("python3");
    python.args(["-c", PYTHON]).stdin(Stdio::null()).stdout(Stdio::piped());
    let Ok(child) = python.spawn() else {
        return stderr::say("skipped: python3 is not installed");
    };
    let mut program = Program(child);
    std::io::Read::read_exact(program.0.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let (mut ours, mut complete) = (BTreeSet::new(), 0);
    let total = SAMPLES * 3;
    let theirs = perf(&program, || {
        let mut run = start(&program, &["--user-only"]);
        wait_for_tables(&mut run);
        for _ in 0..total {
            let sample = run.sample(|_| true);
            complete += usize::from(sample["user_end"] == "complete");
            let frames = sample["user"].as_array().unwrap().iter();
            let callers = frames.skip(1).map(|it| {
                let address = it["addr"].as_str().unwrap().trim_start_matches("0x");
                place(it["module"].as_str().unwrap_or("?"), address).unwrap()
            });
            ours.insert(callers.collect::<Vec<_>>());
        }
    });
    let Some(stacks) = theirs else { return };
    // Of a caller, perf gives the call's last byte, others what is behind it.
    let callers: BTreeSet<&Place> = ours.iter().flatten().collect();
    let mut theirs = BTreeMap::<Vec<Place>, usize>::new();
    let mut whole = 0;
    for stack in &stacks {
        let caller = |frame: &PerfFrame| {
            let (file, address) = frame.place.clone();
            let behind = (file, (address + 1) & 0xfff);
            if callers.contains(&behind) { behind } else { frame.place.clone() }
        };
        *theirs.entry(stack.iter().skip(1).map(caller).collect()).or_default() += 1;
        whole += usize::from(stack.last().is_some_and(|it| it.name == "_start"));
    }
    let common: Vec<_> = theirs.iter().filter(|(_, times)| **times * 100 >= stacks.len()).collect();
    let found = common.iter().filter(|(chain, _)| ours.contains(*chain)).count();
    stderr::say(&format!(
        "complete: {complete} of {total}, perf {whole} of {}; chains: {}, perf {}, of which {} are \
         common, and {found} of these are ours",
        stacks.len(),
        ours.len(),
        theirs.len(),
        common.len()
    ));
    assert!(complete * 100 >= total * 99, "{complete} of {total}");
    assert!(!common.is_empty());
    assert_eq!(found, common.len());
}
