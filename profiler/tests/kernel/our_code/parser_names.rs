//! Names come from a parser process: what a file does to it costs that file only, and what others do to it costs
//! nothing.

use std::{fs, path::PathBuf, process::Command};

use object::{
    Endianness,
    elf::{FileHeader64, SHF_COMPRESSED},
    read::elf::{FileHeader as _, SectionHeader as _},
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    every_kernel::{
        parsing::{parsers, peak_kib, signal, start},
        unwinding::is_by_tables,
    },
    support::{Ended, Program, Run, fixture, has_tables, is_installed, parse_json, symbols},
};

/// What the agent and its parser processes may take at most, each.
const MAX_KIB: u64 = 400 << 10;
const TIB: u64 = 1 << 40;

/// The samples and the summary of a run that has lost nothing.
fn delivered(ended: &Ended) -> (Vec<Value>, Value) {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let (samples, summary) = parse_json(&ended.stdout);
    for why in ["agent_behind", "undelivered"] {
        assert_eq!(summary["lost"][why], 0, "{summary:#}");
    }
    (samples, summary)
}

/// A copy of a program whose packed debug information claims to be of this size when it is unpacked.
fn with_packed_claim(dir: &TempDir, bytes: u64) -> PathBuf {
    let path = dir.path().join("packed");
    let mut objcopy = Command::new("objcopy");
    objcopy.args(["--compress-debug-sections=zlib"]).args([&fixture("chain.c"), &path]);
    assert!(objcopy.status().unwrap().success());
    let mut data = fs::read(&path).unwrap();
    let header = FileHeader64::<Endianness>::parse(&*data).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, &*data).unwrap();
    let (_, section) = sections.section_by_name(endian, b".debug_info").unwrap();
    assert_ne!(section.sh_flags(endian) & u64::from(SHF_COMPRESSED), 0, "it is packed");
    // `ch_size`, behind `ch_type` and `ch_reserved`.
    let at = usize::try_from(section.sh_offset(endian)).unwrap() + 8;
    data[at..at + 8].copy_from_slice(&bytes.to_le_bytes());
    fs::write(&path, data).unwrap();
    path
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn packed_debug_info_that_claims_a_terabyte_costs_its_lines_only() {
    if !is_installed("objcopy") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = start(&with_packed_claim(&dir, TIB));
    let harmless = Program::start("chain.c");
    let (one, two) = (program.pid(), harmless.pid());
    let mut run = Run::start(&["-f", "json", "--lines", "-p", &one, "-p", &two]);
    // Without debug information, what was inlined into `inner` has no frame of its own.
    let sample = run.sample(|it| {
        it["pid"] == program.0.id() && symbols(&it["user"]).starts_with(&["inner", "middle"])
    });
    assert_eq!(sample["user"][0]["file"], Value::Null, "{sample}");
    let sample = run.sample(|it| {
        it["pid"] == harmless.0.id() && symbols(&it["user"]).starts_with(&["spin", "inner"])
    });
    assert_ne!(sample["user"][0]["file"], Value::Null, "{sample}");
    for process in parsers(&run).into_iter().chain([run.child.id()]) {
        assert!(peak_kib(process) < MAX_KIB, "{} KiB", peak_kib(process));
    }
    let (_, summary) = delivered(&run.end_by(libc::SIGINT));
    assert_eq!(summary["parsing"]["restarts"], 0, "{summary:#}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn killing_the_parser_process_of_names_costs_no_sample_its_name() {
    if !has_tables() {
        return;
    }
    let names = ["chain.c", "nofp.c", "nofp_debug.c", "plt.c", "nofp_static.c", "syscalls.c"];
    // Each has a file that is not asked about before it goes on.
    let programs = names.map(Program::start);
    programs.iter().for_each(Program::pause);
    let pids = programs.each_ref().map(Program::pid);
    let of = pids.iter().flat_map(|pid| ["-p", pid]);
    let arguments: Vec<&str> = ["-f", "json", "--lines"].into_iter().chain(of).collect();
    let mut run = Run::start(&arguments);
    let mut killed = 0;
    for program in &programs {
        program.go_on();
        run.sample(|it| {
            assert_parsed(it, &programs);
            // By then no table is being made either: a file whose request is killed twice is given up.
            let is_own = it["pid"] == program.0.id() && is_by_tables(it);
            is_own && symbols(&it["user"]).contains(&"main")
        });
        program.pause();
        for pid in parsers(&run) {
            signal(pid, libc::SIGKILL);
            killed += 1;
        }
    }
    assert!(killed >= programs.len(), "there was one each time");
    let (samples, summary) = delivered(&run.end_by(libc::SIGINT));
    assert_eq!(summary["parsing"]["barred"], 0, "{summary:#}");
    assert!(summary["parsing"]["restarts"].as_u64() > Some(0), "{summary:#}");
    for sample in &samples {
        assert_parsed(sample, &programs);
    }
}

/// Whether the files of these programs were parsed, as a sample shows them.
fn assert_parsed(sample: &Value, programs: &[Program]) {
    if !programs.iter().any(|program| sample["pid"] == program.0.id()) {
        return;
    }
    for frame in sample["user"].as_array().unwrap() {
        let origin = frame["origin"].as_str().unwrap_or_default();
        let unparsed = ["no parser process", "file can't be parsed within its limits"];
        assert!(!unparsed.contains(&origin), "{sample}");
    }
}
