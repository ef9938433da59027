//! The threads that processes have.

use std::collections::BTreeSet;

use crate::{
    error::{Error, Result},
    kernel, procfs,
};

/// The ids of all threads of these processes, and of these threads. Those of a process that has ended are none.
pub(crate) fn threads(pids: &[u32], tids: &[u32]) -> Result<BTreeSet<u32>> {
    let mut threads: BTreeSet<u32> = tids.iter().copied().collect();
    if !pids.is_empty() && !kernel::has_proc() {
        let why = "there is no /proc: mount -t proc proc /proc";
        return Err(Error::system("cannot list the threads of a process", why));
    }
    for pid in pids {
        let found = procfs::list_threads(*pid).map_err(|error| {
            Error::system(format!("cannot list the threads of process {pid}"), error)
        })?;
        threads.extend(found);
    }
    Ok(threads)
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
