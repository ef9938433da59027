//! More runnable threads than CPUs: compilers, interpreters that start, and programs that spin.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::{Bench, Result, load::Build};

/// Runnable threads on each CPU.
pub(crate) const THREADS_PER_CPU: usize = 8;

/// Interpreters to start over and over; those that are installed take turns.
const INTERPRETERS: [(&str, &str); 3] = [
    ("python3", "python3 -c 'import json, re, decimal; [str(n) for n in range(20000)]'"),
    ("perl", "perl -e 'my %h; $h{$_ % 99} .= $_ for 1..50000; print keys %h'"),
    ("node", "node -e 'JSON.stringify([...Array(50000).keys()])'"),
];

/// What keeps a compiler busy for some tens of milliseconds.
const SOURCE: &str = "#include <stdio.h>\n#include <stdlib.h>\n#include <math.h>\n\
    #define F(n) double f##n(double x) { double s = 0; for (int i = 0; i < 99; i++) \
    s += sin(x * i) / (1 + n + fabs(cos(s))); return s; }\n\
    F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13) F(14) F(15) F(16)\n";

/// The crowd; each member ends by itself, and all of them when this is dropped.
pub(crate) struct Crowd(Vec<Child>);

impl Crowd {
    /// A quarter compiles, a quarter starts interpreters, and half spins without frame pointers; for at most
    /// so many seconds.
    pub(crate) fn start(bench: &Bench, seconds: u64) -> Result<Self> {
        let source = bench.dir.join("crowd.c");
        fs::write(&source, SOURCE)?;
        let compile = format!("cc -O2 -c -o /dev/null {}", source.display());
        let installed = INTERPRETERS.iter().filter(|(program, _)| is_installed(program));
        let mut interpreters = installed.map(|(_, line)| (*line).to_owned()).cycle();
        let spinning = bench.load(Build::NoFramePointers);
        let cpus: Vec<u32> = bench.cpus.iter().collect();
        let mut cpus = cpus.iter().cycle();
        let mut crowd = Self(Vec::new());
        for member in 0..bench.cpus.len() * THREADS_PER_CPU {
            let line = match member % 4 {
                0 => Some(compile.clone()),
                1 => interpreters.next(),
                _ => None,
            };
            let line = match line {
                Some(line) => format!("while :; do {line} >/dev/null 2>&1; done"),
                None => {
                    format!("exec {}", spinning.command_line(*cpus.next().unwrap_or(&0)))
                }
            };
            crowd.0.push(member_of(&line, seconds)?);
        }
        Ok(crowd)
    }
}

fn member_of(line: &str, seconds: u64) -> Result<Child> {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", &seconds.to_string(), "sh", "-c", line]);
    // `timeout` ends all of its group.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(|error| format!("cannot run timeout: {error}").into())
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| Path::new(&dir).join(program).is_file())
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for member in &mut self.0 {
            if let Ok(group) = libc::pid_t::try_from(member.id()) {
                // SAFETY: takes no pointer; the leader is not reaped yet, so the group is still its own.
                unsafe { libc::kill(-group, libc::SIGKILL) };
            }
            let _ = member.wait();
        }
    }
}
