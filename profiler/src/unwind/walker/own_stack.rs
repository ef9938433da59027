//! A test: a copy of our own stack is walked to what libgcc's unwinder finds on the stack itself.
//!
//! It is of a signal's handler, below libc's sort and functions that call themselves: code without frame
//! pointers for the most part, of which the tables of this program and of libc tell.

use std::{
    arch::asm,
    ffi::c_void,
    fs::File,
    hint::black_box,
    os::unix::fs::FileExt as _,
    ptr,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use super::*;
use crate::{
    kernel,
    parser::Budget,
    process::{
        space::Mapped,
        table::{Event, Kind},
        tracker::Tracker,
    },
    realtime::Role,
};
use profiler_common::sample::{COPY_BELOW, COPY_REGISTERS};

/// How often a function calls itself.
const DEPTH: usize = 50;
/// More than there is of the stack.
const STACK_BYTES: usize = 64 << 10;

struct Sample {
    pc: u64,
    /// As the eBPF program copies it, but longer.
    copy: Vec<u8>,
    /// Addresses that libgcc's unwinder finds; the first is not the same.
    found: Vec<u64>,
}

static SAMPLE: Mutex<Option<Sample>> = Mutex::new(None);

/// Samples where it stands: what it calls to copy its frame and to have it unwound lies below that.
#[inline(never)]
fn sample() -> Sample {
    let mut registers = [0_u64; COPY_REGISTERS];
    let (pc, sp, fp, lr): (u64, u64, u64, u64);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: registers are read.
    unsafe {
        asm!(
            "lea {pc}, [rip]", "mov {sp}, rsp", "mov {fp}, rbp", "xor {lr:e}, {lr:e}",
            pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp, lr = out(reg) lr,
            options(nomem, nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: registers are read.
    unsafe {
        asm!(
            "adr {pc}, .", "mov {sp}, sp", "mov {fp}, x29", "mov {lr}, x30",
            pc = out(reg) pc, sp = out(reg) sp, fp = out(reg) fp, lr = out(reg) lr,
            options(nomem, nostack),
        );
    }
    // On x86-64 a return address is in no register.
    registers[usize::from(Native::RA) % COPY_REGISTERS] = lr;
    registers[usize::from(Native::SP)] = sp;
    registers[usize::from(Native::FP)] = fp;
    let mut stack = vec![0; STACK_BYTES];
    let from = sp - COPY_BELOW as u64;
    let bytes = File::open("/proc/self/mem").unwrap().read_at(&mut stack, from).unwrap();
    stack.truncate(bytes);
    let copy = registers.map(u64::to_ne_bytes).into_iter().flatten().chain(stack).collect();

    let mut found = [ptr::null_mut(); 4 * DEPTH];
    let room = i32::try_from(found.len()).unwrap();
    // SAFETY: there is so much room for addresses.
    let count = unsafe { libc::backtrace(found.as_mut_ptr(), room) };
    let found = found[..usize::try_from(count).unwrap()].iter().map(|it| it.addr() as u64);
    Sample { pc, copy, found: found.collect() }
}

extern "C" fn on_signal(_: i32) {
    *SAMPLE.lock().unwrap() = Some(sample());
}

extern "C" fn compare(_: *const c_void, _: *const c_void) -> i32 {
    // SAFETY: the signal has a handler, and what this thread does meanwhile leaves it all to do.
    unsafe { libc::raise(libc::SIGUSR2) }
}

#[inline(never)]
fn sort_below(depth: usize) -> usize {
    if depth == 0 {
        let mut bytes = [2_u8, 1];
        // SAFETY: two elements of one byte.
        unsafe { libc::qsort(bytes.as_mut_ptr().cast(), 2, 1, Some(compare)) };
        return usize::from(black_box(bytes)[0]);
    }
    black_box(sort_below(depth - 1)) + 1
}

#[test]
fn is_walked_as_another_unwinder_does() {
    let handler: extern "C" fn(i32) = on_signal;
    // SAFETY: the handler runs where the signal is raised only, in a function that leaves nothing undone.
    unsafe { libc::signal(libc::SIGUSR2, handler as usize) };
    // A thread of its own has little on its stack above.
    thread::spawn(|| sort_below(DEPTH)).join().unwrap();
    let Sample { pc, copy, found } = SAMPLE.lock().unwrap().take().unwrap();

    // On a busy machine a file may not be open yet.
    let is_open = |it: &Mapped| match &it.backing {
        Backing::File(file) => file.key().is_some(),
        Backing::Vdso | Backing::Anonymous => true,
    };
    let tracker = Tracker::new(false);
    let mappings = loop {
        if let Some(Event { kind: Kind::Found { mappings, .. }, .. }) =
            tracker.find(std::process::id())
            && mappings.iter().all(is_open)
        {
            break mappings;
        }
    };
    let space = Space::new(mappings, 0);
    let mut walker = Walker::new(1024, false);
    // Tables take their time in a build for tests.
    walker.time_budget = TimeBudget::saving(Duration::from_secs(3600), Instant::now());
    let so_far = pc.to_ne_bytes();
    let so_far = (Addresses::new(&so_far), UserEnd::NotLoaded);
    let copy = StackCopy::new(&copy).unwrap();
    let minute = Duration::from_secs(60);
    let mut parser =
        Parser::start(Arc::default(), Budget { cpu: minute, wall: 3 * minute }, Role::Naming);
    let now_ns = kernel::monotonic_ns();
    let walked =
        walker.walk(&mut parser, &copy, &space, now_ns, so_far, std::iter::empty()).unwrap();

    let addresses: Vec<u64> = Addresses::new(&walked.addresses).iter().collect();
    let (interrupted, callers): (Vec<u64>, Vec<u64>) = (
        addresses.iter().copied().filter(|it| it & INTERRUPTED != 0).collect(),
        addresses.iter().skip(1).map(|it| it & !INTERRUPTED).collect(),
    );
    assert_eq!(callers, found[1..]);
    assert_eq!(walked.end, UserEnd::Complete);
    assert_eq!(interrupted.len(), 1);
    let of_itself = |caller| callers.iter().filter(|it| *it == caller).count() == DEPTH;
    assert!(callers.iter().any(of_itself), "{callers:x?}");
}
