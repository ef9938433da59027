//! Which tests a machine runs. The modules of the kernel tests say what they depend on: `profiler/tests/kernel/main.rs`.

use super::machine::Machine;
use crate::arch::Arch;

const EVERY_KERNEL: &[&str] = &["every_kernel::"];
/// Of these, what each series has changed: the program and its verifier, records, events of tasks and of a PMU. The
/// rest the oldest kernel and the newest do alike on all architectures, or one of them tells.
const CHANGED: &[&str] = &[
    "every_kernel::ledger::",
    "every_kernel::pmu::",
    "every_kernel::sideband::",
    "every_kernel::stat_pmu::",
    "every_kernel::tasks::",
    "every_kernel::traces::",
    "every_kernel::unwinding::",
    "every_kernel::walks::",
];
/// Of these, a short list for the kernels between: a test for each thing that a kernel has to accept or to report.
const BETWEEN: &[&str] = &[
    "every_kernel::ledger::the_account_is_settled_under_load",
    "every_kernel::parsing::a_parser_process_that_is_killed",
    "every_kernel::pmu::",
    "every_kernel::sideband::a_program_is_followed_from_its_start_to_its_end",
    "every_kernel::sideband::an_ebpf_program_is_a_kernel_symbol",
    "every_kernel::sideband::records_for_others_have_no_flag_of_a_build_id",
    "every_kernel::stat_pmu::counts_of_shared_counters_are_scaled",
    "every_kernel::tasks::events_of_a_cgroup_fire_in_it_alone",
    "every_kernel::tasks::events_of_a_command_follow_its_threads_and_children",
    "every_kernel::traces::each_",
    "every_kernel::unwinding::a_chain_without_frame_pointers_is_complete",
    "every_kernel::unwinding::the_depth_is_reported_exactly",
    "every_kernel::walks::frame_pointers_alone_find_what_keeps_them",
    "every_kernel::walks::tables_alone_are_complete",
];
const OLDEST_AND_NEWEST: &[&str] = &["oldest_and_newest::"];
const EACH_ARCHITECTURE: &[&str] = &["each_architecture::"];
/// What is another event where there is no PMU, and what its count says.
const OF_EVENTS: &[&str] = &["every_kernel::bad_input::", "every_kernel::ledger::"];

/// The tests that a machine has to run, where others of the matrix, and this machine, run the rest.
pub(super) fn brief(machine: &Machine, series: &[String]) -> Vec<&'static str> {
    if machine.lacks_pmu() {
        return OF_EVENTS.to_vec();
    }
    // What kernels seldom change they change on all architectures: two corners of the matrix are enough.
    let corner = if machine.arch == Arch::HOST { series.first() } else { series.last() };
    let mut tests = if corner == Some(&machine.series) {
        [EVERY_KERNEL, OLDEST_AND_NEWEST].concat()
    } else if is_between(machine, series) {
        BETWEEN.to_vec()
    } else {
        CHANGED.to_vec()
    };
    if is_for_its_architecture(machine, series) {
        tests.extend(EACH_ARCHITECTURE);
    }
    tests
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
    use std::fs;

    use super::*;
    use crate::workspace;

    #[test]
    fn each_test_runs_where_it_may_find_something() {
        let series: Vec<String> = ["5.10", "6.1", "6.12", "7.2"].map(str::to_owned).into();
        let machine = |arch, series: &str, pmu| Machine { arch, series: series.to_owned(), pmu };
        let of = |arch, kernel: &str| brief(&machine(arch, kernel, true), &series);
        let corner = [EVERY_KERNEL, OLDEST_AND_NEWEST].concat();
        let others = if Arch::HOST == Arch::X86_64 { Arch::Aarch64 } else { Arch::X86_64 };
        let seen = |arch| ["5.10", "6.1", "6.12", "7.2"].map(|kernel| of(arch, kernel));
        assert_eq!(seen(Arch::HOST), [&*corner, BETWEEN, BETWEEN, CHANGED].map(<[_]>::to_vec));
        let for_architecture = [BETWEEN, EACH_ARCHITECTURE].concat();
        assert_eq!(
            seen(others),
            [CHANGED, BETWEEN, &*for_architecture, &*corner].map(<[_]>::to_vec)
        );
        let alone = ["6.1".to_owned()];
        let of = |arch| brief(&machine(arch, "6.1", true), &alone);
        assert_eq!(of(Arch::HOST), corner);
        assert_eq!(of(others), [&*corner, EACH_ARCHITECTURE].concat());
        assert_eq!(brief(&machine(Arch::Aarch64, "7.2", false), &series), OF_EVENTS);
    }

    /// A test that was renamed would run nowhere, and nobody would know.
    #[test]
    fn each_name_is_that_of_a_test() {
        let dir = workspace::root().join("profiler/tests/kernel");
        let names = [EVERY_KERNEL, CHANGED, BETWEEN, OLDEST_AND_NEWEST, EACH_ARCHITECTURE];
        for name in names.concat().iter().chain(OF_EVENTS) {
            let mut parts = name.split("::");
            let module = dir.join(parts.next().unwrap());
            match parts.next().filter(|it| !it.is_empty()) {
                None => assert!(module.is_dir(), "{name}"),
                Some(file) => {
                    let text = fs::read_to_string(module.join(file).with_extension("rs")).unwrap();
                    let test = format!("fn {}", parts.next().unwrap_or_default());
                    assert!(text.contains(&test), "{name}");
                }
            }
        }
    }
}
