//! The processes of `-p` with their descendants, for `--children`.
//!
//! The eBPF program can't tell whose child a process is, so the agent does: it reads samples first and then
//! the records of forks, and so has the record of each process that a sample is from, however short that lived.

use std::io;

use rustc_hash::FxHashMap;

use super::table::{Event, Kind};
use crate::procfs::{self, stat::Stat};

/// For how long a process that has ended is kept: samples from before may still come.
const GRACE_NS: u64 = 500_000_000;

/// The processes that were asked for, and all that they and their descendants fork.
#[derive(Debug)]
pub struct Family {
    members: FxHashMap<u32, Member>,
    /// The most members at a time.
    limit: usize,
    followed: u64,
    not_followed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    since_ns: u64,
    /// When another process got its id.
    until_ns: u64,
    ended_ns: Option<u64>,
    is_child: bool,
}

/// A process, as `/proc` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Status {
    tgid: u32,
    parent: u32,
    has_ended: bool,
}

impl Family {
    /// These processes, without children so far; at most `limit` members at a time.
    #[must_use]
    pub fn new(asked_for: &[u32], limit: usize) -> Self {
        let member = Member { since_ns: 0, until_ns: u64::MAX, ended_ns: None, is_child: false };
        let members = asked_for.iter().map(|tgid| (*tgid, member)).collect();
        Self { members, limit, followed: 0, not_followed: 0 }
    }

    /// Whether the process that had this id at that time is a member.
    #[must_use]
    pub fn has(&self, tgid: u32, time_ns: u64) -> bool {
        let member = self.members.get(&tgid);
        member.is_some_and(|it| (it.since_ns..it.until_ns).contains(&time_ns))
    }

    /// Follows a fork or an exit. Events come in the order of time.
    pub fn apply(&mut self, event: &Event) {
        let &Event { time_ns, tgid, ref kind } = event;
        match kind {
            Kind::Forked(parent) if self.has(*parent, time_ns) => self.add(tgid, time_ns),
            Kind::Forked(_) => {
                // The id is another's now.
                if let Some(member) = self.members.get_mut(&tgid).filter(|it| it.since_ns < time_ns)
                {
                    member.until_ns = member.until_ns.min(time_ns);
                    member.ended_ns.get_or_insert(time_ns);
                }
            }
            Kind::Ended => {
                if let Some(member) = self.members.get_mut(&tgid) {
                    member.ended_ns.get_or_insert(time_ns);
                }
            }
            _ => {}
        }
    }

    /// Looks for the members in `/proc`: those that were there before forks were recorded, or whose records
    /// were lost.
    pub fn look(&mut self, now_ns: u64) {
        // Who can't be looked at has not ended.
        if let Ok(found) = statuses() {
            self.take_in(&found, now_ns);
        }
    }

    fn take_in(&mut self, found: &[Status], now_ns: u64) {
        let alive: FxHashMap<u32, u32> =
            found.iter().filter(|it| !it.has_ended).map(|it| (it.tgid, it.parent)).collect();
        for (tgid, member) in &mut self.members {
            if !alive.contains_key(tgid) {
                member.ended_ns.get_or_insert(now_ns);
            }
        }
        // A parent may be listed behind its child.
        loop {
            let is_new = |&(tgid, parent): &(&u32, &u32)| {
                !self.has(*tgid, now_ns) && self.is_alive(*parent, now_ns)
            };
            let new: Vec<u32> = alive.iter().filter(is_new).map(|(tgid, _)| *tgid).collect();
            let before = self.members.len();
            for tgid in &new {
                self.add(*tgid, now_ns);
            }
            if new.is_empty() || self.members.len() == before {
                return;
            }
        }
    }

    fn is_alive(&self, tgid: u32, now_ns: u64) -> bool {
        self.has(tgid, now_ns) && self.members.get(&tgid).is_some_and(|it| it.ended_ns.is_none())
    }

    fn add(&mut self, tgid: u32, since_ns: u64) {
        if let Some(member) = self.members.get_mut(&tgid) {
            // Known already, or the id was used again within the grace time.
            let is_again = member.ended_ns.take_if(|ended| *ended < since_ns).is_some();
            member.until_ns = u64::MAX;
            member.is_child |= is_again;
            self.followed += u64::from(is_again);
            return;
        }
        if self.members.len() >= self.limit {
            self.not_followed += 1;
            return;
        }
        self.followed += 1;
        let member = Member { since_ns, until_ns: u64::MAX, ended_ns: None, is_child: true };
        self.members.insert(tgid, member);
    }

    /// Forgets members that ended so long ago that no sample of them can come any more.
    pub fn forget(&mut self, now_ns: u64) {
        let is_needed =
            |it: &Member| it.ended_ns.is_none_or(|ended| ended.saturating_add(GRACE_NS) > now_ns);
        self.members.retain(|_, member| is_needed(member));
    }

    /// How many children have not ended.
    #[must_use]
    pub fn children_alive(&self) -> usize {
        self.members.values().filter(|it| it.is_child && it.ended_ns.is_none()).count()
    }

    /// How many children and further descendants were members.
    #[must_use]
    pub fn followed(&self) -> u64 {
        self.followed
    }

    /// How many could not be, since there were too many at a time.
    #[must_use]
    pub fn not_followed(&self) -> u64 {
        self.not_followed
    }
}

/// That of each process; an error where no file can be opened now.
fn statuses() -> io::Result<Vec<Status>> {
    let status = |tgid| Ok(Stat::read(tgid)?.map(|stat| Status::new(tgid, stat)));
    procfs::list_processes()?.map(status).filter_map(io::Result::transpose).collect()
}

impl Status {
    fn new(tgid: u32, stat: Stat) -> Self {
        // A main thread that has ended is a zombie as long as there are others.
        let has_ended = stat.has_ended() && stat.threads < 2;
        Self { tgid, parent: stat.parent, has_ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forked(time_ns: u64, tgid: u32, parent: u32) -> Event {
        Event { time_ns, tgid, kind: Kind::Forked(parent) }
    }

    fn ended(time_ns: u64, tgid: u32) -> Event {
        Event { time_ns, tgid, kind: Kind::Ended }
    }

    fn alive(tgid: u32, parent: u32) -> Status {
        Status { tgid, parent, has_ended: false }
    }

    #[test]
    fn descendants_are_members_from_their_fork_on() {
        let mut family = Family::new(&[10], 100);
        for event in [forked(5, 11, 10), forked(6, 12, 11), ended(7, 11), forked(8, 13, 1)] {
            family.apply(&event);
        }
        assert!(family.has(10, 0) && family.has(12, 6) && !family.has(13, 8));
        // Not before it began, but for what it did until it was gone.
        assert!(!family.has(11, 4) && family.has(11, 7));
        assert_eq!((family.followed(), family.children_alive()), (2, 1));
        // It had children itself; its end does not change that.
        family.apply(&forked(9, 14, 12));
        family.apply(&ended(10, 12));
        assert_eq!((family.followed(), family.children_alive()), (3, 1));
        family.apply(&ended(11, 14));
        assert_eq!(family.children_alive(), 0);
    }

    #[test]
    fn an_id_that_is_used_again_is_another_process() {
        let mut family = Family::new(&[10], 100);
        for event in [forked(5, 11, 10), ended(6, 11), forked(7, 11, 1)] {
            family.apply(&event);
        }
        assert!(family.has(11, 6) && !family.has(11, 7));
        // And once more by a child.
        family.apply(&ended(8, 11));
        family.apply(&forked(9, 11, 10));
        assert!(family.has(11, 9));
        assert_eq!((family.followed(), family.children_alive()), (2, 1));
        family.apply(&ended(10, 11));
        family.forget(10 + GRACE_NS - 1);
        assert!(family.has(11, 9));
        family.forget(10 + GRACE_NS);
        assert!(!family.has(11, 9) && family.has(10, 9));
    }

    #[test]
    fn those_that_were_there_before_are_found_however_they_are_listed() {
        let mut family = Family::new(&[10], 100);
        let found = [alive(13, 12), alive(12, 11), alive(11, 10), alive(10, 1), alive(9, 1)];
        family.take_in(&found, 5);
        assert_eq!(family.followed(), 3);
        assert!([11, 12, 13].iter().all(|it| family.has(*it, 5)) && !family.has(9, 5));
        // A record that says so, too, changes nothing.
        family.apply(&forked(4, 11, 10));
        assert_eq!(family.followed(), 3);
        // Whose record of the exit was lost is not there any more.
        let gone = Status { has_ended: true, ..alive(12, 11) };
        family.take_in(&[gone, alive(13, 1), alive(10, 1)], 9);
        assert_eq!((family.followed(), family.children_alive()), (3, 1));
    }

    #[test]
    fn there_are_not_more_than_the_limit() {
        let mut family = Family::new(&[10], 3);
        (11..20).for_each(|tgid| family.apply(&forked(u64::from(tgid), tgid, 10)));
        assert_eq!((family.followed(), family.not_followed()), (2, 7));
        family.take_in(&[alive(10, 1), alive(11, 10), alive(12, 10), alive(13, 10)], 30);
        assert_eq!((family.followed(), family.not_followed()), (2, 8));
    }

    #[test]
    fn a_zombie_has_ended_unless_it_has_other_threads() {
        let stat = |state: &str, threads: u32| {
            let text = format!(
                "7 (a) S (b) {state} 3 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 {threads} 0 9"
            );
            Status::new(7, Stat::parse(text.as_bytes()).unwrap())
        };
        assert_eq!(stat("S", 1), alive(7, 3));
        assert!(stat("Z", 1).has_ended && !stat("Z", 2).has_ended);
        let own = std::process::id();
        let own = statuses().unwrap().into_iter().find(|it| it.tgid == own).unwrap();
        assert_eq!((own.parent, own.has_ended), (std::os::unix::process::parent_id(), false));
    }
}
