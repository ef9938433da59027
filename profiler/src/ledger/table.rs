//! The ledger for people.

use std::fmt::Write as _;

use super::{Account, CpuAccount, Ledger, naming};
use crate::output::user_end;
use crate::perf::cpus::CpuList;

/// More CPUs, a line each, would push what matters off the screen.
const MANY: usize = 16;

impl Ledger {
    /// The table for people. With many CPUs only those that lost something, unless `all` is asked
    /// for.
    #[must_use]
    pub fn table(&self, all: bool) -> String {
        let rate = match (self.frequency, self.period) {
            (Some(hz), _) => format!("at {hz} Hz"),
            (_, period) => format!("every {}", period.unwrap_or_default()),
        };
        let seconds = self.duration_ns as f64 / 1e9;
        let mut text = format!(
            "\n{} {rate} for {seconds:.2} s on {} CPUs\n{:>5} {:>10} {:>10} {:>10} {:>10}\n",
            self.event,
            self.per_cpu.len(),
            "CPU",
            "expected",
            "delivered",
            "filtered",
            "lost"
        );
        let mut row = |name: &str, account: &Account| {
            let _ = writeln!(
                text,
                "{name:>5} {:>10} {:>10} {:>10} {:>10}",
                account.expected,
                account.delivered,
                account.filtered.total(),
                account.lost.total()
            );
        };
        let shown =
            |cpu: &&CpuAccount| all || self.per_cpu.len() <= MANY || cpu.account.lost.total() > 0;
        for cpu in self.per_cpu.iter().filter(shown) {
            row(&cpu.cpu.to_string(), &cpu.account);
        }
        row("total", &self.total);
        reasons(&mut text, "filtered", &self.total.filtered.reasons());
        reasons(&mut text, "lost", &self.total.lost.reasons());
        if self.total.throttled > 0 {
            let _ = writeln!(
                text,
                "throttled {} times by the kernel, to keep the load of sampling low",
                self.total.throttled
            );
        }
        self.not_sampled(&mut text);
        if self.without_stack > 0 {
            let _ = writeln!(text, "delivered without a stack: {}", self.without_stack);
        }
        let user_stacks: u64 = self.user_ends.values().sum();
        let whole = self.user_ends.get(user_end::COMPLETE).copied().unwrap_or(0);
        if user_stacks > 0 {
            let cut = self.user_ends.iter().filter(|(end, _)| **end != user_end::COMPLETE);
            let cut: Vec<String> =
                cut.map(|(end, count)| format!("{} {count}", end.replace('_', " "))).collect();
            let percent = whole as f64 * 100.0 / user_stacks as f64;
            let cut = if cut.is_empty() { String::new() } else { format!("; {}", cut.join(", ")) };
            let _ = writeln!(text, "user stacks: {percent:.1} % whole{cut}");
        }
        if let Some(unwinding) = &self.unwinding {
            text.push_str(&unwinding.lines(all));
        }
        if self.sideband_lost > 0 {
            let _ = writeln!(
                text,
                "{} records of mappings were lost: names may be missing",
                self.sideband_lost
            );
        }
        if self.sideband_malformed > 0 {
            let _ = writeln!(
                text,
                "{} records of mappings could not be read: names may be missing",
                self.sideband_malformed
            );
        }
        if self.evicted_processes > 0 {
            let _ = writeln!(
                text,
                "{} processes were forgotten to make room: --max-processes raises the limit",
                self.evicted_processes
            );
        }
        if all {
            text.push_str(&naming::table(&self.names));
        }
        text
    }

    /// A line for each CPU that was not always sampled, or one for many that were so for one reason.
    fn not_sampled(&self, text: &mut String) {
        for (refused, one, many) in [
            (false, "was offline, and not sampled,", "were offline, and not sampled,"),
            (
                true,
                "was refused an event, and not sampled,",
                "were refused events, and not sampled,",
            ),
        ] {
            let is_absent =
                |it: &&CpuAccount| it.account.not_sampled_ns > 0 && it.refused == refused;
            let absent: Vec<&CpuAccount> = self.per_cpu.iter().filter(is_absent).collect();
            let seconds = |it: &CpuAccount| it.account.not_sampled_ns as f64 / 1e9;
            if absent.len() <= MANY {
                for it in absent {
                    let _ = writeln!(text, "CPU {} {one} for {:.2} s", it.cpu, seconds(it));
                }
            } else {
                let cpus: CpuList = absent.iter().map(|it| it.cpu).collect();
                let longest = absent.into_iter().map(seconds).fold(0.0, f64::max);
                let _ = writeln!(text, "CPU {cpus} {many} for up to {longest:.2} s");
            }
        }
    }
}

fn reasons(text: &mut String, what: &str, reasons: &[(&str, u64)]) {
    let some: Vec<String> = reasons
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    if !some.is_empty() {
        let _ = writeln!(text, "{what}: {}", some.join(", "));
    }
}
