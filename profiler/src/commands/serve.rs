//! `serve`: what is hot now, in a browser.

use std::time::Duration;

use profiler_profile::live::{Live, Window};
use rustix::process::geteuid;

use super::session::Session;
use crate::{
    cli::ServeArgs,
    error::{Error, Result},
    invoker::Invoker,
    kernel, serve, stderr, viewer,
};

/// For how long what was sampled can be shown by ranges of time.
const KEPT: Duration = Duration::from_secs(15 * 60);

/// Samples and serves that until a signal ends it, and prints the ledger.
pub(super) fn run(args: &ServeArgs, verbose: u8) -> Result<()> {
    let invoker = Invoker::find();
    let mut session = Session::prepare(&args.sampling, Vec::new(), verbose)?;
    // The command lines of processes are shown.
    session.config.process.metadata = true;
    let output = &mut session.config.worker.output;
    let length = KEPT.max(args.window);
    let live = Live::new(Window::new(length, output.profile_bytes, kernel::monotonic_ns()));
    output.live = Some(live.clone());
    let own = geteuid();
    let user = invoker.as_ref().map(Invoker::uid).or((!own.is_root()).then(|| own.as_raw()));
    let listen = serve::Listen { at: args.listen, allow_remote: args.allow_remote, user };
    let mut page = serve::Prepared::bind(listen, live, args.window)?;
    if args.sampling.lines {
        page.show_lines(invoker.as_ref())?;
    }
    let address = page.address();
    if page.is_remote() {
        stderr::say(&format!("the profile is at {address} until Ctrl-C"));
        stderr::notice("whoever can listen in on the network can see it, and the token");
    } else {
        stderr::say(&viewer::told(&address, page.port(), invoker.as_ref()));
    }
    if args.open {
        let failed = |error| Error::system("cannot read /dev/urandom", error);
        viewer::open_address(&page.ticket().map_err(failed)?, invoker.as_ref())?;
    }
    session.page = Some(page);
    session.run(Vec::new(), None, |_, _| Ok(()))
}
