//! Which package has the debug symbols of a file, where the files are those of Debian or Ubuntu.
//!
//! dpkg has a list of the files of each installed package, a path a line, in `info/PACKAGE.list` or
//! `info/PACKAGE:ARCHITECTURE.list`. The symbols that were stripped are in a package of the same name and
//! `-dbgsym`: <https://wiki.debian.org/AutomaticDebugPackages>. libc has them in `libc6-dbg`.

use std::{
    fs::{self, File},
    io::Read as _,
    path::Path,
    time::{Duration, Instant},
};

use profiler_common::build_id::BuildId;
use rustc_hash::FxHashMap;

use crate::regular_file;

/// Where dpkg has its lists.
pub(crate) const LISTS: &str = "/var/lib/dpkg/info";
/// The most of a list that is read.
const LIST_BYTES: u64 = 16 << 20;
/// The longest that all lists may take, on a slow disk.
const TIME: Duration = Duration::from_millis(500);

/// The packages with the debug symbols of files, by path: of those that a package has brought, and that are
/// what was sampled, as their build ids tell. In a container there may be another file at the same path.
pub(crate) fn find<'a>(
    lists: &Path,
    files: impl Iterator<Item = (&'a str, BuildId)>,
) -> FxHashMap<&'a str, String> {
    // Lists may be older than the move of all programs and libraries to /usr.
    let names = |path: &'a str| {
        let before = path.strip_prefix("/usr").filter(|it| it.starts_with('/'));
        [Some(path), before].into_iter().flatten()
    };
    let mut wanted = FxHashMap::<&[u8], Vec<(&str, BuildId)>>::default();
    for (path, id) in files {
        for name in names(path) {
            wanted.entry(name.as_bytes()).or_default().push((path, id));
        }
    }
    let mut packages = FxHashMap::default();
    let Some(folder) = fs::read_dir(lists).ok().filter(|_| !wanted.is_empty()) else {
        return packages;
    };
    let deadline = Instant::now() + TIME;
    let mut text = Vec::new();
    for entry in folder.flatten() {
        if Instant::now() >= deadline {
            break;
        }
        let name = entry.file_name();
        let Some(list) = name.to_str().and_then(|it| it.strip_suffix(".list")) else { continue };
        let (package, architecture) = list.split_at(list.find(':').unwrap_or(list.len()));
        text.clear();
        let read = File::open(entry.path()).map(|it| it.take(LIST_BYTES).read_to_end(&mut text));
        if !matches!(read, Ok(Ok(_))) {
            continue;
        }
        for line in text.split(|&byte| byte == b'\n') {
            for &(path, id) in wanted.get(line).into_iter().flatten() {
                let symbols = of_symbols(package);
                // It may be there already, and not have a symbol for all of the code.
                let list_of_it = lists.join(format!("{symbols}{architecture}.list"));
                if is_installed(path, id) && !list_of_it.exists() {
                    packages.insert(path, symbols);
                }
            }
        }
    }
    packages
}

/// Whether the file at a path has this build id.
fn is_installed(path: &str, id: BuildId) -> bool {
    regular_file::open(Path::new(path)).is_ok_and(|file| profiler_elf::build_id(&file) == Some(id))
}

fn of_symbols(package: &str) -> String {
    match package {
        "libc6" | "libc-bin" => "libc6-dbg".to_owned(),
        _ => format!("{package}-dbgsym"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_testing::elf::with_build_id;

    fn id(byte: u8) -> BuildId {
        BuildId::from_slice(&[byte]).unwrap()
    }

    #[test]
    fn a_file_is_of_the_package_that_lists_it() {
        let (lists, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| files.path().join(name).to_str().unwrap().to_owned();
        let [library, program, elsewhere, unlisted, whole] =
            ["library", "program", "elsewhere", "unlisted", "whole"].map(path);
        for (file, byte) in
            [(&library, 1), (&program, 2), (&elsewhere, 3), (&unlisted, 4), (&whole, 6)]
        {
            fs::write(file, with_build_id(&[byte])).unwrap();
        }
        let list = |name: &str, text: String| fs::write(lists.path().join(name), text).unwrap();
        list("libsome1:amd64.list", format!("/.\n{library}\n{elsewhere}"));
        list("whole1:amd64.list", format!("{whole}\n"));
        list("whole1-dbgsym:amd64.list", "/.\n".to_owned());
        list("some.list", format!("/.\n{program}\n/gone\n"));
        list("other.list", format!("/.\n{program}.so\n{unlisted}x\n"));
        list("some.md5sums", format!("{unlisted}\n"));
        // What was sampled as `elsewhere` has another build id: it was that of a container.
        let sampled = [
            (&*library, 1),
            (&program, 2),
            (&elsewhere, 9),
            (&unlisted, 4),
            ("/gone", 5),
            (&whole, 6),
        ];
        let found = find(lists.path(), sampled.into_iter().map(|(path, byte)| (path, id(byte))));
        let mut found: Vec<_> = found.iter().map(|(path, package)| (*path, &**package)).collect();
        found.sort_unstable();
        assert_eq!(found, [(&*library, "libsome1-dbgsym"), (&program, "some-dbgsym")]);
    }

    #[test]
    fn a_list_may_have_the_path_before_usr() {
        // Where the test runs, these are two names of one file, or it is skipped.
        let (Ok(shell), Ok(same)) = (File::open("/usr/bin/sh"), File::open("/bin/sh")) else {
            return crate::stderr::say("skipped: there is no /usr/bin/sh");
        };
        let (Some(id), true) = (profiler_elf::build_id(&shell), same.metadata().is_ok()) else {
            return crate::stderr::say("skipped: /usr/bin/sh has no build id");
        };
        let lists = tempfile::tempdir().unwrap();
        fs::write(lists.path().join("dash.list"), "/bin\n/bin/sh\n").unwrap();
        let found = find(lists.path(), [("/usr/bin/sh", id)].into_iter());
        assert_eq!(found["/usr/bin/sh"], "dash-dbgsym");
    }

    #[test]
    fn without_dpkg_there_are_no_packages() {
        let sampled = || [("/usr/bin/sh", id(1))].into_iter();
        assert!(find(Path::new("/nowhere"), sampled()).is_empty());
        assert!(find(tempfile::tempdir().unwrap().path(), sampled()).is_empty());
    }

    #[test]
    fn the_c_library_has_a_name_of_its_own() {
        assert_eq!(of_symbols("libc6"), "libc6-dbg");
        assert_eq!(of_symbols("libssl3"), "libssl3-dbgsym");
    }
}
