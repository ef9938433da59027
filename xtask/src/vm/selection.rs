//! Which tests a machine runs. The modules of the kernel tests say what they depend on: `profiler/tests/kernel/main.rs`.

use super::machine::Machine;
use crate::arch::Arch;

/// All there are.
pub(super) const ALL: &[&str] = &[];

const EVERY_KERNEL: &[&str] = &["every_kernel::"];
/// Of these, what each series has changed: the program and its verifier, records, events of tasks and of a PMU. What else
/// the oldest and the newest kernel do alike, those between them do, too.
const BETWEEN: &[&str] = &[
    "every_kernel::ledger::",
    "every_kernel::pmu::",
    "every_kernel::sideband::",
    "every_kernel::stat_pmu::",
    "every_kernel::tasks::",
    "every_kernel::traces::",
    "every_kernel::unwinding::",
    "every_kernel::walks::",
];
const OLDEST_AND_NEWEST: &[&str] = &["every_kernel::", "oldest_and_newest::"];
const EACH_ARCHITECTURE: &[&str] = &["every_kernel::", "each_architecture::"];
/// Where one machine has to do for an architecture.
const ALONE: &[&str] = &["every_kernel::", "oldest_and_newest::", "each_architecture::"];
/// What is another event where there is no PMU, and what its count says.
const OF_EVENTS: &[&str] = &["::bad_input::", "::ledger::"];

/// The tests that a machine has to run, where others of the matrix, and this machine, run the rest.
pub(super) fn brief(machine: &Machine, series: &[String]) -> &'static [&'static str] {
    // What kernels seldom change they change on all architectures: two corners of the matrix are enough.
    let corner = if machine.arch == Arch::HOST { series.first() } else { series.last() };
    if machine.lacks_pmu() {
        OF_EVENTS
    } else {
        match (corner == Some(&machine.series), is_for_its_architecture(machine, series)) {
            (true, true) => ALONE,
            (true, false) => OLDEST_AND_NEWEST,
            (false, true) => EACH_ARCHITECTURE,
            (false, false) if is_between(machine, series) => BETWEEN,
            (false, false) => EVERY_KERNEL,
        }
    }
}

/// Whether it is neither the oldest nor the newest.
fn is_between(machine: &Machine, series: &[String]) -> bool {
    ![series.first(), series.last()].contains(&Some(&machine.series))
}

/// Whether it runs what our own code does differently on its architecture, as nothing else does. The machine before the
/// newest has the time for it.
fn is_for_its_architecture(machine: &Machine, series: &[String]) -> bool {
    let before_newest = series.iter().rev().nth(1).or(series.last());
    machine.arch != Arch::HOST && before_newest == Some(&machine.series)
}

/// Whether it has Debian's perf, to compare the counts of its PMU with.
pub(super) fn compares_with_perf(machine: &Machine, series: &[String]) -> bool {
    machine.pmu && is_for_its_architecture(machine, series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_runs_where_it_may_find_something() {
        let series: Vec<String> = ["5.10", "6.1", "6.12", "7.2"].map(str::to_owned).into();
        let machine = |arch, series: &str, pmu| Machine { arch, series: series.to_owned(), pmu };
        let of = |arch, kernel: &str| brief(&machine(arch, kernel, true), &series);
        for arch in Arch::ALL {
            let (oldest, before_newest, newest) = if arch == Arch::HOST {
                (OLDEST_AND_NEWEST, BETWEEN, EVERY_KERNEL)
            } else {
                (EVERY_KERNEL, EACH_ARCHITECTURE, OLDEST_AND_NEWEST)
            };
            assert_eq!((of(arch, "5.10"), of(arch, "6.1")), (oldest, BETWEEN));
            assert_eq!((of(arch, "6.12"), of(arch, "7.2")), (before_newest, newest));
        }
        let alone = ["6.1".to_owned()];
        let of = |arch| brief(&machine(arch, "6.1", true), &alone);
        let others = if Arch::HOST == Arch::X86_64 { Arch::Aarch64 } else { Arch::X86_64 };
        assert_eq!((of(Arch::HOST), of(others)), (OLDEST_AND_NEWEST, ALONE));
        assert_eq!(brief(&machine(Arch::Aarch64, "7.2", false), &series), OF_EVENTS);
    }
}
