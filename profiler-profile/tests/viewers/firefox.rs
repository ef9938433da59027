//! The Firefox Profiler reads what the formats for it write: by its command line, npm's
//! `@firefox-devtools/profiler-cli`, which loads files as the page does.

use std::{fs, path::Path, process::Command};

use profiler_profile::{sample::Sample, store::Store};
use tempfile::TempDir;

use crate::run::{cpu_clock, export, function, inlined, kernel, sample, stack, task};

/// A session of the program; it ends with this.
struct Session(TempDir);

impl Session {
    /// `None` if the program is not installed.
    fn load(name: &str, profile: &[u8]) -> Option<Self> {
        let session = Self(tempfile::tempdir().unwrap());
        let file = session.0.path().join(name);
        fs::write(&file, profile).unwrap();
        let loaded = run(session.0.path(), &["load", file.to_str().unwrap()]);
        if loaded.is_none() {
            eprintln!("skipped: profiler-cli is not installed");
        }
        loaded.map(|_| session)
    }

    fn ask(&self, what: &[&str]) -> String {
        run(self.0.path(), what).unwrap()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        run(self.0.path(), &["stop"]);
    }
}

/// What it says. Its sessions are kept in the home directory.
fn run(home: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("profiler-cli").args(arguments).env("HOME", home).output().ok()?;
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    Some(String::from_utf8(output.stdout).unwrap())
}

/// Two threads of a process, 10 ms apart.
fn profile(format: &str) -> Vec<u8> {
    let mut store = Store::default();
    let clock = cpu_clock();
    let empty = store.empty();
    let inner = inlined(function("inner", "/usr/lib/libb.so", 1));
    let run = function("<T as U>::run", "/usr/lib/libb.so", 7);
    let main = function("main", "/usr/sbin/mysqld", 0x40);
    let user = stack(&mut store, &[&[inner, run], &[main]]);
    let read = stack(&mut store, &[&[kernel("vfs_read")]]);
    let of = |tid, comm, kernel| sample(&clock, &task(9, tid, comm), 10_000_000, [kernel, &user]);
    let mut samples = [
        of(9, "mysqld", &read),
        of(9, "mysqld", &empty),
        of(9, "mysqld", &empty),
        of(10, "conn", &empty),
    ];
    for (sample, number) in samples.iter_mut().zip(0..) {
        let Sample { time_ns, .. } = sample;
        *time_ns += 10_000_000 * number;
    }
    export(format, &[&clock], &samples)
}

#[test]
fn it_reads_its_own_format() {
    let Some(session) = Session::load("profile.json.gz", &profile("firefox")) else { return };
    let info = session.ask(&["profile", "info"]);
    assert!(info.contains("\nName: profiler 1.2.3 – Linux\n"), "{info}");
    assert!(info.contains("\nThis profile contains 2 threads across 1 processes.\n"), "{info}");
    assert!(info.contains("\n  p-0: mysqld [pid 9] "), "{info}");
    assert!(info.contains("\n    t-0: mysqld [tid 9] "), "{info}");
    assert!(info.contains("\n    t-1: conn [tid 10] "), "{info}");
    let tree = session.ask(&["thread", "samples-top-down"]);
    let expected = "\
f-0. main [total: 100.0%, self: 0.0%]
└─ f-1. <T as U>::run [total: 100.0%, self: 0.0%]
   f-2. inner [total: 100.0%, self: 66.7%]
   f-3. vfs_read [total: 33.3%, self: 33.3%]
";
    assert!(tree.contains(expected), "{tree}");
}

#[test]
fn it_reads_the_text_of_perf_script() {
    let Some(session) = Session::load("profile.perf.txt", &profile("perf")) else { return };
    let info = session.ask(&["profile", "info"]);
    assert!(info.contains("\nThis profile contains 2 threads across 1 processes.\n"), "{info}");
    let tree = session.ask(&["thread", "samples-top-down"]);
    let expected = "\
f-0. /usr/sbin/mysqld!main [total: 100.0%, self: 0.0%]
└─ f-1. /usr/lib/libb.so!<T as U>::run [total: 100.0%, self: 0.0%]
   f-2. inlined!inner [total: 100.0%, self: 66.7%]
   f-3. [kernel.kallsyms]!vfs_read [total: 33.3%, self: 33.3%]
";
    assert!(tree.contains(expected), "{tree}");
}
