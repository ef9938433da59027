//! Stacks of programs of 32 bits.

use profiler::stderr;

use crate::{
    every_kernel::unwinding::SAMPLES,
    support::{Program, Run, symbols},
};

/// What the kernel's walk of frame pointers finds behind the first frame is no frame: the saved one is zero,
/// and where the return address would be is the number of arguments.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn stacks_of_32_bits_have_frames_of_code_only() {
    if cfg!(not(target_arch = "x86_64")) {
        return stderr::say("skipped: the program is for x86-64");
    }
    let program = Program::ready("compat.c", &[]);
    for more in [&[][..], &["--call-graph", "fp"]] {
        let pid = program.pid();
        let mut run = Run::start(&[&["-f", "json", "-F", "997", "-p", &pid], more].concat());
        for _ in 0..SAMPLES {
            let sample = run.sample(|_| true);
            let frames = sample["user"].as_array().unwrap();
            let is_own = |it: &serde_json::Value| {
                it["module"].as_str().is_some_and(|name| name.ends_with("/compat-c"))
            };
            let vdso = usize::from(frames[0]["module"] == "[vdso]");
            assert!(frames[vdso..].iter().all(is_own), "{sample}");
            let names = symbols(&sample["user"]);
            if names[0] == "inner" && frames[0]["offset"].as_u64() > Some(4) {
                assert_eq!(names, ["inner", "middle", "outer", "_start"], "{sample}");
            }
        }
    }
}
