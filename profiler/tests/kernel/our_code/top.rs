//! `top`, as a user at a terminal sees it: tmux is the terminal.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use profiler::stderr;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::{Program, profiler_path, run, wait_until};

/// A terminal with a shell.
struct Terminal {
    dir: TempDir,
}

impl Terminal {
    /// `None`, and the reason printed, where there is no tmux.
    fn open() -> Option<Self> {
        let version = Command::new("tmux").arg("-V").stdin(Stdio::null()).output();
        if !version.is_ok_and(|it| it.status.success()) {
            stderr::say("skipped: tmux is not installed");
            return None;
        }
        let terminal = Self { dir: tempfile::tempdir().unwrap() };
        let shell = "exec env -u NO_COLOR -u SUDO_UID -u SUDO_GID bash --norc";
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", shell]);
        terminal.run("stty -g > before");
        Some(terminal)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(self.path("socket")).args(arguments).current_dir(self.dir.path());
        // Without it tmux draws what is no ASCII as underscores.
        tmux.env_remove("TMUX").env("LC_ALL", "C.UTF-8").env("TERM", "xterm-256color");
        let output = tmux.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Presses keys, by tmux's names of them.
    fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types text as it is.
    fn type_text(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    /// Has the shell run a command to its end.
    fn run(&self, command: &str) {
        let _ = fs::remove_file(self.path("done"));
        self.type_text(&format!("{command}; touch done"));
        self.press(&["Enter"]);
        wait_until(command, || self.path("done").exists());
    }

    /// Starts `top` in the place of a child of the shell, and waits until it shows this.
    fn start(&self, arguments: &str, part: &str) {
        let program = profiler_path().canonicalize().unwrap();
        let program = program.display();
        self.type_text(&format!(
            "sh -c 'echo $$ > pid; exec {program} top {arguments}'; echo $? > code"
        ));
        self.press(&["Enter"]);
        self.wait_for(part);
    }

    fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn wait_for(&self, part: &str) {
        let mut last = String::new();
        let path = self.path("last");
        wait_until(&format!("the screen shows {part:?} (see {})", path.display()), || {
            last = self.text();
            let _ = fs::write(&path, &last);
            last.contains(part)
        });
    }

    /// Whether what a full screen sets is set: the other screen, no cursor, the mouse.
    fn is_taken(&self) -> bool {
        let flags = self.tmux(&["display-message", "-p", "#{alternate_on}#{mouse_any_flag}"]);
        flags.trim() != "00"
    }

    /// The exit code, when the terminal is the shell's again, as it was.
    fn left(&self) -> String {
        let code = self.path("code");
        wait_until("it has ended", || fs::read_to_string(&code).is_ok_and(|it| it.ends_with('\n')));
        self.run("stty -g > after");
        let [before, after] =
            ["before", "after"].map(|it| fs::read_to_string(self.path(it)).unwrap());
        assert_eq!(before, after, "{}", self.text());
        assert!(!self.is_taken(), "{}", self.text());
        let cursor = self.tmux(&["display-message", "-p", "#{cursor_flag}"]);
        assert_eq!(cursor.trim(), "1");
        fs::read_to_string(code).unwrap().trim().to_owned()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut tmux = Command::new("tmux");
        let _ = tmux.arg("-S").arg(self.path("socket")).arg("kill-server").output();
    }
}

/// The row behind the titles.
fn first_row(text: &str) -> &str {
    let mut lines = text.lines().skip_while(|it| !it.contains("SELF"));
    lines.nth(1).unwrap_or_default()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_hottest_function_is_first_with_its_callers_and_can_be_saved() {
    let Some(terminal) = Terminal::open() else { return };
    let program = Program::start("chain.c");
    terminal.start(&format!("-F 199 -p {}", program.pid()), "inner");
    wait_until("the hottest function is first", || first_row(&terminal.text()).contains("inner"));
    terminal.press(&["Enter"]);
    terminal.wait_for("▶ inner");
    let text = terminal.text();
    let (callers, callees) = text.split_once("▶ inner").unwrap();
    assert!(callers.contains("middle") && !callees.contains("middle"), "{text}");
    // By process, as `record` has it.
    terminal.press(&["4"]);
    terminal.wait_for("outer");
    // Smaller than it can be, and large again.
    terminal.tmux(&["resize-window", "-x", "50", "-y", "10"]);
    terminal.wait_for("needs at least 60×12");
    terminal.tmux(&["resize-window", "-x", "120", "-y", "40"]);
    terminal.wait_for("outer");

    terminal.press(&["s", "C-u"]);
    terminal.type_text("saved.pb.gz");
    terminal.press(&["Enter"]);
    terminal.wait_for("wrote saved.pb.gz");
    terminal.press(&["q"]);
    assert_eq!(terminal.left(), "0");
    terminal.wait_for("delivered");
    let report = run(&["report", terminal.path("saved.pb.gz").to_str().unwrap()]);
    let report = String::from_utf8(report.stdout).unwrap();
    assert!(first_row(&report).contains("inner"), "{report}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_signal_leaves_the_terminal_as_it_was() {
    let Some(terminal) = Terminal::open() else { return };
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        let _ = fs::remove_file(terminal.path("code"));
        terminal.start("", "functions");
        assert!(terminal.is_taken());
        kill_process(pid(&terminal.path("pid")), signal).unwrap();
        assert_eq!(terminal.left(), "0", "{signal:?}");
        terminal.wait_for("delivered");
        terminal.run("clear");
    }
}

fn pid(path: &Path) -> Pid {
    Pid::from_raw(fs::read_to_string(path).unwrap().trim().parse().unwrap()).unwrap()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn it_is_suspended_and_goes_on() {
    let Some(terminal) = Terminal::open() else { return };
    terminal.start("", "functions");
    terminal.press(&["C-z"]);
    wait_until("the shell has the terminal", || !terminal.is_taken());
    terminal.wait_for("Stopped");
    terminal.type_text("fg");
    terminal.press(&["Enter"]);
    wait_until("it has the terminal again", || terminal.is_taken());
    terminal.wait_for("functions");
    terminal.press(&["C-c"]);
    wait_until("the shell has the terminal", || !terminal.is_taken());
    terminal.wait_for("delivered");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn where_there_is_no_screen_it_names_what_else_there_is() {
    let output = run(&["top"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("not a terminal") && said.contains("profiler record"), "{said}");
    assert_eq!(output.status.code(), Some(2));
    let Some(terminal) = Terminal::open() else { return };
    terminal.type_text("export TERM=dumb");
    terminal.press(&["Enter"]);
    terminal.start("", "TERM=dumb can't");
    assert_eq!(terminal.left(), "2");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_storm_of_processes_is_shown_by_who_begins_it() {
    let Some(terminal) = Terminal::open() else { return };
    let script = terminal.path("storm.sh");
    fs::write(&script, "#!/bin/sh\nwhile :; do expr 17 + 4 > /dev/null; done\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut storm = Command::new(&script).spawn().unwrap();
    terminal.start("", "functions");
    terminal.press(&["6"]);
    terminal.wait_for("expr ← storm.sh");
    // By who has begun them, however short they lived.
    terminal.press(&["f"]);
    terminal.type_text(&format!("pid {}", storm.id()));
    terminal.press(&["Enter", "6"]);
    terminal.wait_for("expr ← storm.sh");
    terminal.wait_for("spawns ");
    terminal.press(&["q"]);
    assert_eq!(terminal.left(), "0");
    storm.kill().unwrap();
    storm.wait().unwrap();
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_command_is_shown_its_output_is_not_and_its_exit_code_is_ours() {
    let Some(terminal) = Terminal::open() else { return };
    // It can't write to the terminal.
    let forever = "echo said > /dev/tty || echo alone; while :; do expr 17 + 4; done > /dev/null";
    terminal.start(&format!("-- sh -c \"{forever}\""), "functions");
    terminal.press(&["L"]);
    terminal.wait_for("alone");
    // Its children are known without -p.
    terminal.press(&["x", "6"]);
    terminal.wait_for("← sh");
    terminal.press(&["q"]);
    // It is ended, too.
    assert_eq!(terminal.left(), "143");

    fs::remove_file(terminal.path("code")).unwrap();
    terminal.run("clear");
    terminal.start("-- sh -c \"echo said again; exit 7\"", "has ended");
    assert!(terminal.is_taken() && terminal.text().contains("PAUSED"), "{}", terminal.text());
    terminal.press(&["q"]);
    assert_eq!(terminal.left(), "7");
    terminal.wait_for("said again");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn what_is_saved_under_sudo_is_where_the_user_may_write_and_theirs() {
    const USER: u32 = 54_321;
    let Some(terminal) = Terminal::open() else { return };
    let (theirs, ours) = (terminal.path("theirs"), terminal.path("ours"));
    for folder in [&theirs, &ours] {
        fs::create_dir(folder).unwrap();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
    }
    fs::set_permissions(terminal.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&theirs, Some(USER), Some(USER)).unwrap();
    terminal.run(&format!("export SUDO_UID={USER} SUDO_GID={USER} SUDO_USER=none"));
    terminal.start("", "functions");
    for (file, said) in
        [("theirs/a.folded", "wrote theirs/a"), ("ours/a.folded", "ermission denied")]
    {
        terminal.press(&["s", "C-u"]);
        terminal.type_text(file);
        terminal.press(&["Enter"]);
        terminal.wait_for(said);
    }
    // None of its threads could write there.
    let status = format!("/proc/{}/task", fs::read_to_string(terminal.path("pid")).unwrap().trim());
    for task in fs::read_dir(status).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let permitted = status.lines().find_map(|it| it.strip_prefix("CapPrm:")).unwrap();
        let permitted = u64::from_str_radix(permitted.trim(), 16).unwrap();
        // CAP_CHOWN, CAP_DAC_OVERRIDE and CAP_FOWNER.
        assert_eq!(permitted & 0b1011, 0, "{status}");
    }
    terminal.press(&["q"]);
    assert_eq!(terminal.left(), "0");
    let saved = theirs.join("a.folded").metadata().unwrap();
    assert_eq!((saved.uid(), saved.gid(), saved.mode() & 0o777), (USER, USER, 0o600));
    assert_eq!(
        (fs::read_dir(theirs).unwrap().count(), fs::read_dir(ours).unwrap().count()),
        (1, 0)
    );
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_terminal_that_tells_no_size_is_drawn_on() {
    let Some(terminal) = Terminal::open() else { return };
    terminal.run("stty cols 0 rows 0");
    terminal.run("stty -g > before");
    terminal.start("", "functions");
    terminal.press(&["q"]);
    assert_eq!(terminal.left(), "0");
}
