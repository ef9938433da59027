//! A file system in user space that holds one file, such as a program, and answers as long as it is let.
//!
//! Protocol: <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/fuse.h>.

use std::{
    ffi::CString,
    fs::{self, File},
    io::{Read as _, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use profiler::stderr;
use tempfile::TempDir;

const ROOT: u64 = 1;
const PROGRAM: u64 = 2;
/// The largest request: a write, which is never sent here, with its header.
const REQUEST_BYTES: usize = 256 << 10;

/// The mounted file system; gone when dropped, with all that waits for it.
pub(crate) struct Unanswering {
    dir: TempDir,
    answers: Arc<AtomicBool>,
    delay_ms: Arc<AtomicU64>,
    silent_to: Arc<AtomicU32>,
    over: Arc<AtomicBool>,
    daemon: Option<JoinHandle<()>>,
    abort: PathBuf,
}

impl Unanswering {
    /// The only file's path.
    pub(crate) fn program(&self) -> PathBuf {
        self.dir.path().join("program")
    }

    /// `None`, and the reason printed, where the kernel has no such file systems.
    pub(crate) fn mount(program: &Path) -> Option<Self> {
        Self::mount_with(fs::read(program).unwrap())
    }

    /// The same, with this content.
    pub(crate) fn mount_with(content: Vec<u8>) -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = match device {
            Ok(device) => device,
            Err(error) => {
                stderr::say(&format!("skipped: cannot open /dev/fuse: {error}"));
                return None;
            }
        };
        let dir = tempfile::tempdir().unwrap();
        let point = CString::new(dir.path().as_os_str().as_bytes()).unwrap();
        let fd = device.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other");
        let options = CString::new(options).unwrap();
        // SAFETY: all strings end in a zero and outlive the call.
        let mounted = unsafe {
            libc::mount(
                c"test".as_ptr(),
                point.as_ptr(),
                c"fuse".as_ptr(),
                0,
                options.as_ptr().cast(),
            )
        };
        assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
        let (answers, over) = (Arc::new(AtomicBool::new(true)), Arc::default());
        let (delay_ms, silent_to) = (Arc::default(), Arc::default());
        let daemon = Daemon {
            device,
            content,
            modified: SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs(),
            answers: Arc::clone(&answers),
            delay_ms: Arc::clone(&delay_ms),
            silent_to: Arc::clone(&silent_to),
            over: Arc::clone(&over),
        };
        let daemon = Some(thread::spawn(move || daemon.run()));
        // The daemon answers, as this asks it.
        let minor = libc::minor(fs::metadata(dir.path()).unwrap().dev());
        let abort = format!("/sys/fs/fuse/connections/{minor}/abort").into();
        Some(Self { dir, answers, delay_ms, silent_to, over, daemon, abort })
    }

    /// From here on, or not any more, whoever asks waits.
    pub(crate) fn set_answering(&self, answers: bool) {
        self.answers.store(answers, Ordering::SeqCst);
    }

    /// From here on each answer takes so long.
    pub(crate) fn delay(&self, ms: u64) {
        self.delay_ms.store(ms, Ordering::SeqCst);
    }

    /// From here on this process waits, and no other.
    pub(crate) fn be_silent_to(&self, tgid: u32) {
        self.silent_to.store(tgid, Ordering::SeqCst);
    }
}

impl Drop for Unanswering {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // Closes the device, which ends the connection: what waits fails.
        let ended = self.daemon.take().map(JoinHandle::join);
        let _ = fs::write(&self.abort, "1");
        let point = CString::new(self.dir.path().as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends in a zero and outlives the call.
        let unmounted = unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH) };
        if !thread::panicking() {
            assert_eq!(unmounted, 0, "{}", std::io::Error::last_os_error());
            ended.unwrap().unwrap();
        }
    }
}

struct Daemon {
    device: File,
    content: Vec<u8>,
    /// In seconds.
    modified: u64,
    answers: Arc<AtomicBool>,
    delay_ms: Arc<AtomicU64>,
    silent_to: Arc<AtomicU32>,
    over: Arc<AtomicBool>,
}

impl Daemon {
    fn run(mut self) {
        let mut request = vec![0; REQUEST_BYTES];
        while !self.over.load(Ordering::SeqCst) {
            let mut poll =
                libc::pollfd { fd: self.device.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: `poll` outlives the call, which gets the length 1. The end is looked for between.
            let ready = unsafe { libc::poll(&raw mut poll, 1, 10) };
            if ready <= 0 || !self.answers.load(Ordering::SeqCst) {
                continue;
            }
            thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::SeqCst)));
            // A request may be taken back.
            let Ok(bytes) = self.device.read(&mut request) else { continue };
            self.answer(&request[..bytes]);
        }
    }

    /// Header: `u32` length, `u32` opcode, `u64` unique, `u64` node, `u32` user, group, thread.
    fn answer(&mut self, request: &[u8]) {
        let u32_at = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let u64_at = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let (opcode, unique, node) = (u32_at(4), u64_at(8), u64_at(16));
        let argument = 40;
        let silent_to = self.silent_to.load(Ordering::SeqCst);
        let thread = format!("/proc/{silent_to}/task/{}", u32_at(32));
        // FORGET, RELEASE, INTERRUPT and BATCH_FORGET are not waited for.
        if ![2, 18, 36, 42].contains(&opcode) && Path::new(&thread).exists() {
            return;
        }
        let answer = match opcode {
            // FORGET and BATCH_FORGET have no answer.
            2 | 42 => return,
            // INTERRUPT: who is killed need not wait for what it has asked.
            36 => return self.send(u64_at(argument), Err(libc::EINTR)),
            // LOOKUP
            1 if &request[argument..] == b"program\0" => {
                // Node, generation, and for how long name and attributes hold.
                let entry = u64s(&[PROGRAM, 0, 0, 0, 0]);
                Ok([entry, self.attributes(PROGRAM)].concat())
            }
            1 => Err(libc::ENOENT),
            // GETATTR: to be asked again each time.
            3 => Ok([u64s(&[0, 0]), self.attributes(node)].concat()),
            // OPEN: a handle, and the pages that are there stay valid (FOPEN_KEEP_CACHE).
            14 => Ok(u64s(&[0, 2])),
            // READ: handle, offset, size.
            15 => {
                let offset = usize::try_from(u64_at(argument + 8)).unwrap().min(self.content.len());
                let bytes = u32_at(argument + 16) as usize;
                let end = (offset + bytes).min(self.content.len());
                Ok(self.content[offset..end].to_vec())
            }
            // RELEASE
            18 => Ok(Vec::new()),
            // INIT: protocol 7.31, read ahead by 64 KiB, and default limits.
            26 => {
                let mut init = [7_u32, 31, 64 << 10, 0].map(u32::to_ne_bytes).concat();
                init.extend([12_u16, 9].map(u16::to_ne_bytes).concat());
                init.extend([64 << 10, 1_u32].map(u32::to_ne_bytes).concat());
                init.resize(64, 0);
                Ok(init)
            }
            _ => Err(libc::ENOSYS),
        };
        self.send(unique, answer);
    }

    fn send(&mut self, unique: u64, answer: Result<Vec<u8>, i32>) {
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(error) => (-error, Vec::new()),
        };
        let length = u32::try_from(16 + body.len()).unwrap();
        let header = [length.to_ne_bytes(), error.to_ne_bytes()].concat();
        // One that was interrupted is gone.
        let _ = self.device.write(&[header, u64s(&[unique]), body].concat());
    }

    /// `struct fuse_attr`.
    fn attributes(&self, node: u64) -> Vec<u8> {
        let (mode, bytes) = match node {
            ROOT => (libc::S_IFDIR | 0o755, 0),
            _ => (libc::S_IFREG | 0o755, self.content.len() as u64),
        };
        let times = u64s(&[node, bytes, bytes.div_ceil(512), 0, self.modified, 0]);
        // Nanoseconds, mode, links, user, group, device, block size, flags.
        let rest = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_ne_bytes).concat();
        [times, rest].concat()
    }
}

fn u64s(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}
