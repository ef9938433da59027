//! What the kernel tells of mappings, as the library reads it.

use std::{
    fs,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    process,
    time::Duration,
};

use perf_event_open_sys::bindings as sys;
use profiler::{
    bpf::load,
    cli::SamplingArgs,
    config::{Config, Machine},
    perf::{
        record::{Record, Timed},
        sideband::{RING_BYTES, Sideband},
    },
    procfs::maps::{self, Backing, MappedId, Mapping},
};
use profiler_profile::cpus::CpuList;

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
    let Backing::File(own) = mapping.backing else { panic!("{mapping:?}") };
    if !(*start..start + bytes).contains(&mapping.start) || name != mapping.name.as_bytes() {
        return false;
    }
    assert_eq!(file_offset + (mapping.start - start), mapping.file_offset, "{record:?}");
    // Which file with the inode number it is, `/proc` does not tell.
    assert_eq!(file.map(|it| MappedId { generation: None, ..it }), Some(own), "{record:?}");
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

/// The ring of an event that another program has opened.
struct Other {
    /// Closed when this goes.
    _event: OwnedFd,
    ring: *mut sys::perf_event_mmap_page,
}

impl Other {
    const PAGES: usize = 64;

    /// One that has the kernel tell of mappings on a CPU, and asks for no build ids.
    fn open(cpu: u32) -> Self {
        let mut attr = sys::perf_event_attr::default();
        attr.type_ = sys::PERF_TYPE_SOFTWARE;
        attr.config = u64::from(sys::PERF_COUNT_SW_DUMMY);
        attr.size = u32::try_from(size_of_val(&attr)).unwrap();
        attr.set_mmap(1);
        attr.set_mmap2(1);
        let cpu = i32::try_from(cpu).unwrap();
        // SAFETY: `attr` is initialized, with its size in it, and outlives the call.
        let event = unsafe { perf_event_open_sys::perf_event_open(&raw mut attr, -1, cpu, -1, 0) };
        assert!(event >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the kernel has just given us this descriptor.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        // SAFETY: no preconditions.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap();
        let (bytes, access) = ((1 + Self::PAGES) * page, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let ring = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, event.as_raw_fd(), 0)
        };
        assert_ne!(ring, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self { _event: event, ring: ring.cast() }
    }

    /// The `misc` of all records of mappings so far. The ring has room for all.
    fn flags(&self) -> Vec<u16> {
        // SAFETY: the first page is mapped as long as the test runs; the kernel writes the head.
        let (head, offset) = unsafe {
            ((&raw const (*self.ring).data_head).read_volatile(), (*self.ring).data_offset)
        };
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        let head = usize::try_from(head).unwrap();
        // SAFETY: the kernel has written so many bytes behind the first page.
        let records = unsafe {
            let data = self.ring.cast::<u8>().add(usize::try_from(offset).unwrap());
            std::slice::from_raw_parts(data, head)
        };
        let (mut flags, mut rest) = (Vec::new(), records);
        while let Some((header, _)) = rest.split_first_chunk::<8>() {
            let [kind @ .., a, b, c, d] = *header;
            if u32::from_ne_bytes(kind) == sys::PERF_RECORD_MMAP2 {
                flags.push(u16::from_ne_bytes([a, b]));
            }
            rest = &rest[usize::from(u16::from_ne_bytes([c, d]))..];
        }
        flags
    }
}

/// Kernels such as 6.1 and 6.12 leave the flag of a build id in the records of every event behind one that has
/// asked for it: perf then reads an inode as a build id, and aborts.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn records_for_others_have_no_flag_of_a_build_id() {
    let cpu = online().iter().next().unwrap();
    move_to(cpu);
    let other = Other::open(cpu);
    let mut sideband = Sideband::open(&online(), RING_BYTES).unwrap();
    let file = fs::File::open(fixture("chain.c")).unwrap();
    let access = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let code = unsafe {
        libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
    };
    assert_ne!(code, libc::MAP_FAILED);
    let told = |timed: &Timed| matches!(&timed.record, Record::Mmap { start, file: Some(_), .. } if *start == code as u64);
    assert!(read(&mut sideband).iter().any(told));
    let flags = other.flags();
    assert!(!flags.is_empty());
    let flag = u16::try_from(sys::PERF_RECORD_MISC_MMAP_BUILD_ID).unwrap();
    assert!(flags.iter().all(|it| it & flag == 0), "{flags:x?}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_ebpf_program_is_a_kernel_symbol() {
    let config =
        Config::resolve(&SamplingArgs::default(), Vec::new(), 0, &Machine::probe().unwrap())
            .unwrap();
    let mut sideband = Sideband::open(&online(), RING_BYTES).unwrap();
    let _program = load::Program::load(&config.program, &[load::SlotSettings::default()]).unwrap();
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
