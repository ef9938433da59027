//! What the kernel tells of mappings, as the library reads it.

use std::{fs, process, time::Duration};

use clap::Parser as _;
use profiler::{
    bpf::load,
    cli::Cli,
    config::Config,
    perf::{
        cpus::CpuList,
        record::{MappedId, Record, Timed},
        sideband::{RING_BYTES, Sideband},
    },
    process::maps::{self, Backing, Mapping},
};

use crate::support::{Cpu1, Program, fixture, now_ns, wait_until};

/// Records of new names: more than fit into a ring of one page, however large pages are.
const FLOOD: u64 = 10_000;

fn online() -> CpuList {
    fs::read_to_string("/sys/devices/system/cpu/online").unwrap().parse().unwrap()
}

/// What is there to be read.
fn read(sideband: &mut Sideband) -> Vec<Timed> {
    let mut records = Vec::new();
    sideband.read(&mut records);
    records
}

/// Has this thread run on one CPU only.
fn move_to(cpu: u32) {
    // SAFETY: all zeros is a set of no CPUs.
    let mut cpus: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set outlives both calls; the second gets its size.
    let moved = unsafe {
        libc::CPU_SET(cpu as usize, &mut cpus);
        libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus)
    };
    assert_eq!(moved, 0, "{}", std::io::Error::last_os_error());
}

/// Gives this thread a name, which is a record.
fn take_name(name: &[u8; 16]) {
    // SAFETY: the name ends in a zero, and the kernel copies it.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) }, 0);
}

/// Whether this thread has taken the name.
fn is_named(timed: &Timed, name: &[u8; 16]) -> bool {
    matches!(&timed.record, Record::Comm { tgid, comm, exec: false, .. }
        if *tgid == process::id() && comm == name)
}

/// Whether the record tells of this mapping, or of one that it is the rest of.
fn tells(record: &Record, mapping: &Mapping<MappedId>) -> bool {
    let Record::Mmap { start, bytes, file_offset, file, name, .. } = record else { return false };
    let Backing::File(MappedId::Inode { inode: own, .. }) = mapping.backing else {
        panic!("{mapping:?}")
    };
    if !(*start..start + bytes).contains(&mapping.start) || name != mapping.name.as_bytes() {
        return false;
    }
    assert_eq!(file_offset + (mapping.start - start), mapping.file_offset, "{record:?}");
    match file.unwrap() {
        MappedId::Inode { inode, .. } => assert_eq!(inode, own, "{record:?}"),
        MappedId::BuildId(id) => {
            let elf = fs::read(&*mapping.name).unwrap();
            let id = id.as_bytes();
            assert!(elf.windows(id.len()).any(|bytes| bytes == id), "{record:?}");
        }
    }
    true
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_program_is_followed_from_its_start_to_its_end() {
    let before = now_ns();
    let mut sideband = Sideband::open(&online(), RING_BYTES).unwrap();
    let mut program = Program::start("chain.c");
    // It runs its own code, so everything is mapped.
    program.wait_for_ticks(1);
    let pid = program.0.id();
    let text = fs::read(format!("/proc/{pid}/maps")).unwrap();
    program.0.kill().unwrap();
    program.0.wait().unwrap();
    let records = read(&mut sideband);
    let after = now_ns();
    assert_eq!(sideband.lost(), 0);

    let own = |timed: &&Timed| match timed.record {
        Record::Mmap { tgid, .. }
        | Record::Comm { tgid, .. }
        | Record::Fork { tgid, .. }
        | Record::Exit { tgid, .. } => tgid == pid,
        Record::Ksymbol { .. } | Record::Lost { .. } => false,
    };
    let own: Vec<&Timed> = records.iter().filter(own).collect();
    assert!(own.is_sorted_by_key(|timed| timed.time_ns), "{own:?}");
    assert!(own.iter().all(|timed| (before..=after).contains(&timed.time_ns)), "{own:?}");

    let [first, .., last] = &own[..] else { panic!("{own:?}") };
    assert!(
        matches!(first.record, Record::Fork { tid, parent_tgid, .. }
            if tid == pid && parent_tgid == process::id()),
        "{own:?}"
    );
    assert_eq!(last.record, Record::Exit { tgid: pid, tid: pid });
    let exec = own.iter().position(|it| matches!(it.record, Record::Comm { exec: true, .. }));
    let exec = exec.unwrap();
    let comm = *b"chain-c\0\0\0\0\0\0\0\0\0";
    assert_eq!(own[exec].record, Record::Comm { tgid: pid, tid: pid, comm, exec: true });

    let mut mappings = maps::parse(&text);
    mappings.retain(|mapping| matches!(mapping.backing, Backing::File(_)));
    let path = fixture("chain.c").canonicalize().unwrap();
    assert!(mappings.iter().any(|it| &*it.name == path.to_str().unwrap()), "{mappings:?}");
    for mapping in &mappings {
        let told = own.iter().rposition(|timed| tells(&timed.record, mapping));
        assert!(told > Some(exec), "{mapping:?} {own:?}");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_ebpf_program_is_a_kernel_symbol() {
    let config = Config::resolve(Cli::try_parse_from(["profiler"]).unwrap().sampling, 0).unwrap();
    let mut sideband = Sideband::open(&online(), RING_BYTES).unwrap();
    let _program = load::Program::load(&config).unwrap();
    let records = read(&mut sideband);
    let registered = |timed: &Timed| {
        matches!(&timed.record, Record::Ksymbol { bytes: 1.., name, registered: true, .. }
            if name.starts_with(b"bpf_prog_"))
    };
    assert!(records.iter().any(registered), "{records:?}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_flood_in_a_small_ring_is_counted_as_lost() {
    let cpu = online().iter().next().unwrap();
    move_to(cpu);
    let name = b"flood\0\0\0\0\0\0\0\0\0\0\0";
    let mut sideband = Sideband::open(&online(), 1).unwrap();
    (0..FLOOD).for_each(|_| take_name(name));
    let kept = read(&mut sideband).iter().filter(|timed| is_named(timed, name)).count() as u64;
    assert!(kept > 0 && kept < FLOOD, "{kept}");

    // Now there is room for a record, and so for what was lost before.
    take_name(name);
    let records = read(&mut sideband);
    assert!(records.iter().any(|timed| matches!(timed.record, Record::Lost { .. })), "{records:?}");
    assert!(records.iter().any(|timed| is_named(timed, name)), "{records:?}");
    // Whatever else happened on this CPU may be among them.
    assert!(sideband.lost() >= FLOOD - kept, "{} {kept}", sideband.lost());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_ring_that_fills_wakes_the_reader_each_time() {
    let cpu = online().iter().next().unwrap();
    move_to(cpu);
    let name = b"flood\0\0\0\0\0\0\0\0\0\0\0";
    let mut sideband = Sideband::open(&online(), 1).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut wakeup = sideband.wakeup().unwrap();
        for _ in 0..5 {
            (0..FLOOD).for_each(|_| take_name(name));
            let woken = tokio::time::timeout(Duration::from_secs(60), wakeup.woken());
            woken.await.unwrap().unwrap();
            assert!(!read(&mut sideband).is_empty());
            wakeup.arm();
        }
    });
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_cpu_that_was_away_is_followed_again() {
    let Some(cpu) = Cpu1::take() else { return };
    let (before, after) = (b"before\0\0\0\0\0\0\0\0\0\0", b"after\0\0\0\0\0\0\0\0\0\0\0");
    let mut sideband = Sideband::open(&online(), RING_BYTES).unwrap();
    move_to(1);
    take_name(before);
    move_to(0);
    cpu.set_online(false);
    assert_eq!(sideband.look().gone, [1]);
    let records = read(&mut sideband);
    assert!(records.iter().any(|timed| is_named(timed, before)), "{records:?}");

    cpu.set_online(true);
    assert_eq!(sideband.look().came, [1]);
    move_to(1);
    take_name(after);
    let records = read(&mut sideband);
    assert!(records.iter().any(|timed| is_named(timed, after)), "{records:?}");

    // Away for a moment, so that the list of CPUs is as before: a look asks the event.
    move_to(0);
    sideband.look();
    cpu.set_online(false);
    cpu.set_online(true);
    wait_until("the dead event is replaced", || sideband.look().revived == [1]);
}
