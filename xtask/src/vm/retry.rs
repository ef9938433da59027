//! A second chance for a few tests on an emulated machine.
//!
//! QEMU's CPUs are not without faults of their own. They run what stood in the kernel's code before it was patched (`init.sh`), and
//! in about one of a thousand starts on aarch64 a program of ours dies where it can't: a map of the eBPF object is missing from a
//! table that it was just put into. So what failed is run again, on a machine that was just booted. A test that passes then is
//! flaky: it is named with what it said first, and counted apart, but doesn't fail the run.

use super::guest::Outcome;
use crate::harness::{Test, Verdict};

/// With more failed tests than that it's not the emulator.
const MAX_TESTS: usize = 3;

/// The tests to run again; none where too many failed, or the machine as a whole did.
pub(crate) fn candidates(first: &Outcome) -> Vec<String> {
    let failed = |it: &&Test| it.verdict == Verdict::Failed;
    let failed: Vec<_> =
        first.harness.tests.iter().filter(failed).map(|it| it.name.clone()).collect();
    let is_complete = first.harness.tests.iter().all(|it| it.verdict != Verdict::Unfinished);
    let are_few = failed.len() <= MAX_TESTS;
    if first.has_ended && is_complete && are_few { failed } else { Vec::new() }
}

/// Puts what became of them the second time into the first outcome.
pub(crate) fn settle(first: &mut Outcome, second: &Outcome) {
    let passed = |name: &str| {
        let mut tests = second.harness.tests.iter();
        tests.any(|it| it.name == name && it.verdict == Verdict::Passed)
    };
    for test in &mut first.harness.tests {
        if test.verdict == Verdict::Failed && passed(&test.name) {
            test.verdict = Verdict::Flaky;
        }
    }
    first.until_end += second.until_end;
    if first.has_ended && first.harness.tally().failed == 0 {
        first.failure = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::guest::tests::outcome;

    const FIRST: &str = "@@ booted\ntest a ... ok\ntest b ... \nleft: 1\nFAILED\ntest c ... FAILED\n\
                         @@ tests ended with 101\n@@ doctor\nkernel ok\n@@ end";

    fn verdicts(outcome: &Outcome) -> Vec<Verdict> {
        outcome.harness.tests.iter().map(|it| it.verdict).collect()
    }

    #[test]
    fn what_passes_the_second_time_is_flaky_and_what_does_not_has_failed() {
        let mut first = outcome(FIRST);
        assert_eq!(candidates(&first), ["b", "c"]);
        settle(
            &mut first,
            &outcome(
                "@@ booted\ntest b ... ok\ntest c ... FAILED\n@@ tests ended with 101\n@@ end",
            ),
        );
        assert_eq!(verdicts(&first), [Verdict::Passed, Verdict::Flaky, Verdict::Failed]);
        assert!(first.failure.is_some());
        assert_eq!(first.harness.tests[1].said, ["left: 1"]);

        let mut first = outcome(FIRST);
        settle(
            &mut first,
            &outcome("@@ booted\ntest b ... ok\ntest c ... ok\n@@ tests ended with 0"),
        );
        assert_eq!(verdicts(&first), [Verdict::Passed, Verdict::Flaky, Verdict::Flaky]);
        assert_eq!((first.failure.as_deref(), &*first.doctor), (None, "kernel ok\n"));
        assert_eq!(first.harness.tally().to_string(), "1 passed, 0 failed, 0 skipped, 2 flaky");
    }

    #[test]
    fn a_second_try_that_says_nothing_changes_nothing() {
        let mut first = outcome(FIRST);
        settle(&mut first, &outcome("@@ booted\n"));
        assert_eq!(verdicts(&first), [Verdict::Passed, Verdict::Failed, Verdict::Failed]);
        assert!(first.failure.is_some());
    }

    #[test]
    fn many_failures_and_machines_that_died_get_none() {
        let many = "test a ... FAILED\ntest b ... FAILED\ntest c ... FAILED\ntest d ... FAILED";
        let many = format!("@@ booted\n{many}\n@@ tests ended with 101\n@@ end");
        assert!(candidates(&outcome(&many)).is_empty());
        assert!(candidates(&outcome("@@ booted\ntest a ... FAILED\ntest b ... oops")).is_empty());
        assert!(
            candidates(&outcome("@@ booted\ntest a ... ok\n@@ tests ended with 0\n@@ end"))
                .is_empty()
        );
    }
}
