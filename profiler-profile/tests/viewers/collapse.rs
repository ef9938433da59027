//! Programs that collapse the stacks of `perf script` read what the perf format writes.

use std::collections::BTreeMap;

use inferno::collapse::{
    Collapse as _,
    perf::{Folder, Options},
};
use profiler_profile::{
    frame::{Frame, Origin},
    sample::Sample,
    store::Store,
};

use crate::run::{
    cpu_clock, export, function, inlined, kernel, page_faults, sample, stack, task, unmapped,
    unnamed,
};

/// What inferno makes of the text.
fn inferno(perf: &[u8], annotate_jit: bool) -> String {
    let mut options = Options::default();
    options.annotate_kernel = true;
    options.annotate_jit = annotate_jit;
    let mut folded = Vec::new();
    Folder::from(options).collapse(perf, &mut folded).unwrap();
    String::from_utf8(folded).unwrap()
}

/// The lines in order, each stack once.
fn sums(folded: &str) -> BTreeMap<&str, u64> {
    let mut sums = BTreeMap::new();
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        *sums.entry(stack).or_default() += count.parse::<u64>().unwrap();
    }
    sums
}

#[test]
fn inferno_collapses_it_to_what_we_fold() {
    let mut store = Store::default();
    let clock = cpu_clock();
    let empty = store.empty();
    let main = || function("main", "/usr/sbin/my sqld", 0x40);
    let read = stack(&mut store, &[&[kernel("vfs_read")], &[kernel("entry_SYSCALL_64")]]);
    let users = [
        stack(&mut store, &[&[main()]]),
        stack(&mut store, &[&[function("<T as U>::run;", "/usr/sbin/my sqld", 7)], &[main()]]),
        stack(&mut store, &[&[unnamed("/usr/lib/libc.so.6", 9)], &[main()]]),
        stack(&mut store, &[&[unmapped()], &[main()]]),
    ];
    let mut samples: Vec<Sample> = Vec::new();
    for (number, user) in users.iter().cycle().take(30).enumerate() {
        let number = u32::try_from(number).unwrap();
        let comm = ["mysqld", "conn_7", "#x"][number as usize % 3];
        let kernel = if number % 5 < 2 { &read } else { &empty };
        samples.push(sample(&clock, &task(9, number, comm), 1, [kernel, user]));
    }
    let ours = String::from_utf8(export("folded", &[&clock], &samples)).unwrap();
    let theirs = inferno(&export("perf", &[&clock], &samples), false);
    assert!(
        ours.contains("mysqld;main;<T as U>::run:;entry_SYSCALL_64_[k];vfs_read_[k] "),
        "{ours}"
    );
    // A line can't begin with the sign of a comment.
    let ours = ours.replace('#', "\\x23");
    assert_eq!(sums(&theirs), sums(&ours));
    assert_eq!(sums(&theirs).values().sum::<u64>(), 30);
}

#[test]
fn a_sample_weighs_what_it_stands_for() {
    let mut store = Store::default();
    let (clock, faults, task) = (cpu_clock(), page_faults(1), task(1, 2, "a 12 b"));
    let empty = store.empty();
    let made = Frame { origin: Origin::PerfMap, ..function("f", "[JIT]", 1) };
    let user = stack(&mut store, &[&[inlined(function("g", "[JIT]", 1)), made]]);
    let samples = [
        sample(&faults, &task, 3, [&empty, &user]),
        // It leaves out other events than the first.
        sample(&clock, &task, 10, [&empty, &user]),
        sample(&faults, &task, 4, [&empty, &user]),
    ];
    let perf = export("perf", &[&clock, &faults], &samples);
    assert_eq!(inferno(&perf, true), "a_12_b;f_[j];g 7\n");
}
