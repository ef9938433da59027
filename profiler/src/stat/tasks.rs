//! The threads that processes have.

use std::{collections::BTreeSet, fs, io};

use crate::error::{Error, Result};

/// The ids of all threads of these processes, and of these threads. Those of a process that has ended are none.
pub(crate) fn threads(pids: &[u32], tids: &[u32]) -> Result<BTreeSet<u32>> {
    let mut threads: BTreeSet<u32> = tids.iter().copied().collect();
    for pid in pids {
        match of_process(*pid) {
            Ok(found) => threads.extend(found),
            Err(error) if is_gone(&error) => {}
            Err(error) => {
                return Err(Error::system(
                    format!("cannot list the threads of process {pid}"),
                    error,
                ));
            }
        }
    }
    Ok(threads)
}

fn of_process(pid: u32) -> io::Result<Vec<u32>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        threads.extend(entry?.file_name().to_str().and_then(|it| it.parse::<u32>().ok()));
    }
    Ok(threads)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_of_a_process_are_found() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            let _ = ended.recv();
        });
        let (own, other) = (std::process::id(), told.recv().unwrap());
        let found = threads(&[own], &[7]).unwrap();
        assert!([own, other, 7].iter().all(|it| found.contains(it)), "{found:?}");
        drop(end);
        thread.join().unwrap();
        assert_eq!(threads(&[u32::MAX], &[]).unwrap(), BTreeSet::new());
    }
}
