use super::*;
use crate::procfs::maps::{Backing, Mapping};

fn mapping(start: u64, name: &str) -> Mapped {
    let (backing, name) = (Backing::Anonymous, name.into());
    Mapping { start, end: start + 10, file_offset: 0, backing, name }
}

fn found(mapping: Mapped) -> Kind {
    Kind::Found { mappings: vec![mapping], name: Comm::default(), metadata: None }
}

fn event(time_ns: u64, tgid: u32, kind: Kind) -> Event {
    Event { time_ns, tgid, kind }
}

fn name_at(processes: &mut Processes, tgid: u32, time_ns: u64) -> Option<String> {
    let process = processes.at(tgid, time_ns)?;
    process.space.find(5, time_ns).map(|mapping| mapping.name.to_string())
}

#[test]
fn a_child_has_its_parents_mappings_until_it_calls_exec() {
    let mut processes = Processes::new(10);
    processes.apply(event(100, 1, found(mapping(0, "shell"))));
    processes.apply(event(200, 2, Kind::Forked(1)));
    processes.apply(event(300, 2, Kind::Exec(Comm::default())));
    processes.apply(event(310, 2, Kind::Mapped(mapping(0, "program"))));
    let mut at = |tgid, time_ns| name_at(&mut processes, tgid, time_ns);
    assert_eq!(at(2, 250).as_deref(), Some("shell"));
    assert_eq!(at(2, 320).as_deref(), Some("program"));
    assert_eq!(at(1, 320).as_deref(), Some("shell"));
    assert_eq!(at(1, 50).as_deref(), Some("shell"));
    assert_eq!(at(3, 50), None);
    let before = processes.at(2, 305).unwrap().before_exec.unwrap();
    assert_eq!(before.id(), processes.at(1, 305).unwrap().space.id());
}

#[test]
fn a_pid_used_again_is_another_process() {
    let mut processes = Processes::new(10);
    processes.apply(event(1, 7, found(mapping(0, "first"))));
    let first = processes.at(7, 10).unwrap();
    processes.apply(event(100, 7, Kind::Ended));
    processes.apply(event(200, 7, Kind::Forked(1)));
    processes.apply(event(210, 7, Kind::Mapped(mapping(0, "second"))));
    assert_eq!(name_at(&mut processes, 7, 99).as_deref(), Some("first"));
    assert_eq!(name_at(&mut processes, 7, 220).as_deref(), Some("second"));
    assert_ne!(processes.at(7, 220).unwrap().space.id(), first.space.id());
}

#[test]
fn a_process_lives_as_long_as_any_of_its_threads() {
    let mut processes = Processes::new(10);
    processes.apply(event(0, 4, found(mapping(0, "a"))));
    processes.apply(event(1, 4, Kind::Ended));
    for time in 1..10 {
        let time = time * GRACE_NS;
        assert_eq!(name_at(&mut processes, 4, time).as_deref(), Some("a"));
        processes.forget_before(time);
    }
    processes.forget_before(20 * GRACE_NS);
    assert!(processes.pids.is_empty() && processes.due.is_empty());
}

#[test]
fn the_parent_does_not_see_what_its_child_maps() {
    let mut processes = Processes::new(10);
    processes.apply(event(1, 1, found(mapping(0, "a"))));
    processes.apply(event(2, 2, Kind::Forked(1)));
    let space = |processes: &mut Processes, tgid| processes.at(tgid, 3).unwrap().space.id();
    assert_eq!(space(&mut processes, 1), space(&mut processes, 2), "shared");
    processes.apply(event(4, 2, Kind::Mapped(mapping(0, "b"))));
    assert_eq!(name_at(&mut processes, 1, 5).as_deref(), Some("a"));
    assert_eq!(name_at(&mut processes, 2, 5).as_deref(), Some("b"));
}

#[test]
fn what_proc_has_told_is_not_told_again() {
    let mut processes = Processes::new(10);
    processes.apply(event(500, 9, found(mapping(0, "now"))));
    // These were written before `/proc` was read, and are read after.
    processes.apply(event(300, 9, Kind::Forked(1)));
    processes.apply(event(310, 9, Kind::Exec(Comm::default())));
    processes.apply(event(320, 9, Kind::Mapped(mapping(0, "then"))));
    assert_eq!(name_at(&mut processes, 9, 600).as_deref(), Some("now"));
    processes.apply(event(700, 9, Kind::Mapped(mapping(0, "later"))));
    assert_eq!(name_at(&mut processes, 9, 800).as_deref(), Some("later"));
}

#[test]
fn what_proc_tells_late_is_old() {
    let mut processes = Processes::new(10);
    processes.apply(event(100, 9, Kind::Forked(1)));
    processes.apply(event(200, 9, Kind::Mapped(mapping(0, "mapped"))));
    processes.apply(event(150, 9, found(mapping(0, "before"))));
    assert_eq!(name_at(&mut processes, 9, 300).as_deref(), Some("mapped"));
    processes.apply(event(400, 9, found(mapping(0, "after"))));
    assert_eq!(name_at(&mut processes, 9, 500).as_deref(), Some("after"));
    processes.apply(event(600, 9, Kind::Ended));
    processes.apply(event(550, 9, found(mapping(0, "before"))));
    assert_eq!(name_at(&mut processes, 9, 560).as_deref(), Some("after"));
}

#[test]
fn who_a_process_is_may_come_after_its_next_exec() {
    let mut processes = Processes::new(10);
    let metadata = Metadata { cgroup: Some("/a".into()), ..Metadata::default() };
    for time in [100, 200] {
        processes.apply(event(time, 9, Kind::Exec(Comm::default())));
    }
    processes.apply(event(100, 9, Kind::Described(Box::new(metadata))));
    assert!(processes.at(9, 150).unwrap().metadata.is_some());
    assert!(processes.at(9, 250).unwrap().metadata.is_none());
}

#[test]
fn who_a_process_is_holds_also_where_there_are_no_cgroups() {
    let mut processes = Processes::new(10);
    let metadata = Metadata { parent: Some(1), ..Metadata::default() };
    processes.apply(event(100, 9, Kind::Exec(Comm::default())));
    processes.apply(event(100, 9, Kind::Described(Box::new(metadata.clone()))));
    processes.apply(event(200, 9, Kind::Exec(Comm::default())));
    let command_line = Some("program".into());
    let metadata = Metadata { command_line, ..metadata };
    processes.apply(event(200, 9, Kind::Described(Box::new(metadata))));
    let known = processes.at(9, 250).unwrap().metadata.unwrap();
    assert_eq!(known.command_line.as_deref(), Some("program"));
}

#[test]
fn an_ended_process_is_kept_for_late_samples_only() {
    let mut processes = Processes::new(10);
    for (time, name) in [(0, "a"), (GRACE_NS, "b")] {
        processes.apply(event(time, 4, Kind::Forked(1)));
        processes.apply(event(time, 4, Kind::Exec(Comm::default())));
        processes.apply(event(time + 1, 4, Kind::Mapped(mapping(0, name))));
        processes.apply(event(time + 2, 4, Kind::Ended));
    }
    processes.forget_before(GRACE_NS);
    assert_eq!(name_at(&mut processes, 4, 2).as_deref(), Some("a"));
    processes.forget_before(GRACE_NS + 100);
    assert_eq!(name_at(&mut processes, 4, GRACE_NS + 1).as_deref(), Some("b"));
    // The one before exec, and the one after.
    assert_eq!(processes.pids[&4].images.len(), 2);
    processes.forget_before(3 * GRACE_NS);
    assert!(processes.pids.is_empty() && processes.due.is_empty());
}

#[test]
fn a_child_that_is_gone_belongs_to_what_its_parent_did() {
    let mut processes = Processes::new(10);
    let known = Metadata {
        command_line: Some("shell".into()),
        cgroup: Some("/a".into()),
        ..Metadata::default()
    };
    let metadata = Some(Box::new(known));
    processes.apply(event(
        1,
        1,
        Kind::Found { mappings: Vec::new(), name: Comm::default(), metadata },
    ));
    processes.apply(event(2, 2, Kind::Forked(1)));
    processes.apply(event(3, 2, Kind::Exec(Comm::default())));
    processes.apply(event(3, 2, Kind::Described(Box::default())));
    processes.apply(event(3, 2, Kind::Mapped(mapping(0, "program"))));
    let metadata = processes.at(2, 2).unwrap().metadata.unwrap();
    assert_eq!((metadata.parent, metadata.command_line.as_deref()), (Some(1), Some("shell")));
    let metadata = processes.at(2, 3).unwrap().metadata.unwrap();
    assert_eq!((metadata.parent, metadata.command_line.as_deref()), (Some(1), None));
    assert_eq!(metadata.cgroup.as_deref(), Some("/a"));
}

#[test]
fn the_table_is_bounded() {
    let mut processes = Processes::new(100);
    for tgid in 1..=1000 {
        processes.apply(event(u64::from(tgid), tgid, Kind::Forked(0)));
        assert!(processes.at(1, u64::MAX).is_some(), "what is sampled stays, {tgid}");
        assert!(processes.pids.len() <= 100);
    }
    assert!(processes.evicted() >= 900, "{}", processes.evicted());
    assert!(processes.at(1000, u64::MAX).is_some());
}

#[test]
fn what_was_too_long_ago_to_be_remembered_is_not_known() {
    let mut processes = Processes::new(10);
    for time in 1..=100 {
        processes.apply(event(10 * time, 7, Kind::Exec(Comm::default())));
        processes.apply(event(10 * time, 7, Kind::Mapped(mapping(0, &time.to_string()))));
    }
    // The image at that time, and no later one in its place.
    assert_eq!(name_at(&mut processes, 7, 1000).as_deref(), Some("100"));
    assert_eq!(name_at(&mut processes, 7, 999).as_deref(), Some("99"));
    assert_eq!(name_at(&mut processes, 7, 500), None);
    assert_eq!((processes.pids[&7].images.len(), processes.due.len()), (MAX_IMAGES, 1));
}
