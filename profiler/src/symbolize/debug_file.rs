//! The separate debug file of a stripped one: where distributions put it, and that it is the right
//! one.
//!
//! The places are gdb's:
//! <https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html>.

use std::{
    fs::File,
    io::Read as _,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use profiler_common::build_id::BuildId;

use super::roots::Roots;
use crate::time_budget::TimeBudget;

/// Where debug files are installed.
pub(super) const DEBUG_DIR: &str = "usr/lib/debug";
/// The largest file whose checksum is made: it takes a read of the whole, and a container may hold
/// one that has no end in sight.
const CHECKSUM_LIMIT: u64 = 1 << 30;
/// The longest that one may take, on a slow disk.
const CHECKSUM_TIME: Duration = Duration::from_secs(5);
/// How much of a file is read at a time for its checksum.
const CHUNK_BYTES: usize = 64 << 10;

/// The debug file of a file that has this path in each of the roots, such as a process's own and
/// ours. It is looked for by build id in all of them, then by the link to it, as far as there is time
/// left for checksums.
pub(super) fn find(
    stripped: &File,
    path: &Path,
    roots: &Roots,
    time_budget: &mut TimeBudget,
) -> Option<File> {
    let id = profiler_elf::build_id(stripped);
    let by_link = || {
        let link = profiler_elf::debug_link(stripped)?;
        let places = link_places(path, &link)?;
        roots.find(&places, |file| is_linked(file, &link, id, time_budget))
    };
    id.and_then(|id| by_id(id, roots)).or_else(by_link)
}

/// `/usr/lib/debug/.build-id/ab/cdef….debug`
pub(super) fn by_id(id: BuildId, roots: &Roots) -> Option<File> {
    let hex = id.to_string();
    let (first, rest) = hex.split_at_checked(2)?;
    let place = Path::new("/").join(DEBUG_DIR).join(format!(".build-id/{first}/{rest}.debug"));
    roots.find(&[place], |file| profiler_elf::build_id(file) == Some(id))
}

/// Beside the file, in `.debug` there, and below `/usr/lib/debug`.
fn link_places(path: &Path, link: &profiler_elf::DebugLink) -> Option<[PathBuf; 3]> {
    let here = path.parent()?;
    let installed = Path::new("/").join(DEBUG_DIR).join(here.strip_prefix("/").ok()?);
    let places = [here.to_owned(), here.join(".debug"), installed];
    Some(places.map(|place| place.join(&link.name)))
}

/// Whether a file is the one that was linked to: by its checksum, and by build id where both have
/// one.
fn is_linked(
    file: &File,
    link: &profiler_elf::DebugLink,
    id: Option<BuildId>,
    time_budget: &mut TimeBudget,
) -> bool {
    let mut magic = [0; 4];
    if file.read_exact_at(&mut magic, 0).is_err() || magic != object::elf::ELFMAG {
        return false;
    }
    let own = profiler_elf::build_id(file);
    // The build id is found at once, the checksum takes the whole file.
    (own.is_none() || id.is_none() || own == id) && crc(file, time_budget) == Some(link.crc)
}

/// The checksum of a file that is not too large, nor takes too long to be read.
fn crc(file: &File, time_budget: &mut TimeBudget) -> Option<u32> {
    let start = Instant::now();
    if !time_budget.is_left(start) {
        tracing::info!("a debug file was skipped: checksums have used up their share of the time");
        return None;
    }
    let crc = read_crc(file, start.checked_add(CHECKSUM_TIME)?);
    let end = Instant::now();
    time_budget.take(end, end.duration_since(start));
    crc
}

fn read_crc(mut file: &File, deadline: Instant) -> Option<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    // One that grows while it is read has an end all the same.
    let mut left = Some(file.metadata().ok()?.len()).filter(|&bytes| bytes <= CHECKSUM_LIMIT)?;
    while left > 0 && Instant::now() < deadline {
        let bytes = file.read(&mut chunk).ok().filter(|&bytes| bytes > 0)?;
        hasher.update(chunk.get(..bytes)?);
        left = left.saturating_sub(bytes as u64);
    }
    (left == 0).then(|| hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_symbols::{Answer, Image, Images, Options, SymbolFile};
    use std::{fs, os::fd::AsRawFd as _, process::Command, sync::Arc};
    use tempfile::TempDir;

    const PROGRAM: &str = "int work(int x) { return x * 3; } int main(void) { return work(1); }";

    fn plenty() -> TimeBudget {
        TimeBudget::new(Instant::now())
    }

    fn run(program: &str, arguments: &[&Path]) {
        let done = Command::new(program).args(arguments).status().unwrap();
        assert!(done.success(), "{program} {arguments:?}");
    }

    /// A root with `/opt/program`, which is stripped, and `/opt/program.debug`.
    struct Root {
        dir: TempDir,
        /// Where `work` lies in the file.
        work: u64,
    }

    impl Root {
        fn new(build_id: &str) -> Self {
            let dir = TempDir::new().unwrap();
            let at = |name: &str| dir.path().join(name);
            fs::create_dir(at("opt")).unwrap();
            fs::write(at("source.c"), PROGRAM).unwrap();
            let (program, debug) = (at("opt/program"), at("opt/program.debug"));
            let id = format!("-Wl,--build-id={build_id}");
            let options = [Path::new("-g"), Path::new(&id), Path::new("-o")];
            let files = [program.as_path(), &at("source.c")];
            run("gcc", &[options.as_slice(), files.as_slice()].concat());
            let work = offset_of_work(&program);
            run("objcopy", &[Path::new("--only-keep-debug"), &program, &debug]);
            run("strip", &[&program]);
            let link = PathBuf::from(format!("--add-gnu-debuglink={}", debug.display()));
            run("objcopy", &[&link, &program]);
            Self { dir, work }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn program(&self) -> File {
            File::open(self.path("opt/program")).unwrap()
        }

        fn move_debug_file(&self, to: &str) {
            let to = self.path(to);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::rename(self.path("opt/program.debug"), to).unwrap();
        }

        /// Its place by build id.
        fn id_place(&self) -> String {
            let id = profiler_elf::build_id(&self.program()).unwrap().to_string();
            format!("usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..])
        }

        fn find(&self) -> Option<File> {
            let empty = TempDir::new().unwrap();
            let roots = Roots::in_folders(&[empty.path(), self.dir.path()]);
            super::find(&self.program(), Path::new("/opt/program"), &roots, &mut plenty())
        }

        /// The name of `work` by the file, and what was found.
        fn name_of_work(&self) -> Option<String> {
            name_at(&self.program(), Some(&self.find()?), self.work)
        }
    }

    fn name_at(main: &File, debug: Option<&File>, offset: u64) -> Option<String> {
        let image = |file: &File| {
            let bytes = fs::read(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
            Image::new(Arc::new(bytes), None)
        };
        let (main, debug) = (image(main), debug.map(image));
        let images = Images { main, debug, supplementary: None, package: None };
        let options = Options { lines: false, unpack_time: Duration::ZERO };
        match SymbolFile::load(images, options).unwrap().find(offset) {
            Answer::Found(found) => Some(found.name),
            _ => None,
        }
    }

    fn offset_of_work(program: &Path) -> u64 {
        use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};
        let bytes = fs::read(program).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        let address = elf.symbol_by_name("work").unwrap().address();
        let holds = |it: &object::Segment<'_, '_>| {
            (it.address()..it.address() + it.size()).contains(&address)
        };
        let segment = elf.segments().find(holds).unwrap();
        address - segment.address() + segment.file_range().0
    }

    #[test]
    fn the_stripped_one_has_no_name_and_the_debug_file_has() {
        let root = Root::new("sha1");
        assert_eq!(name_at(&root.program(), None, root.work), None);
        assert_eq!(root.name_of_work().as_deref(), Some("work"));
    }

    #[test]
    fn is_found_in_each_place() {
        for build_id in ["sha1", "none"] {
            for place in ["opt/.debug/program.debug", "usr/lib/debug/opt/program.debug"] {
                let root = Root::new(build_id);
                root.move_debug_file(place);
                assert_eq!(root.name_of_work().as_deref(), Some("work"), "{build_id} {place}");
            }
        }
        let root = Root::new("sha1");
        root.move_debug_file(&root.id_place());
        assert_eq!(root.name_of_work().as_deref(), Some("work"));
    }

    #[test]
    fn is_not_taken_with_another_checksum() {
        for build_id in ["sha1", "none"] {
            let root = Root::new(build_id);
            let debug = root.path("opt/program.debug");
            let mut bytes = fs::read(&debug).unwrap();
            bytes.push(0);
            fs::write(&debug, bytes).unwrap();
            assert!(root.find().is_none(), "{build_id}");
        }
    }

    #[test]
    fn is_not_taken_with_another_build_id() {
        // By its place alone it would be.
        let (root, other) = (Root::new("sha1"), Root::new("0x0102030405"));
        root.move_debug_file(&root.id_place());
        fs::copy(other.path("opt/program.debug"), root.path(&root.id_place())).unwrap();
        assert!(root.find().is_none());
        // The checksum is right, and yet it is of another build.
        let file = File::open(other.path("opt/program.debug")).unwrap();
        let link =
            profiler_elf::DebugLink { name: "any".into(), crc: crc(&file, &mut plenty()).unwrap() };
        let reopened = || File::open(other.path("opt/program.debug")).unwrap();
        assert!(is_linked(
            &reopened(),
            &link,
            profiler_elf::build_id(&other.program()),
            &mut plenty()
        ));
        assert!(is_linked(&reopened(), &link, None, &mut plenty()));
        assert!(!is_linked(
            &reopened(),
            &link,
            profiler_elf::build_id(&root.program()),
            &mut plenty()
        ));
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let root = Root::new("sha1");
        fs::remove_file(root.path("opt/program.debug")).unwrap();
        fs::create_dir(root.path("opt/program.debug")).unwrap();
        run("mkfifo", &[&root.path("opt/fifo")]);
        assert!(root.find().is_none());
    }

    #[test]
    fn checksums_have_a_share_of_the_time() {
        let root = Root::new("sha1");
        let roots = Roots::in_folders(&[root.dir.path()]);
        let find = |time_budget: &mut TimeBudget| {
            super::find(&root.program(), Path::new("/opt/program"), &roots, time_budget)
        };
        let mut spent = plenty();
        assert!(find(&mut spent).is_some());
        spent.take(Instant::now(), Duration::from_secs(1000));
        assert!(find(&mut spent).is_none());
        // By its build id it is found all the same.
        root.move_debug_file(&root.id_place());
        assert!(find(&mut spent).is_some());
        let file = tempfile::tempfile().unwrap();
        file.set_len(4).unwrap();
        assert_eq!(read_crc(&file, Instant::now()), None);
    }

    #[test]
    fn a_checksum_has_a_limit() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4).unwrap();
        assert_eq!(crc(&file, &mut plenty()), Some(0x2144_df1c));
        // Only a hole, which takes no room on the disk.
        file.set_len(1 << 42).unwrap();
        assert_eq!(crc(&file, &mut plenty()), None);
    }

    #[test]
    fn a_path_that_is_none_leads_nowhere() {
        let root = Root::new("none");
        let roots = Roots::in_folders(&[root.dir.path()]);
        for path in ["", "/", "program", "//anon", "/opt/program (deleted)", "/../opt/program"] {
            let _ = super::find(&root.program(), Path::new(path), &roots, &mut plenty());
        }
        let deleted = Path::new("/opt/program (deleted)");
        assert!(super::find(&root.program(), deleted, &roots, &mut plenty()).is_some());
    }
}
