//! What the agent gives up once it runs: it reads other people's files and memory, and a bug in that must not hand
//! over the machine.
//!
//! There are two layers. [Capabilities](capabilities) are dropped before any thread starts, except those that naming
//! and later events need. The [filter](filter) refuses system calls that a running agent never makes. It also limits
//! what the remaining capabilities can be used for: CAP_SYS_PTRACE, for example, would allow tracing any process.

pub(crate) mod capabilities;
mod filter;

use std::thread;

use rustix::thread::{CapabilitySet, SecureComputingMode, no_new_privs, secure_computing_mode};

pub(crate) use filter::{Connections, Threads, apply as filter_system_calls};

use crate::error::{Error, Result};

/// What holds for a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hardening {
    /// Names of the capabilities in its effective set.
    pub(crate) capabilities: Vec<&'static str>,
    /// Whether exec can't give it more than it has.
    pub(crate) no_new_privs: bool,
    /// Whether its system calls are filtered.
    pub(crate) is_filtered: bool,
}

/// Hardens a thread that ends at once, as a run hardens all of its own, and asks the kernel what holds there.
/// Changes nothing for the caller.
pub(crate) fn probe() -> Result<Hardening> {
    let probe = || {
        capabilities::drop_unneeded(true, CapabilitySet::empty())?;
        // Why it was refused is of no interest here: what holds is asked for.
        let _ = filter_system_calls(Threads::This, Connections::Refused);
        Ok(Hardening {
            capabilities: capabilities::names(capabilities::effective()),
            no_new_privs: no_new_privs().unwrap_or(false),
            is_filtered: matches!(secure_computing_mode(), Ok(SecureComputingMode::Filter)),
        })
    };
    let thread = thread::Builder::new().name("probe".into()).spawn(probe);
    let thread = thread.map_err(|error| Error::system("cannot start a thread", error))?;
    thread.join().unwrap_or_else(|_| Err(Error::system("the probing thread ended", "a defect")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_hardens_its_own_thread_only() {
        let before = (capabilities::effective(), no_new_privs().unwrap());
        let found = probe().unwrap();
        assert!(found.no_new_privs && found.is_filtered, "{found:?}");
        let kept = capabilities::names(capabilities::kept(
            before.0,
            true,
            capabilities::events_need_sys_admin(),
        ));
        assert_eq!(found.capabilities, kept);
        assert_eq!((capabilities::effective(), no_new_privs().unwrap()), before);
        assert!(matches!(secure_computing_mode(), Ok(SecureComputingMode::Disabled)));
    }
}
