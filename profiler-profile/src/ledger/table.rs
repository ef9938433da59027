//! The ledger for people.

use std::fmt::Write as _;

use super::{Account, CpuAccount, Ledger, Scope, SourceAccount, naming};
use crate::{cpus::CpuList, stack_end};

/// More CPUs, a line each, would push what matters off the screen.
const MANY: usize = 16;

impl Ledger {
    /// The table for people. With many CPUs only those that lost something, unless `all` is asked
    /// for.
    #[must_use]
    pub fn table(&self, all: bool) -> String {
        let seconds = self.duration_ns as f64 / 1e9;
        let cpus = self.per_cpu.len();
        let so_far = if self.waiting.is_some() { ", so far" } else { "" };
        let titles: Vec<String> = self.sources.iter().map(SourceAccount::title).collect();
        let titles = titles.join(" and ");
        let mut text = format!("\n{titles} for {seconds:.2} s on {cpus} CPUs{so_far}\n");
        self.asked_for(&mut text);
        for source in &self.sources {
            if self.sources.len() > 1 {
                let _ = writeln!(text, "{}:", source.title());
            }
            source.rows(&mut text, all);
        }
        if let Some(waiting @ 1..) = self.waiting {
            let _ = writeln!(text, "{waiting} samples are waiting to be named and written");
        }
        for source in &self.sources {
            let name =
                if self.sources.len() > 1 { format!("{}: ", source.event) } else { String::new() };
            source.notes(&mut text, &name);
        }
        self.not_sampled(&mut text);
        if self.without_stack > 0 {
            let _ = writeln!(text, "delivered without a stack: {}", self.without_stack);
        }
        self.beyond_memory(&mut text);
        self.user_stacks(&mut text);
        if let Some(unwinding) = &self.unwinding {
            text.push_str(&unwinding.lines(all));
        }
        text.push_str(&self.parsing.lines());
        self.missing_records(&mut text);
        if self.evicted_processes > 0 {
            let _ = writeln!(
                text,
                "{} processes were evicted to make room for others: raise --max-processes",
                self.evicted_processes
            );
        }
        if all {
            text.push_str(&naming::table(&self.names));
            text.push_str(&self.memory.table());
        }
        text
    }

    /// What a profile says of how it was taken, a line each: what was sampled, what became of the samples of each
    /// source, and what is missing in their stacks.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let titles: Vec<String> = self.sources.iter().map(SourceAccount::title).collect();
        let seconds = self.duration_ns as f64 / 1e9;
        let (titles, cpus) = (titles.join(" and "), self.per_cpu.len());
        let mut text = format!("{titles} for {seconds:.2} s on {cpus} CPUs\n");
        for source in &self.sources {
            let name =
                if self.sources.len() > 1 { format!("{}: ", source.event) } else { String::new() };
            let Account { expected, delivered, filtered, lost, .. } = &source.total;
            let _ = writeln!(
                text,
                "{name}{expected} samples expected, {delivered} delivered, {} filtered{}, {} lost{}",
                filtered.total(),
                in_brackets(&filtered.reasons()),
                lost.total(),
                in_brackets(&lost.reasons())
            );
            source.notes(&mut text, &name);
        }
        self.not_sampled(&mut text);
        if self.without_stack > 0 {
            let _ = writeln!(text, "delivered without a stack: {}", self.without_stack);
        }
        self.beyond_memory(&mut text);
        self.user_stacks(&mut text);
        self.missing_records(&mut text);
        text.lines().map(str::to_owned).collect()
    }

    /// The samples whose stacks the profile had no room for.
    fn beyond_memory(&self, text: &mut String) {
        if self.beyond_memory > 0 {
            let _ = writeln!(
                text,
                "{} samples were counted by process, without their stacks: raise --max-memory",
                self.beyond_memory
            );
        }
    }

    /// The kernel's records that did not arrive, and what may be missing because of that.
    fn missing_records(&self, text: &mut String) {
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
        if let Some(children) = self.children {
            if self.sideband_lost + self.sideband_malformed > 0 {
                text.push_str(
                    "records of forks may be among them, so descendants may be missing\n",
                );
            }
            if children.not_followed > 0 {
                let _ = writeln!(
                    text,
                    "{} descendants were not sampled, because there were too many at once: raise \
                     --max-processes",
                    children.not_followed
                );
            }
        }
    }

    /// How user stacks have ended.
    fn user_stacks(&self, text: &mut String) {
        let gone = self.user_ends.get(stack_end::MEMORY_GONE).copied().unwrap_or(0);
        // Those that were there.
        let user_stacks = self.user_ends.values().sum::<u64>() - gone;
        let complete = self.user_ends.get(stack_end::COMPLETE).copied().unwrap_or(0);
        if user_stacks > 0 {
            let is_cut = |end: &str| ![stack_end::COMPLETE, stack_end::MEMORY_GONE].contains(&end);
            let cut = self.user_ends.iter().filter(|(end, _)| is_cut(end));
            let cut: Vec<String> =
                cut.map(|(end, count)| format!("{} {count}", end.replace('_', " "))).collect();
            let percent = complete as f64 * 100.0 / user_stacks as f64;
            let cut = if cut.is_empty() { String::new() } else { format!("; {}", cut.join(", ")) };
            let _ = writeln!(text, "user stacks: {percent:.1} % complete{cut}");
        }
        if gone > 0 {
            let _ = writeln!(
                text,
                "{gone} user stacks were gone already: their processes were in exec or exit"
            );
        }
    }

    /// What became of the samples that were asked for, before those of the machine.
    fn asked_for(&self, text: &mut String) {
        let Some((who, have)) = self.selection() else { return };
        let Account { delivered, filtered, lost, .. } = &self.total;
        let of = match self.scope {
            Scope::Machine => "the whole machine",
            Scope::Tasks => "these tasks on each CPU",
            Scope::Cgroups => "these cgroups on each CPU",
        };
        if self.children.is_some() {
            let lost = match lost.by_us() {
                0 => "0 lost".into(),
                // Nobody knows whose they were.
                lost => format!("at most {lost} lost"),
            };
            let _ = writeln!(text, "{who}: {delivered} samples delivered, {lost}\n{of}:");
            return;
        }
        let (in_user_mode, lost) = (filtered.user_mode, lost.by_us());
        let all = delivered + in_user_mode + lost;
        let _ = write!(text, "{who} {have} {all} samples: {delivered} delivered");
        if in_user_mode > 0 {
            let _ = write!(text, ", {in_user_mode} in user mode");
        }
        let _ = writeln!(text, ", {lost} lost\n{of}:");
    }

    /// Whose samples were asked for, if not everybody's, and their verb.
    fn selection(&self) -> Option<(String, &'static str)> {
        let pids: Vec<String> = self.pids.iter().map(ToString::to_string).collect();
        let mut who = match pids.as_slice() {
            [] => String::new(),
            [pid] => format!("process {pid}"),
            _ => format!("processes {}", pids.join(", ")),
        };
        if let Some(children) = self.children {
            let _ = write!(who, " and {} descendants", children.followed);
        }
        let filters = self.filters.join(", ");
        match (who.is_empty(), filters.is_empty()) {
            (true, true) => None,
            (true, false) => Some((format!("what matches {filters}"), "has")),
            (false, true) => Some((who, if pids.len() == 1 { "has" } else { "have" })),
            (false, false) => Some((format!("{who}, only {filters},"), "has")),
        }
    }

    /// A line for each CPU that was not always sampled, or one for many that were so for one reason.
    fn not_sampled(&self, text: &mut String) {
        for (refused, why) in [(false, "offline"), (true, "no event could be opened")] {
            let is_absent =
                |it: &&CpuAccount| it.account.not_sampled_ns > 0 && it.refused == refused;
            let absent: Vec<&CpuAccount> = self.per_cpu.iter().filter(is_absent).collect();
            let seconds = |it: &CpuAccount| it.account.not_sampled_ns as f64 / 1e9;
            if absent.len() <= MANY {
                for it in absent {
                    let _ = writeln!(
                        text,
                        "CPU {} was not sampled for {:.2} s: {why}",
                        it.cpu,
                        seconds(it)
                    );
                }
            } else {
                let cpus: CpuList = absent.iter().map(|it| it.cpu).collect();
                let longest = absent.into_iter().map(seconds).fold(0.0, f64::max);
                let _ =
                    writeln!(text, "CPU {cpus} were not sampled for up to {longest:.2} s: {why}");
            }
        }
    }
}

impl SourceAccount {
    /// The event, and how often it was sampled.
    pub(crate) fn title(&self) -> String {
        match (self.frequency, self.period) {
            (Some(hz), _) => format!("{} at {hz} Hz", self.event),
            (_, period) => format!("{} every {}", self.event, period.unwrap_or_default()),
        }
    }

    /// A line for each CPU, and what became of the samples that were not delivered.
    fn rows(&self, text: &mut String, all: bool) {
        let _ = writeln!(
            text,
            "{:>5} {:>10} {:>10} {:>10} {:>10}",
            "CPU", "expected", "delivered", "filtered", "lost"
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
        reasons(text, "filtered", &self.total.filtered.reasons());
        reasons(text, "lost", &self.total.lost.reasons());
    }

    /// What is to be said of it beside, in lines that begin with its name.
    fn notes(&self, text: &mut String, name: &str) {
        if self.total.delivered == 0 {
            let why = match self.total.expected {
                0 => "the event did not fire, and was not due to",
                _ => "the lines above say why",
            };
            let _ = writeln!(text, "{name}nothing was delivered: {why}");
        }
        if self.total.throttled > 0 {
            let _ = writeln!(
                text,
                "{name}throttled {} times by the kernel to limit the load of sampling",
                self.total.throttled
            );
        }
        if self.skipped > 0 {
            let _ = writeln!(
                text,
                "{name}the kernel skipped {} hits, while it ran another eBPF program on the CPU or used a map there",
                self.skipped
            );
        }
        if let Some(lowered) = &self.lowered {
            let to = match (lowered.frequency, lowered.period) {
                (Some(hz), _) => format!("{hz} Hz"),
                (_, period) => format!("one sample every {}", period.unwrap_or_default()),
            };
            let _ = writeln!(
                text,
                "{name}the rate was lowered {} times, finally to {to}: sampling took too much of a CPU",
                lowered.times
            );
        }
    }
}

fn reasons(text: &mut String, what: &str, reasons: &[(&str, u64)]) {
    let some = some(reasons);
    if !some.is_empty() {
        let _ = writeln!(text, "{what}: {some}");
    }
}

/// The reasons behind a sum; nothing if there are none.
fn in_brackets(reasons: &[(&str, u64)]) -> String {
    let some = some(reasons);
    if some.is_empty() { some } else { format!(" ({some})") }
}

/// Those that there are.
fn some(reasons: &[(&str, u64)]) -> String {
    let some: Vec<String> = reasons
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| format!("{reason} {count}"))
        .collect();
    some.join(", ")
}
