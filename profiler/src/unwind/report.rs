//! `profiler unwind-info`: has a parser process report what a file says of its frames.

use std::{path::Path, sync::Arc, time::Duration};

use profiler_unwind::{NoTable, report::Unreported};

use crate::{
    error::{self, Error},
    parser::{Budget, Parser},
    realtime::Role,
    regular_file::{self, Refusal},
};

/// What a report may take. Nothing waits for it but who has asked.
const BUDGET: Budget = Budget { cpu: Duration::from_secs(60), wall: Duration::from_secs(180) };

/// The report of a file, or of the rule at an address in it. A parser process makes it: anybody may have
/// written the file.
pub fn of(path: &Path, at: Option<u64>) -> error::Result<String> {
    let what = || format!("cannot read {}", path.display());
    let file = regular_file::open(path).map_err(|refusal| match refusal {
        Refusal::Special => Error::system(what(), "not a regular file"),
        Refusal::Leased => Error::system_with(
            what(),
            "its owner holds a lease on it (F_SETLEASE)",
            "try again in a minute",
        ),
        Refusal::Failed(error) => Error::system(what(), error),
    })?;
    let mut parser = Parser::start(Arc::default(), BUDGET, Role::Tables);
    let answer = parser.report(&file, &path.display().to_string(), at);
    let answer = answer.map_err(|why| Error::system(what(), why))?;
    answer.map_err(|why| match why {
        Unreported::NoTable(why) => {
            Error::system_with(format!("{} has no table", path.display()), why, hint(why))
        }
        Unreported::NoCode(address) => {
            let what = format!("{} has no code at {address:#x}", path.display());
            Error::system_with(what, "no rule is there", "addresses are those of objdump -d")
        }
    })
}

fn hint(why: NoTable) -> &'static str {
    match why {
        NoTable::NoInfo => {
            "its stacks are walked by frame pointers; compile with -fasynchronous-unwind-tables, or \
             with -fno-omit-frame-pointer"
        }
        NoTable::NotElf | NoTable::Unreadable => "give a program or a shared library",
        NoTable::NotLinked => {
            "give the program or library that it goes into; the kernel walks its own stacks without tables"
        }
        NoTable::Compressed => "objcopy --decompress-debug-sections makes a file that has one",
        NoTable::Bits32
        | NoTable::Machine
        | NoTable::Changed
        | NoTable::Made
        | NoTable::TooLarge
        | NoTable::Barred => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_this_program() {
        let program = std::env::current_exe().unwrap();
        let text = of(&program, None).unwrap();
        for part in ["machine     ", "found in    .eh_frame", "CFA by sp", "in the table"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(text.lines().all(|line| line.trim_end() == line), "{text}");
    }

    #[test]
    fn says_why_there_is_no_table() {
        let path = Path::new("/proc/self/exe");
        let error = of(path, Some(u64::MAX)).unwrap_err();
        assert!(error.to_string().contains("no code at 0xffffffffffffffff"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = of(file.path(), None).unwrap_err();
        assert!(error.to_string().contains("not an ELF file"), "{error}");
        assert_eq!(error.exit_code(), 1);
        let error = of(Path::new("/dev/null"), None).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }

    #[test]
    fn what_a_sparse_file_claims_is_not_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        profiler_testing::elf::sparse_with_symbols(file.as_file(), 4 << 40);
        let error = of(file.path(), None).unwrap_err();
        assert!(error.to_string().contains("claims more than it has on disk"), "{error}");
    }
}
