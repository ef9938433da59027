use super::*;
use crate::{kernel, stderr};
use profiler_testing::elf::with_build_id;
use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::MetadataExt as _,
    path::Path,
    thread,
    time::SystemTime,
};

/// A process that is not there, so that only the path is left.
fn place(name: &Path) -> MappedAt {
    let (name, since_ns) = (name.to_str().unwrap().into(), kernel::monotonic_ns());
    MappedAt { tgid: u32::MAX, start: 0, end: 1, name, since_ns, is_new: true }
}

fn get(files: &Mutex<Files>, id: MappedId, place: MappedAt) -> Arc<MappedFile> {
    let (file, opening) = Files::lock(files).get(id, place);
    if let Some(opening) = opening {
        opening.open(files);
    }
    file
}

fn id_of(path: &Path) -> MappedId {
    let file = fs::metadata(path).unwrap();
    let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
    MappedId { major, minor, inode: file.ino(), generation: None }
}

fn missing(files: &Mutex<Files>, id: MappedId, path: &Path) -> Option<Missing> {
    get(files, id, place(path)).unchanged().err()
}

#[test]
fn a_file_is_the_one_that_was_mapped_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("a"), dir.path().join("b"));
    fs::write(&path, "code").unwrap();
    fs::write(&other, "code").unwrap();
    let files = Mutex::default();
    let (id, other_id) = (id_of(&path), id_of(&other));
    assert_eq!(missing(&files, id, &path), None);
    // Held open, it is the one, whatever becomes of its path.
    fs::remove_file(&path).unwrap();
    assert_eq!(missing(&files, id, &path), None);
    assert_eq!(missing(&files, other_id, &path), Some(Missing::Gone));
    fs::rename(&other, &path).unwrap();
    let third = dir.path().join("c");
    fs::write(&third, "code").unwrap();
    let files = Mutex::default();
    assert_eq!(missing(&files, id_of(&third), &path), Some(Missing::Replaced));
}

#[test]
fn a_file_that_was_written_to_is_not_used() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let files = Mutex::default();
    let mapped = get(&files, id_of(file.path()), place(file.path()));
    assert!(mapped.unchanged().is_ok() && mapped.key().is_some());
    file.write_all(b"more").unwrap();
    assert_eq!(mapped.unchanged().err(), Some(Missing::Changed));
}

#[test]
fn a_new_mapping_of_a_file_that_was_written_to_is_another_file() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let files = Mutex::default();
    let id = id_of(file.path());
    let first = get(&files, id, place(file.path()));
    // Times of files may be those of the last tick.
    thread::sleep(Duration::from_millis(20));
    file.write_all(b"more").unwrap();
    assert_eq!(first.unchanged().err(), Some(Missing::Changed));
    let found = get(&files, id, MappedAt { is_new: false, ..place(file.path()) });
    assert!(Arc::ptr_eq(&first, &found), "what /proc shows was mapped before");
    let second = get(&files, id, place(file.path()));
    assert!(second.unchanged().is_ok() && second.key() != first.key());
    let third = get(&files, id, place(file.path()));
    assert!(Arc::ptr_eq(&second, &third));
    // What was mapped before stays what it was.
    assert_eq!(first.unchanged().err(), Some(Missing::Changed));
}

#[test]
fn who_maps_a_file_after_a_while_has_it_checked() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let files = Mutex::default();
    let id = id_of(file.path());
    let first = get(&files, id, place(file.path()));
    let wait = || {
        let mut files = Files::lock(&files);
        let known = files.by_id.get_mut(&id).unwrap();
        known.checked = known.checked.checked_sub(CHECK_INTERVAL).unwrap();
    };
    wait();
    let second = get(&files, id, place(file.path()));
    assert!(second.key().is_some() && second.key() == first.key());
    thread::sleep(Duration::from_millis(20));
    file.write_all(b"more").unwrap();
    // Nobody has read it since.
    wait();
    let third = get(&files, id, place(file.path()));
    assert!(third.unchanged().is_ok() && third.key() != first.key());
}

#[test]
fn a_file_in_memory_is_one_file_however_often_it_is_written_and_mapped() {
    let name = c"code";
    // SAFETY: the name ends in a zero, and outlives the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), 0) };
    assert!(fd >= 0);
    // SAFETY: the descriptor was just made, and nobody else has it.
    let mut file = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    file.write_all(b"code").unwrap();
    // SAFETY: an address that the kernel chooses, of a descriptor that is open.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_SHARED,
            fd,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    let start = at as u64;
    let place = MappedAt {
        tgid: std::process::id(),
        start,
        end: start + 4096,
        name: "/memfd:code (deleted)".into(),
        since_ns: kernel::monotonic_ns(),
        is_new: true,
    };
    let metadata = file.metadata().unwrap();
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let id = MappedId { major, minor, inode: metadata.ino(), generation: None };
    let files = Mutex::default();
    let first = get(&files, id, place.clone());
    if first.missing() == Missing::Gone && first.key().is_none() {
        return stderr::say("skipped: /proc/PID/map_files needs privileges");
    }
    thread::sleep(Duration::from_millis(20));
    file.write_all(b"more").unwrap();
    assert_eq!(first.unchanged().err(), Some(Missing::Changed));
    assert!(first.is_memory() && Arc::ptr_eq(&first, &get(&files, id, place)));
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
    // SAFETY: the name ends in a zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let files = Mutex::default();
    assert_eq!(missing(&files, id_of(&fifo), &fifo), Some(Missing::Special));
}

#[test]
fn a_file_that_could_not_be_opened_is_when_another_process_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    fs::write(&path, "code").unwrap();
    let (id, files) = (id_of(&path), Mutex::default());
    let first = get(&files, id, place(&dir.path().join("elsewhere")));
    assert_eq!(first.unchanged().err(), Some(Missing::Gone));
    while first.unchanged().is_err() {
        get(&files, id, place(&path));
    }
    assert!(Files::lock(&files).by_id.len() == 1 && first.key().is_some());
}

#[test]
fn a_file_that_is_opened_late_is_known_from_then_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    fs::write(&path, "code").unwrap();
    let (id, files) = (id_of(&path), Mutex::default());
    let ask = || Files::lock(&files).get(id, place(&path));
    let (file, opening) = ask();
    assert_eq!(file.unchanged().err(), Some(Missing::Unanswered));
    let (other, none) = ask();
    assert!(Arc::ptr_eq(&file, &other) && none.is_none(), "it is under way");
    opening.unwrap().refuse(&files);
    assert_eq!(file.unchanged().err(), Some(Missing::Unanswered));
    let (other, again) = ask();
    again.unwrap().open(&files);
    assert!(other.unchanged().is_ok() && file.unchanged().is_ok());
}

#[test]
fn a_leased_file_is_tried_again_and_not_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    fs::write(&path, "code").unwrap();
    let (id, files) = (id_of(&path), Mutex::default());
    let (file, mut opening) = Files::lock(&files).get(id, place(&path));
    let leased = |opening: Opening| {
        let mut files = Files::lock(&files);
        files.settle(opening, Err(Missing::Leased));
        assert_eq!(file.missing(), Missing::Leased);
        assert!(files.due(Instant::now()).is_empty(), "not at once");
        let due = files.due(Instant::now() + RETRY_LEASED);
        assert!(due.len() <= 1);
        due.into_iter().next()
    };
    for _ in 0..TRIES_LEASED {
        opening = leased(opening.unwrap());
        assert!(files.lock().unwrap().get(id, place(&path)).1.is_none(), "it is under way");
    }
    assert!(leased(opening.unwrap()).is_none());
    // It is open at the next try, which another mapping of it brings.
    while file.unchanged().is_err() {
        get(&files, id, place(&path));
    }
}

#[test]
fn leased_files_of_one_user_leave_room_for_others() {
    let mut files = Files::default();
    let opening = |number, user| {
        let id = MappedId { major: 0, minor: 0, inode: number, generation: None };
        let file = Arc::new(MappedFile::new(Missing::Unanswered));
        let retry = Instant::now();
        let (name, is_shared) = ("/a".into(), false);
        let own = Arc::clone(&file);
        let known = Known {
            file: own,
            user: Some(user),
            name,
            is_shared,
            opening: true,
            retry,
            checked: retry,
        };
        (id, known, Opening { id, place: place(Path::new("/a")), file, tries: 0 })
    };
    for number in 0..100 {
        let (id, known, opening) = opening(number, 1000);
        files.by_id.insert(id, known);
        files.settle(opening, Err(Missing::Leased));
    }
    assert_eq!(files.leased.len(), LIMIT_LEASED_USER);
    let (id, known, opening) = opening(1000, 0);
    files.by_id.insert(id, known);
    files.settle(opening, Err(Missing::Leased));
    assert_eq!(files.leased.len(), LIMIT_LEASED_USER + 1);
}

#[test]
fn a_file_that_was_changed_after_it_was_mapped_is_not_the_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    fs::write(&path, "code").unwrap();
    let (id, files) = (id_of(&path), Mutex::default());
    let place = place(&path);
    // Times of files may be those of the last tick.
    thread::sleep(Duration::from_millis(20));
    fs::write(&path, "other").unwrap();
    assert_eq!(get(&files, id, place).unchanged().err(), Some(Missing::Replaced));
}

#[test]
fn an_inode_number_of_two_files_is_one_only_for_root_by_one_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    fs::write(&path, "code").unwrap();
    let id = id_of(&path);
    let elsewhere = MappedId { major: id.major + 1, ..id };
    let sure = |owner, id| {
        // Where the test is not root, files belong to who runs it.
        let mut opened = file::open(id_of(&path), &place(&path)).unwrap();
        opened.owner = owner;
        let known = Known {
            file: Arc::new(MappedFile::new(Missing::Gone)),
            user: None,
            name: path.to_str().unwrap().into(),
            is_shared: false,
            opening: false,
            retry: Instant::now(),
            checked: Instant::now(),
        };
        [&path, &dir.path().join("b")].map(|it| is_sure(id, &opened, &known, &place(it)))
    };
    assert_eq!(sure(1, id), [true, true]);
    assert_eq!(sure(ROOT, elsewhere), [true, false]);
    assert_eq!(sure(1, elsewhere), [false, false]);
}

#[test]
fn copies_of_a_file_of_root_are_held_open_once() {
    let dir = tempfile::tempdir().unwrap();
    if fs::metadata(dir.path()).unwrap().uid() != ROOT {
        return stderr::say("skipped: needs files of root");
    }
    let write = |name, tail: &[u8], modified: SystemTime| {
        let path = dir.path().join(name);
        fs::write(&path, [&with_build_id(&[1; 20]), tail].concat()).unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        path
    };
    let (old, new) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + RETRY);
    let [first, copy, other, later, owned] = [
        write("first", b"", old),
        write("copy", b"", old),
        write("other", b"more", old),
        write("later", b"", new),
        write("owned", b"", old),
    ];
    std::os::unix::fs::chown(&owned, Some(1), None).unwrap();
    let files = Mutex::default();
    let [first, copy, other, later, owned] =
        [first, copy, other, later, owned].map(|path| get(&files, id_of(&path), place(&path)));
    let is_shared =
        |file: &MappedFile| Arc::ptr_eq(first.opened().unwrap(), file.opened().unwrap());
    assert!(is_shared(&copy));
    assert_eq!([other, later, owned].map(|it| is_shared(&it)), [false; 3]);
    let shared = Files::lock(&files).by_id.values().filter(|it| it.is_shared).count();
    assert_eq!(shared, 1);
}

#[test]
fn what_a_file_was_before_it_was_written_to_counts_while_it_is_mapped() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let files = Mutex::new(Files { max_open: 4, ..Files::default() });
    let id = id_of(file.path());
    let mut held = Vec::new();
    let mut write_and_map = || {
        // Times of files may be those of the last tick.
        thread::sleep(Duration::from_millis(20));
        file.write_all(b"more").unwrap();
        let mapped = get(&files, id, place(file.path()));
        let _ = mapped.unchanged();
        let known = Files::lock(&files).by_id.get(&id).map(|it| Arc::clone(&it.file));
        // As it is found by who reads it.
        let _ = known.is_some_and(|it| it.unchanged().is_ok());
        held.push(mapped);
        held.last().map(|it| it.missing())
    };
    let missing: Vec<_> = (0..8).map(|_| write_and_map()).collect();
    assert!(missing.contains(&Some(Missing::TooMany)), "{missing:?}");
    let open = held.iter().filter_map(|it| it.opened()).map(Arc::as_ptr);
    let open: std::collections::BTreeSet<_> = open.collect();
    assert!(open.len() <= 4, "{}", open.len());
    // When they are unmapped, there is room.
    held.clear();
    thread::sleep(Duration::from_millis(20));
    file.write_all(b"more").unwrap();
    let known = Files::lock(&files).by_id.get(&id).map(|it| Arc::clone(&it.file)).unwrap();
    assert_eq!(known.unchanged().err(), Some(Missing::Changed));
    drop(known);
    assert!(get(&files, id, place(file.path())).unchanged().is_ok());
}

#[test]
fn the_files_are_bounded() {
    const MAX_OPEN: usize = 200;
    let path = Path::new("/proc/self/exe");
    let id = |number| MappedId { major: 0, minor: 0, inode: number, generation: None };
    let known = |user| Known {
        file: Arc::new(MappedFile::new(Missing::Gone)),
        user,
        name: "".into(),
        is_shared: false,
        opening: false,
        retry: Instant::now() + RETRY,
        checked: Instant::now(),
    };
    let files_of = |users: &[(Option<u32>, usize)]| {
        let users = users.iter().flat_map(|&(user, count)| std::iter::repeat_n(user, count));
        let by_id = (0..).map(id).zip(users.map(known)).collect();
        Files { by_id, max_open: MAX_OPEN, ..Files::default() }
    };
    let full_for =
        |users: &[_]| [Some(ROOT), Some(1000), None].map(|user| files_of(users).is_full_for(user));
    assert_eq!(full_for(&[(Some(ROOT), MAX_OPEN - 1)]), [false, false, false]);
    assert_eq!(full_for(&[(Some(ROOT), MAX_OPEN)]), [true, true, true]);
    assert_eq!(full_for(&[(Some(1000), MAX_OPEN / 2)]), [false, true, false]);
    assert_eq!(full_for(&[(None, MAX_OPEN / 2), (Some(1000), 1)]), [false, false, true]);
    // However many users somebody can be, some are left for root.
    assert_eq!(full_for(&[(Some(1), 100), (Some(2), 49)]), [false, false, false]);
    assert_eq!(full_for(&[(Some(1), 50), (Some(2), 50), (Some(3), 50)]), [false, true, true]);
    // What nothing is mapped from any more makes room.
    let files = Mutex::new(files_of(&[(None, MAX_OPEN / 2)]));
    let held: Vec<_> =
        Files::lock(&files).by_id.values().map(|known| Arc::clone(&known.file)).collect();
    assert_eq!(missing(&files, id(u64::MAX), path), Some(Missing::TooMany));
    drop(held);
    assert_ne!(missing(&files, id(u64::MAX), path), Some(Missing::TooMany));
    assert_eq!(Files::lock(&files).by_id.len(), 1);
}
