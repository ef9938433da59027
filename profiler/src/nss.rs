//! Names of hosts in a program that is linked statically.
//!
//! glibc reads `/etc/nsswitch.conf` and loads a library for each way of looking a name up that is
//! not in itself, as `resolve` or `mdns4_minimal`, and with it the machine's own glibc: a second one,
//! of a version that need not agree with the one inside.

/// Looks names of hosts up in `/etc/hosts` and by DNS only, which are inside since glibc 2.34. To be
/// called before the first lookup.
pub(crate) fn stay_inside() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    // SAFETY: declared in glibc's <nss.h>; both are C strings that live for ever, and it takes a lock.
    unsafe {
        __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr());
    }
}

#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
unsafe extern "C" {
    fn __nss_configure_lookup(
        database: *const std::ffi::c_char,
        ways: *const std::ffi::c_char,
    ) -> std::ffi::c_int;
}
