//! Stacks come out whole, in order, and with their names.

use std::{ops::RangeInclusive, process::Command};

use profiler::{bpf::features::EntryRegisters, stderr};
use serde_json::Value;

/// Lines of `chain.c`: the loop, and the calls. A return address may count to the line behind.
const SPIN: RangeInclusive<u64> = 8..=9;
const INNER: RangeInclusive<u64> = 13..=14;
const MIDDLE: RangeInclusive<u64> = 17..=18;
const OUTER: RangeInclusive<u64> = 22..=23;

use crate::support::{Program, Run, is_installed, symbols};

fn chain_of(run: &mut Run, pid: &Program, innermost: &str) -> Value {
    let pid: u64 = pid.pid().parse().unwrap();
    run.sample(|sample| {
        sample["pid"] == pid && symbols(&sample["user"]).first() == Some(&innermost)
    })
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_c_chain_in_json() {
    let program = Program::start("chain.c");
    let mut run = Run::start(&["-f", "json", "-F", "499"]);
    for _ in 0..50 {
        let sample = chain_of(&mut run, &program, "inner");
        assert_eq!(symbols(&sample["user"])[..4], ["inner", "middle", "outer", "main"]);
        assert_eq!(sample["tid"], sample["pid"]);
        assert_eq!(sample["comm"], "chain-c");
        let frame = &sample["user"][0];
        assert!(frame["module"].as_str().unwrap().ends_with("/chain-c"), "{frame}");
        assert!(frame["addr"].as_str().unwrap().starts_with("0x"), "{frame}");
        assert_eq!(frame["inlined"], false);
        // libc keeps no frame pointers here or there, so how it ends depends on the machine, and the
        // first stacks come before its table.
        let ends = ["complete", "no_frame_pointer", "depth", "unwind_info_not_loaded"];
        assert!(ends.contains(&sample["user_end"].as_str().unwrap()), "{sample}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_rust_chain_in_json() {
    let program = Program::start("chain.rs");
    let mut run = Run::start(&["-f", "json", "-p", &program.pid()]);
    let sample = chain_of(&mut run, &program, "chain::deep::inner");
    let chain = symbols(&sample["user"]);
    assert_eq!(chain[..3], ["chain::deep::inner", "chain::deep::outer", "chain::main"]);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_c_chain_in_text() {
    let program = Program::start("chain.c");
    let mut run = Run::start(&["-p", &program.pid()]);
    let head = format!("COMM: chain-c (pid={0} tid={0}) @ CPU ", program.pid());
    // A sample of the user's code has no kernel half.
    let mut block = Vec::new();
    while !block.starts_with(&["No Kernel Stack".to_owned(), "Userspace:".to_owned()]) {
        while !run.line().starts_with(&head) {}
        block = (0..6).map(|_| run.line().trim_end().to_owned()).collect();
    }
    for (depth, (line, function)) in
        block[2..].iter().zip(["inner", "middle", "outer", "main"]).enumerate()
    {
        assert!(line.starts_with(&format!("{depth:>3} [<0000")), "{line}");
        assert!(line.contains(&format!(">] {function}+0x")), "{line}");
        assert!(line.ends_with("/chain-c]"), "{line}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn source_lines_and_inlined_functions() {
    let program = Program::start("chain.c");
    let mut run = Run::start(&["-f", "json", "--lines", "-p", &program.pid()]);
    let sample = chain_of(&mut run, &program, "spin");
    let frames = sample["user"].as_array().unwrap();
    assert_eq!(symbols(&sample["user"])[..4], ["spin", "inner", "middle", "outer"]);
    assert_eq!((&frames[0]["inlined"], &frames[1]["inlined"]), (&true.into(), &false.into()));
    assert_eq!(frames[0]["addr"], frames[1]["addr"]);
    for (frame, line) in frames.iter().zip([SPIN, INNER, MIDDLE, OUTER]) {
        assert!(frame["file"].as_str().unwrap().ends_with("chain.c"), "{frame}");
        assert!(line.contains(&frame["line"].as_u64().unwrap()), "{frame}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn kernel_frames_of_a_program_in_system_calls() {
    let program = Program::start("syscalls.c");
    let mut run = Run::start(&["-f", "json", "-p", &program.pid()]);
    let sample = run.sample(|sample| symbols(&sample["kernel"]).contains(&"vfs_read"));
    let kernel = symbols(&sample["kernel"]);
    // The entry from user space is the outermost, and the user half goes on from there.
    let read = kernel.iter().position(|name| *name == "vfs_read").unwrap();
    assert!(read > 0 && read < kernel.len() - 1, "{kernel:?}");
    assert!(!sample["user"].as_array().unwrap().is_empty(), "{sample}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn only_one_half_where_only_one_is_asked_for() {
    let program = Program::start("syscalls.c");
    let pid = program.pid();
    let mut run = Run::start(&["-f", "json", "--user-only", "-p", &pid]);
    for _ in 0..20 {
        let sample = run.sample(|_| true);
        assert_eq!(sample["kernel"], serde_json::json!([]));
        assert_ne!(sample["user"], serde_json::json!([]));
    }
    let mut run = Run::start(&["-f", "json", "--kernel-only", "-p", &pid]);
    let sample = run.sample(|sample| symbols(&sample["kernel"]).contains(&"vfs_read"));
    assert_eq!(sample["user"], serde_json::json!([]));
    assert_eq!(sample["user_end"], "not_captured");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn code_made_at_run_time_has_its_name_from_the_perf_map() {
    // Private memory, and shared memory, which the kernel takes for a file.
    for program in ["jit.c", "jit_shared.c"] {
        let program = Program::start(program);
        let mut run = Run::start(&["-f", "json", "-p", &program.pid()]);
        let sample = chain_of(&mut run, &program, "made_at_run_time");
        assert_eq!(sample["user"][0]["module"], "[JIT]");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn code_made_at_run_time_has_its_name_from_the_jitdump() {
    let program = Program::start("jitdump.c");
    let mut run = Run::start(&["-f", "json", "-p", &program.pid()]);
    let sample = chain_of(&mut run, &program, "made_at_run_time");
    assert_eq!(sample["user"][0]["module"], "[JIT]");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_perf_map_is_found_in_another_pid_namespace_and_tmp() {
    // The one of busybox knows no such options.
    let version = Command::new("unshare").arg("--version").output();
    if !version.is_ok_and(|it| String::from_utf8_lossy(&it.stdout).contains("util-linux")) {
        return stderr::say("skipped: there is no unshare of util-linux");
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]);
    // The program itself may lie below /tmp.
    let script = "exec 9< \"$0\" && mount -t tmpfs tmpfs /tmp && cat <&9 > /tmp/jit-c && \
                  chmod +x /tmp/jit-c && exec /tmp/jit-c";
    unshare.arg(script).arg(crate::support::fixture("jit.c"));
    let _program = Program(unshare.spawn().unwrap());
    let mut run = Run::start(&["-f", "json"]);
    let sample = run.sample(|sample| {
        sample["comm"] == "jit-c" && symbols(&sample["user"]).first() == Some(&"made_at_run_time")
    });
    assert_eq!(sample["user"][0]["module"], "[JIT]");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn javascript_has_its_names() {
    if !is_installed("node") {
        return;
    }
    let script = "function hot_in_javascript(n) {
                      let sum = 0;
                      for (let i = 0; i < n; i++) sum = (sum + 7 * i) % 1000003;
                      return sum;
                  }
                  for (;;) hot_in_javascript(100000);";
    let mut node = Command::new("node");
    let program =
        Program(node.args(["--perf-basic-prof-only-functions", "-e", script]).spawn().unwrap());
    let mut run = Run::start(&["-f", "json", "-p", &program.pid()]);
    let sample = run.sample(|sample| {
        let user = symbols(&sample["user"]);
        user.first().is_some_and(|symbol| symbol.contains("hot_in_javascript"))
    });
    assert_eq!(sample["user"][0]["module"], "[JIT]");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_deleted_program_keeps_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    std::fs::copy(crate::support::fixture("chain.c"), &copy).unwrap();
    let program = Program(Command::new(&copy).spawn().unwrap());
    program.wait_for_ticks(1);
    std::fs::remove_file(&copy).unwrap();
    let mut run = Run::start(&["-f", "json", "-p", &program.pid()]);
    let sample = chain_of(&mut run, &program, "inner");
    assert_eq!(symbols(&sample["user"])[..4], ["inner", "middle", "outer", "main"]);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_stripped_program_has_its_packed_and_its_exported_names() {
    if !["xz", "nm", "objcopy"].into_iter().all(is_installed) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    std::fs::copy(crate::support::fixture("exporting.c"), &copy).unwrap();
    assert!(
        Command::new("sh")
            .arg(profiler_testing::MINIDEBUGINFO)
            .arg(&copy)
            .status()
            .unwrap()
            .success()
    );
    let program = Program(Command::new(&copy).spawn().unwrap());
    for lines in [&[][..], &["--lines"]] {
        let mut run = Run::start(&[&["-f", "json", "-p", &program.pid()], lines].concat());
        let sample = chain_of(&mut run, &program, "inner");
        assert_eq!(symbols(&sample["user"])[..4], ["inner", "middle", "outer", "main"]);
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_name_can_not_forge_a_line() {
    let program = Program::start("broken.c");
    let mut run = Run::start(&["-p", &program.pid()]);
    let head = run.line();
    assert!(head.starts_with(r"COMM: a\x1b[1m\nCOMM: b (pid="), "{head:?}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_stack_that_leads_nowhere_is_still_one_stack() {
    let program = Program::start("broken.c");
    // What the kernel does on the way would be another stack.
    let arguments = ["-f", "folded", "-F", "499", "-d", "1", "--user-only"];
    // Enough for a few stacks, and by far not for one of each sample.
    let more = ["--max-memory", "64K", "--call-graph", "fp", "-p", &program.pid()];
    let output = crate::support::run(&[&arguments[..], &more].concat());
    let folded = String::from_utf8(output.stdout).unwrap();
    // Only the kernel's own walk takes a frame that does not lie above the last one.
    let is_ours = EntryRegisters::of_kernel().is_ok();
    let stack = if is_ours { ": b;lost " } else { ";[unknown];lost " };
    assert!(folded.contains(stack), "{folded}");
    assert!(!folded.contains("beyond"), "{folded}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn java_has_its_names() {
    let runs = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !runs("java") || !runs("javac") || Command::new("jcmd").arg("-h").output().is_err() {
        return stderr::say("skipped: no JDK is installed");
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("Hot.java");
    let program = "public class Hot {
                       static long sum;
                       static void hotInJava(int n) {
                           for (int i = 0; i < n; i++) sum = (sum + 7 * i) % 1000003;
                       }
                       public static void main(String[] args) { for (;;) hotInJava(100000); }
                   }";
    std::fs::write(&source, program).unwrap();
    let mut java = Command::new("java");
    let java = java.args(["-XX:+PreserveFramePointer", "-Xmx64m"]).arg(&source);
    let program = Program(java.spawn().unwrap());
    let mut run = Run::start(&["-f", "json", "-F", "199", "-p", &program.pid()]);
    // The virtual machine writes its map when it is told to, and compiles some time before.
    loop {
        let written = Command::new("jcmd").args([&program.pid(), "Compiler.perfmap"]).output();
        if !written.unwrap().status.success() {
            run.sample(|_| true);
            continue;
        }
        let named = |it: &Value| symbols(&it["user"]).iter().any(|name| name.contains("hotInJava"));
        // What was compiled since needs another map.
        if (0..100).any(|_| named(&run.sample(|_| true))) {
            return;
        }
    }
}
