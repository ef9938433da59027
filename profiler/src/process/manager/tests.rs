use std::sync::atomic::{AtomicBool, Ordering};

use profiler_profile::sample::Comm;

use super::*;
use crate::{process::space::Mapped, procfs::maps::Backing};

/// Remembers what it is told: pids, when their images began, and the names of their mappings.
#[derive(Default)]
struct Witness {
    is_full: AtomicBool,
    told: Mutex<Vec<Vec<Told>>>,
}

type Told = (u32, Option<(u64, Vec<String>)>);

impl Observer for Witness {
    fn changed(&self, changes: Vec<Change>) -> bool {
        let told = changes.into_iter().map(|Change { tgid, image }| {
            let names = |it: Mappings| it.iter().map(|it| it.name.to_string()).collect();
            (tgid, image.map(|it| (it.began_ns, names(it.mappings))))
        });
        let is_full = self.is_full.load(Ordering::Relaxed);
        if !is_full {
            self.told.lock().unwrap().push(told.collect());
        }
        !is_full
    }
}

impl Witness {
    fn told(&self) -> Vec<Vec<Told>> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }
}

fn event(time_ns: u64, tgid: u32, kind: Kind) -> Event {
    Event { time_ns, tgid, kind }
}

fn mapped(name: &str) -> Kind {
    let (backing, name) = (Backing::Anonymous, name.into());
    Kind::Mapped(Mapped { start: 0, end: 10, file_offset: 0, backing, name })
}

fn image(tgid: u32, began_ns: u64, names: &[&str]) -> Told {
    (tgid, Some((began_ns, names.iter().map(ToString::to_string).collect())))
}

fn observed() -> (Manager, Arc<Witness>) {
    let (manager, witness) = (Manager::new(10), Arc::new(Witness::default()));
    manager.observe(&witness);
    (manager, witness)
}

#[test]
fn an_observer_is_told_what_each_process_has_become() {
    let (manager, witness) = observed();
    let exec = |time_ns| event(time_ns, 2, Kind::Exec(Comm::default()));
    manager.apply([event(1, 1, mapped("shell")), event(2, 2, Kind::Forked(1))], 3);
    assert_eq!(witness.told(), [[image(1, 1, &["shell"]), image(2, 2, &["shell"])]]);
    // What it was in between is not told.
    manager.apply([exec(4), event(5, 2, mapped("env")), exec(6), event(7, 2, mapped("python"))], 8);
    assert_eq!(witness.told(), [[image(2, 6, &["python"])]]);
    // Neither a name nor who it is changes what is mapped.
    manager.apply([event(9, 2, Kind::Named(Comm::default()))], 10);
    assert!(witness.told().is_empty());
    assert_eq!(manager.known_at(2, 5).unwrap().began_ns, 4);
}

#[test]
fn one_that_has_ended_is_gone_for_observers_before_it_is_for_samples() {
    let (manager, witness) = observed();
    manager.apply([event(1, 1, mapped("a")), event(2, 1, Kind::Ended)], 3);
    assert_eq!(witness.told(), [[image(1, 1, &["a"])]]);
    manager.apply([], 2 + GRACE_NS);
    assert!(witness.told().is_empty());
    manager.apply([], 3 + GRACE_NS);
    assert_eq!(witness.told(), [[(1, None)]]);
    // The samples that wait to be named are from long ago.
    assert!(manager.at(1, 2).is_some());
    manager.forget_before(3 + GRACE_NS);
    assert!(manager.at(1, 2).is_none());
}

#[test]
fn a_pid_used_again_is_not_gone() {
    let (manager, witness) = observed();
    manager.apply([event(1, 1, Kind::Ended), event(2, 1, mapped("a"))], 3);
    manager.apply([event(4, 1, Kind::Ended), event(5, 1, Kind::Forked(9))], 6);
    witness.told();
    manager.apply([], 9 + GRACE_NS);
    assert_eq!(witness.told(), [[image(1, 5, &[])]]);
}

#[test]
fn what_an_observer_has_no_room_for_is_told_as_it_is_later() {
    let (manager, witness) = observed();
    witness.is_full.store(true, Ordering::Relaxed);
    manager.apply([event(1, 1, mapped("a")), event(1, 2, mapped("b"))], 2);
    witness.is_full.store(false, Ordering::Relaxed);
    manager.apply([event(3, 2, mapped("c")), event(4, 3, mapped("d"))], 5);
    let all = [image(1, 1, &["a"]), image(2, 1, &["c"]), image(3, 4, &["d"])];
    assert_eq!(witness.told(), [all]);
}

#[test]
fn an_observer_that_comes_late_is_told_of_all_and_one_that_has_gone_of_nothing() {
    let (manager, first) = observed();
    manager.apply([event(1, 1, mapped("a"))], 2);
    let second = Arc::new(Witness::default());
    manager.observe(&second);
    assert_eq!(second.told(), [[image(1, 1, &["a"])]]);
    let gone = Arc::downgrade(&first);
    drop(first);
    manager.apply([event(3, 2, mapped("b"))], 4);
    assert_eq!(second.told(), [[image(2, 3, &["b"])]]);
    assert!(gone.upgrade().is_none() && manager.lock().observers.len() == 1);
}

#[test]
fn those_that_are_evicted_are_gone() {
    let (manager, witness) = observed();
    for tgid in 1..=11 {
        manager.apply([event(tgid.into(), tgid, mapped("a"))], 20);
    }
    let told = witness.told().concat();
    let evicted: Vec<_> = told.iter().filter(|(_, image)| image.is_none()).collect();
    assert_eq!(evicted.len() as u64, manager.evicted(), "{told:?}");
    assert!(manager.evicted() > 0);
}
