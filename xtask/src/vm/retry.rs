//! A second chance for a few tests on an emulated machine, or for the machine.
//!
//! QEMU's CPUs are not without faults of their own. They run what stood in the kernel's code before it was patched (`init.sh`), and
//! in about one of a thousand starts on aarch64 a program of ours dies where it can't: a map of the eBPF object is missing from a
//! table that it was just put into. Once in some hundred runs a machine stands still. So what failed is run again, on a machine that
//! was just booted. A test that passes then is flaky: it is named with what it said first, and counted apart, but doesn't fail the
//! run.

use super::guest::Outcome;
use crate::harness::{Test, Verdict};

/// With more failed tests than that it's not the emulator.
const MAX_TESTS: usize = 3;

/// What to run again.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// These tests.
    Tests(Vec<String>),
    /// All that the machine had to run: it did not come to its end, and nobody knows which tests were left.
    Machine,
}

/// `None` where all is well, or too much failed.
pub(super) fn again(first: &Outcome) -> Option<Again> {
    let failed = |it: &&Test| it.verdict == Verdict::Failed;
    let failed: Vec<_> =
        first.harness.tests.iter().filter(failed).map(|it| it.name.clone()).collect();
    if failed.len() > MAX_TESTS {
        None
    } else if !first.has_ended {
        Some(Again::Machine)
    } else {
        let is_complete = first.harness.tests.iter().all(|it| it.verdict != Verdict::Unfinished);
        (is_complete && !failed.is_empty()).then_some(Again::Tests(failed))
    }
}

impl Again {
    /// What became of the machine in both runs.
    pub(super) fn settle(&self, mut first: Outcome, mut second: Outcome) -> Outcome {
        let until_end = first.until_end + second.until_end;
        let mut settled = match self {
            Self::Tests(_) => {
                for test in first.harness.tests.iter_mut().filter(|it| has_failed(it)) {
                    if second.harness.tests.iter().any(|it| it.name == test.name && passed(it)) {
                        test.verdict = Verdict::Flaky;
                    }
                }
                if first.harness.tally().failed == 0 {
                    first.failure = None;
                }
                first
            }
            Self::Machine => {
                for failed in first.harness.tests.iter_mut().filter(|it| has_failed(it)) {
                    let mut tests = second.harness.tests.iter_mut();
                    if let Some(test) = tests.find(|it| it.name == failed.name && passed(it)) {
                        if failed.verdict == Verdict::Unfinished {
                            failed.said.extend(first.failure.clone());
                        }
                        test.verdict = Verdict::Flaky;
                        test.said = std::mem::take(&mut failed.said);
                    }
                }
                second
            }
        };
        settled.until_end = until_end;
        settled
    }
}

fn passed(test: &Test) -> bool {
    test.verdict == Verdict::Passed
}

fn has_failed(test: &Test) -> bool {
    [Verdict::Failed, Verdict::Unfinished].contains(&test.verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::guest::tests::outcome;

    const FAILED: &str = "@@ booted\ntest a ... ok\ntest b ... \nleft: 1\nFAILED\ntest c ... FAILED\n\
                          @@ tests ended with 101\n@@ doctor\nkernel ok\n@@ end";
    const DIED: &str = "@@ booted\ntest a ... ok\ntest b ... \n[ 9.0] Oops";

    fn verdicts(outcome: &Outcome) -> Vec<Verdict> {
        outcome.harness.tests.iter().map(|it| it.verdict).collect()
    }

    fn tests(names: &[&str]) -> Again {
        Again::Tests(names.iter().map(|&it| it.to_owned()).collect())
    }

    #[test]
    fn what_passes_the_second_time_is_flaky_and_what_does_not_has_failed() {
        let first = outcome(FAILED);
        let again = again(&first);
        assert_eq!(again, Some(tests(&["b", "c"])));
        let second = "@@ booted\ntest b ... ok\ntest c ... FAILED\n@@ tests ended with 101\n@@ end";
        let settled = again.unwrap().settle(first, outcome(second));
        assert_eq!(verdicts(&settled), [Verdict::Passed, Verdict::Flaky, Verdict::Failed]);
        assert!(settled.failure.is_some());
        assert_eq!(settled.harness.tests[1].said, ["left: 1"]);

        let second = outcome("@@ booted\ntest b ... ok\ntest c ... ok\n@@ tests ended with 0");
        let settled = tests(&["b", "c"]).settle(outcome(FAILED), second);
        assert_eq!(verdicts(&settled), [Verdict::Passed, Verdict::Flaky, Verdict::Flaky]);
        assert_eq!((settled.failure.as_deref(), &*settled.doctor), (None, "kernel ok\n"));
        assert_eq!(settled.harness.tally().to_string(), "1 passed, 0 failed, 0 skipped, 2 flaky");
    }

    #[test]
    fn a_machine_that_comes_to_its_end_the_second_time_has_passed() {
        let first = outcome(DIED);
        assert_eq!(again(&first), Some(Again::Machine));
        let second =
            "@@ booted\ntest a ... ok\ntest b ... ok\ntest c ... ok\n@@ tests ended with 0\n@@ end";
        let settled = Again::Machine.settle(first, outcome(second));
        assert_eq!(settled.failure, None);
        assert_eq!(verdicts(&settled), [Verdict::Passed, Verdict::Flaky, Verdict::Passed]);
        let said = &settled.harness.tests[1].said;
        assert_eq!(said[0], "[ 9.0] Oops");
        assert!(said[1].contains("on the way"), "{said:?}");

        // The same again is the kernel, or us.
        let settled = Again::Machine.settle(outcome(DIED), outcome(DIED));
        assert_eq!(verdicts(&settled), [Verdict::Passed, Verdict::Unfinished]);
        assert!(settled.failure.is_some());
    }

    #[test]
    fn a_second_try_that_says_nothing_changes_nothing() {
        let settled = tests(&["b"]).settle(outcome(FAILED), outcome("@@ booted\n"));
        assert_eq!(verdicts(&settled), [Verdict::Passed, Verdict::Failed, Verdict::Failed]);
        assert!(settled.failure.is_some());
    }

    #[test]
    fn only_a_few_tests_have_a_second_chance() {
        let many =
            format!("@@ booted\n{}@@ tests ended with 1\n@@ end", "test a ... FAILED\n".repeat(4));
        assert_eq!(again(&outcome(&many)), None);
        let well = outcome("@@ booted\ntest a ... ok\n@@ tests ended with 0\n@@ end");
        assert_eq!(again(&well), None);
    }
}
