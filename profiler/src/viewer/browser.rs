//! Where a browser can be: here, or on the machine that the user sits at.

use std::{
    io,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
};

use rustix::process::geteuid;

use super::login;
use crate::invoker::Invoker;

/// What a browser needs to reach the user's screen and session.
const OF_SESSION: [&str; 4] =
    ["DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "DBUS_SESSION_BUS_ADDRESS"];

/// Where the page can be looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Screen {
    /// On this machine, in a browser that is started.
    Here,
    /// On this machine, by whoever types the address.
    Typed,
    /// On another machine, by way of ssh to this one: these are its arguments.
    ByShell(String),
}

impl Screen {
    /// What the environment says. Nobody starts no browser.
    pub(super) fn find(
        is_nobody: bool,
        machine: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Self {
        // The addresses and ports of the client and of this machine: ssh(1).
        let connection = variable("SSH_CONNECTION");
        let has_display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|it| variable(it).is_some());
        if connection.is_none() && has_display {
            return if is_nobody { Self::Typed } else { Self::Here };
        }
        let words: Vec<&str> = connection.iter().flat_map(|it| it.split(' ')).collect();
        let (host, port) = match words.as_slice() {
            [_, _, host, port] => (*host, *port),
            _ => (machine, "22"),
        };
        let user = variable("SUDO_USER").or_else(|| variable("USER"));
        let login = user.map_or_else(|| host.to_owned(), |user| format!("{user}@{host}"));
        Self::ByShell(if port == "22" { login } else { format!("-p {port} {login}") })
    }

    /// What the user has to know.
    pub(super) fn tell(&self, address: &str, port: u16) -> String {
        let what = format!("the profile is at {address} until Ctrl-C");
        match self {
            Self::Here => what,
            Self::Typed => format!("{what}: open it in a browser"),
            Self::ByShell(login) => format!(
                "{what}; to see it on another machine, type there: ssh -N -L {port}:127.0.0.1:{port} {login}"
            ),
        }
    }
}

/// Starts the browser that this user has chosen, with what a session of theirs needs that sudo has left out.
pub(super) fn open(address: &str, user: Option<&Invoker>) -> io::Result<()> {
    let mut command = Command::new("xdg-open");
    command.arg(address).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.envs(user.into_iter().flat_map(Invoker::environment));
    command.envs(OF_SESSION.iter().filter_map(|name| Some((name, login::variable(name)?))));
    let runtime = PathBuf::from(format!("/run/user/{}", geteuid().as_raw()));
    if user.is_some() && runtime.is_dir() {
        command.env("XDG_RUNTIME_DIR", runtime);
    }
    let mut child = command.spawn()?;
    // Whoever has ended is taken note of.
    thread::Builder::new().spawn(move || child.wait()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn screen(is_nobody: bool, variables: &[(&str, &str)]) -> Screen {
        let value = |name: &str| variables.iter().find(|(it, _)| *it == name);
        Screen::find(is_nobody, "box", |name| value(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_browser_is_started_where_the_user_sits() {
        for display in ["DISPLAY", "WAYLAND_DISPLAY"] {
            assert_eq!(screen(false, &[(display, ":0")]), Screen::Here);
            assert_eq!(screen(true, &[(display, ":0")]), Screen::Typed);
        }
        let by = |login: &str| Screen::ByShell(login.into());
        assert_eq!(screen(false, &[]), by("box"));
        assert_eq!(screen(false, &[("USER", "root"), ("SUDO_USER", "ann")]), by("ann@box"));
        // Also where windows would be shown there.
        let of_ssh = |connection| {
            screen(false, &[("DISPLAY", ":10"), ("SSH_CONNECTION", connection), ("USER", "ann")])
        };
        assert_eq!(of_ssh("10.0.0.9 50000 10.0.0.1 22"), by("ann@10.0.0.1"));
        assert_eq!(of_ssh("fe80::9 50000 fe80::1 2222"), by("-p 2222 ann@fe80::1"));
        assert_eq!(of_ssh("?"), by("ann@box"));
    }

    #[test]
    fn the_way_to_another_machine_is_told() {
        let told = Screen::ByShell("ann@box".into()).tell("http://127.0.0.1:81/x", 81);
        assert!(told.contains(" http://127.0.0.1:81/x "), "{told}");
        assert!(told.ends_with(" ssh -N -L 81:127.0.0.1:81 ann@box"), "{told}");
    }
}
