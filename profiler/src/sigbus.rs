//! Surviving files that shrink while they are read.
//!
//! Symbols are read through memory maps of files that belong to whoever runs the program. When such
//! a file is truncated, touching a page behind its new end raises SIGBUS, which would end the
//! profiler. A handler puts a page of zeros in its place: the reader finds no symbol there.

use std::{io, ptr};

/// Installs the handler for the whole process.
pub(crate) fn survive() -> io::Result<()> {
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
    // SAFETY: all zeros are a valid `sigaction`: no flags, and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: `action` outlives the call, and the handler calls only what a signal handler may.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn on_sigbus(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid `siginfo_t`, which for SIGBUS has an
    // address. The page is one that a read has just failed on: it belongs to a file's mapping, which
    // stays a mapping, of other content. `mmap` and `sigaction` are plain system calls; errno is
    // restored, since the interrupted code may be about to read it.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let page_bytes = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(4096);
        let page = (*info).si_addr().map_addr(|address| address & !(page_bytes - 1));
        let zeros = if (*info).si_code == libc::BUS_ADRERR {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            libc::mmap(page, page_bytes, libc::PROT_READ, flags, -1, 0)
        } else {
            libc::MAP_FAILED
        };
        if zeros == libc::MAP_FAILED {
            // Not what this is for: the access is repeated and ends the process.
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
        }
        *errno = before;
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    #[test]
    fn a_truncated_file_reads_as_zeros() {
        super::survive().unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        // SAFETY: a new mapping of our own file.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        file.set_len(0).unwrap();
        // SAFETY: the address lies in the mapping, and the handler fills the page.
        let byte = unsafe { at.cast::<u8>().add(4100).read_volatile() };
        assert_eq!(byte, 0);
        // SAFETY: the mapping made above, which nothing refers to.
        unsafe { libc::munmap(at, 8192) };
    }
}
