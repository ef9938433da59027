//! What a run needs before it begins, and gives up.

use std::sync::Arc;

use crate::{
    bpf::{config::Tables, unwind::UnwindMaps},
    config::Config,
    error::{Error, Result},
    hardening::{self, Connections, Threads, capabilities},
    kernel,
    parser::Bars,
    process::interpreters::Interpreters,
    realtime, sigbus, stderr,
    unwind::loader::Loader,
};

/// Starts the thread that puts into the kernel what its walk of user stacks needs, if it walks by tables.
pub(super) fn start_loader(
    config: &Config,
    maps: Option<UnwindMaps>,
    bars: &Arc<Bars>,
    interpreters: Arc<Interpreters>,
) -> Result<Option<Arc<Loader>>> {
    let interpreters = config.worker.names.python.merges().then_some(interpreters);
    let start = |(maps, tables): (_, Tables)| {
        Loader::start(maps, tables.memory, Arc::clone(bars), interpreters).map(Arc::new)
    };
    maps.zip(config.program.user_walk.tables()).map(start).transpose()
}

/// Raises the limits that a run needs, and gives up what it does not need beyond that.
pub(super) fn settle_limits(config: &Config) -> Result<()> {
    if config.realtime {
        realtime::allow()
            .map_err(|error| Error::system("cannot bound real-time priority", error))?;
    }
    kernel::fail_beyond_file_limit();
    sigbus::survive().map_err(|error| Error::system("cannot catch SIGBUS", error))?;
    // Rings count against it, too; where it can't be raised, loading says what that means.
    let _ = kernel::raise_memlock();
    // Before the first thread starts, which has what this one has.
    capabilities::drop_unneeded(config.realtime, config.set_aside)
}

/// Filters those of all threads, or says why not. Whether connections may be accepted.
pub(super) fn filter_system_calls(is_served: bool) {
    let connections = if is_served { Connections::Accepted } else { Connections::Refused };
    if let Err(error) = hardening::filter_system_calls(Threads::All, connections) {
        let what = "system calls are not filtered";
        stderr::notice(&format!("{what}: {error}; that needs a kernel with CONFIG_SECCOMP_FILTER"));
    }
}
