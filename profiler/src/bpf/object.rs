//! A loader for the eBPF object, without what this object does not need.

use std::{collections::BTreeMap, thread};

use aya::EbpfLoader;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// A loader that knows nothing of the kernel's types.
///
/// aya's reads and parses `/sys/kernel/btf/vmlinux`, some megabytes, as it is made, and can only be told
/// afterwards that nobody wants that. Programs in Rust have no relocations against the kernel's types. So it is
/// made by a thread that can open no files, and ends with that. Where there are no such filters it is only slower.
pub(super) fn loader() -> EbpfLoader<'static> {
    let thread = thread::Builder::new().name("loader".into()).spawn(|| {
        let _ = no_files().map(|filter| apply_filter(&filter));
        EbpfLoader::new()
    });
    let made = thread.ok().and_then(|thread| thread.join().ok());
    made.unwrap_or_default()
}

fn no_files() -> Result<BpfProgram, seccompiler::BackendError> {
    let calls = BTreeMap::from([(libc::SYS_openat, Vec::new())]);
    let refuse = SeccompAction::Errno(libc::ENOENT.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(calls, SeccompAction::Allow, refuse, arch)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn a_thread_that_may_open_no_files_opens_none() {
        let is_open = thread::spawn(|| {
            apply_filter(&no_files().unwrap()).unwrap();
            File::open("/proc/self/stat").map(drop).map_err(|error| error.raw_os_error())
        });
        assert_eq!(is_open.join().unwrap(), Err(Some(libc::ENOENT)));
    }

    #[test]
    fn the_kernels_types_are_not_read() {
        let has_none =
            |it: &EbpfLoader<'_>| format!("{it:?}").starts_with("EbpfLoader { btf: None,");
        assert!(has_none(&loader()));
        // Another one reads them, where there are any: else this would show nothing.
        if fs::exists("/sys/kernel/btf/vmlinux").unwrap() {
            assert!(!has_none(&EbpfLoader::new()));
        }
        // It was the thread's filter, and ended with it.
        assert!(File::open("/proc/self/stat").is_ok());
    }
}
