//! A page that is shown in a browser, served by a process of its own.
//!
//! The agent reads other people's files and has dropped the right to become another user, so it neither listens nor
//! starts a browser. That is done by our own program, executed again before the run as the user who typed sudo. It
//! waits for the page, has no capabilities, and ends with the agent.

mod browser;
mod login;
pub(crate) mod peer;
mod request;
pub(crate) mod secret;
mod server;

use std::{
    ffi::OsStr,
    io::{self, BufRead as _, BufReader, Read as _, Write as _, stdin, stdout},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio, exit},
    thread,
};

use rustix::{process::geteuid, thread::set_no_new_privs};
use tokio::{runtime, sync::oneshot};

use self::{browser::Screen, server::Server};
use crate::{
    error::{Error, Result},
    hardening::capabilities,
    invoker::Invoker,
    shutdown::Signals,
    stderr,
};

/// The arguments that make our program the one that serves, and one that opens an address.
const ARGUMENT: &str = "--serve-when-told";
const OPEN_ARGUMENT: &str = "--open-address";
/// A page larger than this no browser shows.
const PAGE_BYTES: u64 = 1 << 30;
/// How much of what the process says is read.
const SAID_BYTES: u64 = 64 << 10;

/// The process that will serve a page.
#[derive(Debug)]
pub struct Viewer {
    child: Child,
    /// It ends when this is closed.
    page: ChildStdin,
    /// What it has to say to the user.
    said: ChildStdout,
}

impl Viewer {
    /// Starts the process as this user, who typed sudo; without one as who we are, or nobody where we are root. For
    /// root no browser is started.
    ///
    /// # Errors
    ///
    /// The process can't be started.
    pub fn prepare(user: Option<&Invoker>) -> Result<Self> {
        let failed = |error: io::Error| Error::system("cannot start a process", error);
        let nobody = geteuid().is_root().then(Invoker::nobody);
        let mut command = Command::new("/proc/self/exe");
        command.arg(ARGUMENT).arg(Invoker::argument_of(user.or(nobody.as_ref())));
        // Ctrl-C is for us, and a browser outlives it.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (page, said) = pipes.ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { child, page, said })
    }

    /// Shows the page until a signal comes that ends a run.
    ///
    /// # Errors
    ///
    /// The process has ended early; it has said why.
    pub fn show(self, page: &[u8]) -> Result<()> {
        let failed = |why: &dyn std::fmt::Display| Error::system("cannot show the profile", why);
        let Self { mut child, page: mut pipe, said } = self;
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        let mut signals = {
            let _context = runtime.enter();
            Signals::listen()?
        };
        let length = (page.len() as u64).to_le_bytes();
        let handed = pipe.write_all(&length).and_then(|()| pipe.write_all(page));
        handed.map_err(|error| failed(&error))?;
        let (is_gone, gone) = oneshot::channel();
        let pass_on = move || {
            let lines = BufReader::new(said.take(SAID_BYTES)).lines();
            lines.map_while(Result::ok).for_each(|line| stderr::say(&line));
            // Nobody waits for it any more at the end.
            let _ = is_gone.send(());
        };
        thread::Builder::new().spawn(pass_on).map_err(|error| failed(&error))?;
        let shown = runtime.block_on(async {
            tokio::select! {
                _ = signals.next() => Ok(()),
                _ = gone => Err(failed(&"its process has ended")),
            }
        });
        drop(pipe);
        let _ = child.wait();
        shown
    }
}

/// Where an address is that this program serves itself, for the user.
pub(crate) fn told(address: &str, port: u16, user: Option<&Invoker>) -> String {
    let is_nobody = user.is_none() && geteuid().is_root();
    let machine = rustix::system::uname();
    let machine = machine.nodename().to_string_lossy();
    Screen::find(is_nobody, &machine, login::variable).tell(address, port)
}

/// Opens an address in the browser of this user, or of who we are, if they sit at this machine. As root nobody's. What
/// does it is our own program, executed again, and does not wait for the browser.
pub(crate) fn open_address(address: &str, user: Option<&Invoker>) -> Result<()> {
    let failed = |error: io::Error| Error::system("cannot start a process", error);
    let nobody = geteuid().is_root().then(Invoker::nobody);
    let mut command = Command::new("/proc/self/exe");
    command.arg(OPEN_ARGUMENT).arg(Invoker::argument_of(user.or(nobody.as_ref()))).arg(address);
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
    command.status().map(drop).map_err(failed)
}

/// If this program was started to serve a page, waits for that, and does; if to open an address, opens it. Otherwise
/// does nothing.
pub fn run_if_requested() {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().unwrap_or_default();
    let user = arguments.next().unwrap_or_default();
    let done = if first == ARGUMENT {
        serve(&user)
    } else if first == OPEN_ARGUMENT {
        open(&user, &arguments.next().unwrap_or_default().to_string_lossy())
    } else {
        return;
    };
    if let Err(error) = &done {
        stderr::say(&error.to_string());
    }
    exit(i32::from(done.is_err()));
}

/// Becomes the user, and opens an address if they sit here.
fn open(user: &OsStr, address: &str) -> Result<()> {
    let failed = |what: &'static str| move |error: io::Error| Error::system(what, error);
    let user = Invoker::become_named(user).map_err(failed("cannot become another user"))?;
    capabilities::give_up().map_err(|error| failed("cannot drop capabilities")(error.into()))?;
    let is_nobody = user.as_ref().is_some_and(Invoker::is_nobody);
    if Screen::find(is_nobody, "", login::variable) == Screen::Here {
        browser::open(address, user.as_ref())
            .map_err(failed("no browser was started: xdg-open"))?;
    }
    Ok(())
}

/// Serves the page that comes on standard input, until that is closed.
fn serve(user: &OsStr) -> Result<()> {
    let failed = |what: &'static str| move |error: io::Error| Error::system(what, error);
    let user = Invoker::become_named(user).map_err(failed("cannot become another user"))?;
    capabilities::give_up().map_err(|error| failed("cannot drop capabilities")(error.into()))?;
    // Closed: there is nothing to show.
    let Some(page) = page_of(&mut stdin()) else { return Ok(()) };
    let is_nobody = user.as_ref().is_some_and(Invoker::is_nobody);
    // Nobody has a browser: then whoever was told the address may see the page.
    let only = (!is_nobody).then(|| geteuid().as_raw());
    let server = Server::bind(page, only).map_err(failed("cannot listen on 127.0.0.1"))?;
    let machine = rustix::system::uname();
    let screen = Screen::find(is_nobody, &machine.nodename().to_string_lossy(), login::variable);
    say(&screen.tell(&server.address(), server.port()));
    if screen == Screen::Here
        && let Err(error) = server.ticket().and_then(|it| browser::open(&it, user.as_ref()))
    {
        say(&format!("no browser was started: xdg-open: {error}"));
    }
    // A browser may need more: some have programs that are set-user-ID.
    set_no_new_privs(true).map_err(|error| failed("PR_SET_NO_NEW_PRIVS")(error.into()))?;
    thread::Builder::new().spawn(move || server.run()).map_err(failed("cannot start a thread"))?;
    // Nothing comes any more until it is closed.
    let _ = stdin().read(&mut [0]);
    Ok(())
}

/// A page, behind its length.
fn page_of(from: &mut dyn io::Read) -> Option<Vec<u8>> {
    let mut length = [0; 8];
    from.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    let mut page = Vec::new();
    from.take(length.min(PAGE_BYTES)).read_to_end(&mut page).ok()?;
    (page.len() as u64 == length).then_some(page)
}

/// Has the agent tell the user.
fn say(text: &str) {
    let _ = stdout().write_all(format!("{text}\n").as_bytes()).and_then(|()| stdout().flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_or_none() {
        let sent = |length: u64, page: &[u8]| [&length.to_le_bytes()[..], page].concat();
        assert_eq!(page_of(&mut &*sent(3, b"abc")), Some(b"abc".to_vec()));
        // What follows is not read.
        assert_eq!(page_of(&mut &*sent(2, b"abc")), Some(b"ab".to_vec()));
        for bad in [&sent(4, b"abc")[..], &sent(u64::MAX, b"abc"), b"", b"abc"] {
            assert_eq!(page_of(&mut &*bad), None, "{bad:?}");
        }
    }
}
