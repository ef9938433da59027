//! A parser process as the agent sees it: start it, ask it within a budget, kill it.

use std::{
    ffi::{CString, OsStr},
    fmt,
    fs::File,
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            process::{CommandExt as _, ExitStatusExt as _},
        },
    },
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    ptr,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair},
};

use super::wire::{self, Frame, Incoming};
#[cfg(not(test))]
use crate::realtime;
use crate::realtime::Role;

/// The argument that makes this program a parser process.
pub(super) const ARGUMENT: &str = "@parser";
/// For which thread it parses, where that has priority.
const TABLES: &str = "tables";
const NAMING: &str = "naming";
/// How long to wait for a killed process to end. If it is blocked in a file system that does not respond, it
/// ends only when that does.
const KILLED_WITHIN: Duration = Duration::from_millis(20);
const KILLED_STEP: Duration = Duration::from_millis(1);

/// What a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// CPU time.
    pub(crate) cpu: Duration,
    /// Elapsed time: on a busy machine the process gets little CPU time, and a disk may be slow.
    pub(crate) wall: Duration,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The process ended, in this way.
    Ended(String),
    /// It exceeded its budget.
    Slow,
    /// Its answer makes no sense.
    Nonsense,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(how) => write!(f, "it ended: {how}"),
            Self::Slow => f.write_str("it took longer than its budget"),
            Self::Nonsense => f.write_str("its answer made no sense"),
        }
    }
}

/// A parser process. Dropping this closes its socket, and so ends it, but only [`kill`](Self::kill) reaps it.
pub(super) struct Process {
    child: Child,
    socket: OwnedFd,
    cpu_clock: Option<libc::clockid_t>,
}

/// This program as it was started, even if another one is at its path by now.
fn executable() -> io::Result<BorrowedFd<'static>> {
    static OPENED: OnceLock<File> = OnceLock::new();
    if let Some(file) = OPENED.get() {
        return Ok(file.as_fd());
    }
    let opened = File::open("/proc/self/exe").or_else(|error| {
        // Without /proc: the path that it was started by.
        match rustix::param::linux_execfn().to_bytes() {
            [] => Err(error),
            path => File::open(Path::new(OsStr::from_bytes(path))),
        }
    })?;
    Ok(OPENED.get_or_init(|| opened).as_fd())
}

/// The arguments of a parser process with this memory limit, for a thread with this role.
#[cfg(not(test))]
fn arguments(memory_bytes: u64, role: Role) -> Vec<String> {
    let priority = match role {
        _ if !realtime::is_allowed() => "ordinary",
        Role::Tables => TABLES,
        _ => NAMING,
    };
    vec!["profiler".into(), ARGUMENT.into(), memory_bytes.to_string(), priority.into()]
}

/// The binary of the unit tests does not have our `main`, so one of its tests takes that part.
#[cfg(test)]
fn arguments(memory_bytes: u64, _: Role) -> Vec<String> {
    let test = "parser::process::tests::serves_as_a_parser_process";
    ["tests", "--exact", test, "--nocapture", ARGUMENT, &memory_bytes.to_string()]
        .map(String::from)
        .to_vec()
}

/// The memory limit and the role, if this process was started as a parser process.
pub(super) fn requested() -> Option<(u64, Option<Role>)> {
    // What others are told is text, and what people type need not be.
    let arguments = std::env::args_os().map_while(|it| it.into_string().ok());
    let mut arguments = arguments.skip_while(|it| it != ARGUMENT).skip(1);
    let memory_bytes = arguments.next()?.parse().ok()?;
    let role = match arguments.next().as_deref() {
        Some(TABLES) => Some(Role::Tables),
        Some(NAMING) => Some(Role::Naming),
        _ => None,
    };
    Some((memory_bytes, role))
}

impl Process {
    /// Starts a process with this memory limit. It ends with the calling thread at the latest.
    pub(super) fn start(memory_bytes: u64, role: Role) -> io::Result<Self> {
        let program = executable()?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (here, there) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        let arguments: Vec<CString> = arguments(memory_bytes, role)
            .into_iter()
            .map(CString::new)
            .collect::<Result<_, _>>()?;
        let mut pointers: Vec<Pointer> = arguments.iter().map(|it| Pointer(it.as_ptr())).collect();
        pointers.push(Pointer(ptr::null()));
        let held_open = CString::new(format!("/proc/self/fd/{}", program.as_raw_fd()))?;
        let execute = move || {
            let (program, environment) = (program.as_raw_fd(), [ptr::null::<libc::c_char>()]);
            // The arguments live as long as their pointers.
            let (_, pointers) = (&arguments, &pointers);
            // TOMOYO wants a path that leads to the program. Without one the kernel makes it up as
            // `/dev/fd/N`, which is not in every container.
            for path in [c"", &held_open] {
                // SAFETY: the descriptor is held open for ever, and the arrays end with a null pointer. It
                // comes back only with an error.
                unsafe {
                    libc::syscall(
                        libc::SYS_execveat,
                        program,
                        path.as_ptr(),
                        pointers.as_ptr(),
                        environment.as_ptr(),
                        libc::AT_EMPTY_PATH,
                    );
                }
            }
            Err(io::Error::last_os_error())
        };
        // Not by its path: another program may be there, and `execve` may be forbidden by now.
        let mut command = Command::new("/proc/self/exe");
        command.stdin(Stdio::from(there)).stdout(Stdio::null()).stderr(Stdio::null());
        // Signals of the terminal are for the agent.
        command.process_group(0);
        // SAFETY: it makes system calls only, and allocates nothing.
        unsafe { command.pre_exec(execute) };
        let child = command.spawn()?;
        let mut cpu_clock = 0;
        let pid = libc::pid_t::try_from(child.id()).unwrap_or_default();
        // SAFETY: the number outlives the call.
        let found = unsafe { libc::clock_getcpuclockid(pid, &raw mut cpu_clock) };
        Ok(Self { child, socket: here, cpu_clock: (found == 0).then_some(cpu_clock) })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request, and waits for an answer of at most `limit` bytes.
    pub(super) fn ask(
        &mut self,
        request: &[u8],
        files: &[BorrowedFd<'_>],
        budget: Budget,
        limit: usize,
    ) -> Result<Vec<u8>, Failure> {
        let spent = Spent { start: Instant::now(), cpu: self.cpu_time(), budget };
        // One that has ended since it was last asked says so here, or when it does not answer.
        wire::send(self.socket.as_fd(), &[request], files).map_err(|_| self.ended())?;
        self.answer(limit, &spent)
    }

    /// Its first message, which it sends unasked.
    pub(super) fn hear(&mut self, budget: Budget, limit: usize) -> Result<Vec<u8>, Failure> {
        let spent = Spent { start: Instant::now(), cpu: Duration::ZERO, budget };
        self.answer(limit, &spent)
    }

    fn answer(&mut self, limit: usize, spent: &Spent) -> Result<Vec<u8>, Failure> {
        let mut incoming = Incoming::default();
        loop {
            // Frames that keep coming do not extend the budget.
            let left = spent.left(self.cpu_time()).ok_or(Failure::Slow)?;
            let timeout = Timespec::try_from(left).map_err(|_| Failure::Slow)?;
            let mut waits = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut waits, Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(Failure::Ended(error.to_string())),
            }
            match incoming.frame(&self.socket, limit, false, RecvFlags::DONTWAIT) {
                Ok(Frame::More) => {}
                Ok(Frame::Last) => return Ok(incoming.bytes),
                Ok(Frame::End) => return Err(self.ended()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(self.ended());
                }
                Err(_) => return Err(Failure::Nonsense),
            }
        }
    }

    /// The CPU time that it has used.
    fn cpu_time(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let Some(clock) = self.cpu_clock else { return Duration::ZERO };
        // SAFETY: `time` outlives the call.
        if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
            return Duration::ZERO;
        }
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
    }

    /// It no longer answers: how did it end?
    fn ended(&mut self) -> Failure {
        let _ = self.child.kill();
        let status = reap(&mut self.child);
        Failure::Ended(status.map_or_else(|| "it does not end".to_owned(), how))
    }

    /// Kills it, and returns it if it does not end soon.
    pub(super) fn kill(mut self) -> Option<Child> {
        let _ = self.child.kill();
        match reap(&mut self.child) {
            Some(_) => None,
            None => Some(self.child),
        }
    }
}

/// A pointer into strings that move to another thread together with it.
#[repr(transparent)]
struct Pointer(#[allow(dead_code)] *const libc::c_char);

// SAFETY: what it points to is never written to, and kept beside it.
unsafe impl Send for Pointer {}
// SAFETY: the same.
unsafe impl Sync for Pointer {}

/// The exit status of a killed process, if it ends soon.
fn reap(child: &mut Child) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if start.elapsed() >= KILLED_WITHIN {
            return None;
        }
        thread::sleep(KILLED_STEP);
    }
}

/// How a process ended.
fn how(status: ExitStatus) -> String {
    match status.signal() {
        Some(libc::SIGABRT) => "it ran out of memory, or aborted".into(),
        Some(libc::SIGSEGV) => "it overflowed its stack, or crashed".into(),
        Some(libc::SIGSYS) => "it made a forbidden system call".into(),
        _ => status.to_string(),
    }
}

/// A budget, and the clocks when its request began.
struct Spent {
    start: Instant,
    cpu: Duration,
    budget: Budget,
}

impl Spent {
    /// How long it can't be used up yet; `None` if it is used up.
    fn left(&self, cpu: Duration) -> Option<Duration> {
        let wall = self.budget.wall.checked_sub(self.start.elapsed())?;
        let cpu = self.budget.cpu.checked_sub(cpu.saturating_sub(self.cpu))?;
        let left = wall.min(cpu);
        // A clock that is not exact need not be asked all the time.
        if left.is_zero() { None } else { Some(left.max(Duration::from_millis(1))) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// This program, started again with the right arguments, is a parser process.
    #[test]
    fn serves_as_a_parser_process() {
        super::super::run_if_requested();
    }

    #[test]
    fn a_budget_is_of_cpu_time_and_of_time() {
        let second = Duration::from_secs(1);
        let budget = Budget { cpu: second, wall: 100 * second };
        let spent = Spent { start: Instant::now(), cpu: second, budget };
        assert!(spent.left(second).unwrap() == second);
        assert!(spent.left(second + second / 2).unwrap() == second / 2);
        assert!(spent.left(2 * second).is_none());
        let start = Instant::now().checked_sub(100 * second).unwrap();
        assert!(Spent { start, ..spent }.left(second).is_none());
    }
}
