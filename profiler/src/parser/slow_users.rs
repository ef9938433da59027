//! How long a thread waits for the files of each user.
//!
//! A file system that answers late, but in time each time, holds up the thread that asks as often as it is asked. So
//! what is slow about the files of a user may take a share of the time only, and that of all users together, too,
//! since one person may have many user ids. Who has used it up is not asked. Root is exempt: nobody else makes root's
//! files slow, and they matter to all.

use std::time::{Duration, Instant};

use quick_cache::unsync::Cache;

use crate::time_budget::TimeBudget;

const ROOT: u32 = 0;
/// What takes less is not slow: a machine or a disk under load may.
const SLOW: Duration = Duration::from_millis(100);
/// What slow answers about files of one user, and of all users but root, may take: one part in so many of the time,
/// and so much at once.
const SHARE_USER: u32 = 40;
const SHARE_USERS: u32 = 20;
const AT_ONCE_USER: Duration = Duration::from_secs(3);
const AT_ONCE_USERS: Duration = Duration::from_secs(6);
/// Users who are remembered.
const MAX_USERS: usize = 1024;

/// The users whose files have been slow lately, and all users but root together.
#[derive(Debug)]
pub(super) struct SlowUsers {
    of_user: Cache<u32, TimeBudget>,
    of_users: TimeBudget,
}

impl SlowUsers {
    /// Nobody has been slow.
    pub(super) fn new(now: Instant) -> Self {
        let of_users = TimeBudget::sharing(SHARE_USERS, AT_ONCE_USERS, now);
        Self { of_user: Cache::new(MAX_USERS), of_users }
    }

    /// Whether there is time left for files of this user.
    pub(super) fn have_time(&self, user: u32, now: Instant) -> bool {
        let is_left = |it: &TimeBudget| it.is_left(now);
        user == ROOT || is_left(&self.of_users) && self.of_user.get(&user).is_none_or(is_left)
    }

    /// An answer about files of this user was waited for this long; gives how much of that was slow.
    pub(super) fn take(&mut self, user: u32, waited: Duration, now: Instant) -> Duration {
        if waited < SLOW {
            return Duration::ZERO;
        }
        if user == ROOT {
            return waited;
        }
        self.of_users.take(now, waited);
        let own = self.of_user.get(&user).cloned();
        let mut own = own.unwrap_or_else(|| TimeBudget::sharing(SHARE_USER, AT_ONCE_USER, now));
        own.take(now, waited);
        self.of_user.insert(user, own);
        waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For how long a thread is held up in this time by who makes it wait for so long whenever asked; the users take
    /// turns.
    fn held_up(users: &[u32], wait: Duration, time: Duration) -> Duration {
        let start = Instant::now() + Duration::from_secs(10_000);
        let (mut now, mut held_up) = (start, Duration::ZERO);
        let mut slow = SlowUsers::new(start);
        let mut turns = users.iter().cycle();
        while now < start + time {
            let user = *turns.next().unwrap();
            if slow.have_time(user, now) {
                now += wait;
                held_up += wait;
                slow.take(user, wait, now);
            }
            now += Duration::from_millis(1);
        }
        held_up
    }

    #[test]
    fn who_is_slow_takes_a_share_of_the_time() {
        let hour = Duration::from_secs(3600);
        for wait in [SLOW, Duration::from_millis(1900), Duration::from_secs(6)] {
            let most = hour / SHARE_USER + AT_ONCE_USER + wait;
            let held_up = held_up(&[1000], wait, hour);
            assert!(held_up <= most && held_up >= hour / SHARE_USER, "{wait:?}: {held_up:?}");
        }
    }

    #[test]
    fn all_users_together_take_a_share_of_the_time() {
        let users: Vec<u32> = (1..=3000).collect();
        let (wait, hour) = (Duration::from_secs(2), Duration::from_secs(3600));
        let held_up = held_up(&users, wait, hour);
        assert!(held_up <= hour / SHARE_USERS + AT_ONCE_USERS + wait, "{held_up:?}");
    }

    #[test]
    fn what_is_not_slow_and_what_is_of_root_is_asked_always() {
        let minute = Duration::from_secs(60);
        let quick = SLOW.saturating_sub(Duration::from_nanos(1));
        for (user, wait) in [(1000, quick), (ROOT, Duration::from_secs(2))] {
            let held_up = held_up(&[user], wait, minute);
            assert!(held_up > minute * 9 / 10, "{user}: {held_up:?}");
        }
    }

    #[test]
    fn one_user_costs_others_nothing() {
        let now = Instant::now() + Duration::from_secs(10_000);
        let mut slow = SlowUsers::new(now);
        assert_eq!(slow.take(1000, AT_ONCE_USER + SLOW, now), AT_ONCE_USER + SLOW);
        assert!(!slow.have_time(1000, now) && slow.have_time(1001, now));
        assert!(slow.have_time(1000, now + SLOW * SHARE_USER));
    }

    #[test]
    fn the_users_are_bounded() {
        let now = Instant::now() + Duration::from_secs(10_000);
        let mut slow = SlowUsers::new(now);
        for user in 1..3 * u32::try_from(MAX_USERS).unwrap() {
            slow.take(user, 2 * AT_ONCE_USER, now);
            assert!(slow.of_user.len() <= MAX_USERS && !slow.have_time(user, now));
        }
    }
}
