//! The account of a part of a run: what has happened since an earlier account of it.

use super::{Account, CpuAccount, Filtered, Ledger, Lost, SourceAccount};

impl Ledger {
    /// What has happened since an earlier account of the same run. A sample that waits belongs to the part in which it
    /// has found its fate, so that `expected = delivered + filtered + lost` holds for each part. Memory, names and how
    /// rates were lowered are those of the whole run.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let sources =
            self.sources.iter().enumerate().map(|(slot, now)| match before.sources.get(slot) {
                Some(before) => now.since(before),
                None => now.clone(),
            });
        let ends = self.user_ends.iter().map(|(end, now)| {
            let before = before.user_ends.get(end).copied().unwrap_or(0);
            (*end, now.saturating_sub(before))
        });
        let per_cpu = all_since(&self.per_cpu, &before.per_cpu);
        Self {
            total: sum(&per_cpu),
            per_cpu,
            without_stack: self.without_stack.saturating_sub(before.without_stack),
            skipped: self.skipped.saturating_sub(before.skipped),
            sideband_lost: self.sideband_lost.saturating_sub(before.sideband_lost),
            sideband_malformed: self.sideband_malformed.saturating_sub(before.sideband_malformed),
            evicted_processes: self.evicted_processes.saturating_sub(before.evicted_processes),
            user_ends: ends.filter(|(_, count)| *count > 0).collect(),
            waiting: None,
            duration_ns: self.duration_ns.saturating_sub(before.duration_ns),
            sources: sources.collect(),
            ..self.clone()
        }
    }
}

impl SourceAccount {
    fn since(&self, before: &Self) -> Self {
        let per_cpu = all_since(&self.per_cpu, &before.per_cpu);
        Self {
            total: sum(&per_cpu),
            per_cpu,
            without_stack: self.without_stack.saturating_sub(before.without_stack),
            skipped: self.skipped.saturating_sub(before.skipped),
            ..self.clone()
        }
    }
}

fn sum(per_cpu: &[CpuAccount]) -> Account {
    let mut total = Account::default();
    for it in per_cpu {
        total.add(&it.account);
    }
    total
}

fn all_since(now: &[CpuAccount], before: &[CpuAccount]) -> Vec<CpuAccount> {
    let of_cpu = |now: &CpuAccount| {
        let before = before.iter().find(|it| it.cpu == now.cpu);
        let before = before.map_or_else(Account::default, |it| it.account);
        CpuAccount { account: now.account.since(&before), ..*now }
    };
    now.iter().map(of_cpu).collect()
}

impl Account {
    fn since(&self, before: &Self) -> Self {
        let less = u64::saturating_sub;
        let (now, then) = (&self.filtered, &before.filtered);
        let filtered = Filtered {
            idle: less(now.idle, then.idle),
            asleep: less(now.asleep, then.asleep),
            excluded: less(now.excluded, then.excluded),
            pid: less(now.pid, then.pid),
            tid: less(now.tid, then.tid),
            uid: less(now.uid, then.uid),
            comm: less(now.comm, then.comm),
            cgroup: less(now.cgroup, then.cgroup),
            own: less(now.own, then.own),
            user_mode: less(now.user_mode, then.user_mode),
        };
        let (now, then) = (&self.lost, &before.lost);
        let lost = Lost {
            missed: less(now.missed, then.missed),
            throttled: less(now.throttled, then.throttled),
            ring_full: less(now.ring_full, then.ring_full),
            ring_contended: less(now.ring_contended, then.ring_contended),
            scratch_busy: less(now.scratch_busy, then.scratch_busy),
            agent_behind: less(now.agent_behind, then.agent_behind),
            undelivered: less(now.undelivered, then.undelivered),
        };
        let delivered = less(self.delivered, before.delivered);
        Self {
            expected: delivered.saturating_add(filtered.total()).saturating_add(lost.total()),
            fired: less(self.fired, before.fired),
            delivered,
            filtered,
            lost,
            throttled: less(self.throttled, before.throttled),
            not_sampled_ns: less(self.not_sampled_ns, before.not_sampled_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(delivered: u64, idle: u64, missed: u64, waiting: u64) -> Account {
        let lost = Lost { missed, ..Lost::default() };
        let filtered = Filtered { idle, ..Filtered::default() };
        let expected = delivered + idle + missed + waiting;
        Account { expected, fired: expected, delivered, filtered, lost, ..Account::default() }
    }

    #[test]
    fn a_part_is_what_is_settled_in_it() {
        // Three wait at the first account, and one at the second.
        let (first, second) = (account(10, 5, 1, 3), account(20, 9, 1, 1));
        let part = second.since(&first);
        assert_eq!((part.delivered, part.filtered.idle, part.lost.missed), (10, 4, 0));
        assert_eq!(part.expected, part.delivered + part.filtered.total() + part.lost.total());
        assert_eq!(second.since(&Account::default()).expected, 30);
        // A count that went back, as of a CPU that has come anew, is none.
        assert_eq!(first.since(&second).delivered, 0);
    }

    #[test]
    fn each_cpu_has_its_part_and_a_new_one_all() {
        let of = |cpu, delivered| CpuAccount {
            cpu,
            refused: false,
            events: 1,
            account: account(delivered, 0, 0, 0),
        };
        let parts = all_since(&[of(0, 9), of(3, 4)], &[of(0, 2)]);
        let delivered: Vec<_> = parts.iter().map(|it| (it.cpu, it.account.delivered)).collect();
        assert_eq!((delivered, sum(&parts).expected), (vec![(0, 7), (3, 4)], 11));
    }
}
