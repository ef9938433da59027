//! What the shells complete, by the shells themselves.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use profiler::stderr;

/// A condition that does not hold after this time never will.
const LONG: Duration = Duration::from_secs(180);

/// Completes as readline does: by the function that is registered, with the command, the word and the word before it.
const ASK: &str = r#"
    source "$1"; shift
    registered=$(complete -p profiler) || exit 9
    [[ $registered =~ -F\ ([^ ]+) ]] || exit 8
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
    "${BASH_REMATCH[1]}" profiler "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
    printf '%s\n' "${COMPREPLY[@]}"
"#;

fn script(shell: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profiler"));
    let output = command.args(["completions", shell]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What bash completes the last of these words to.
fn completed(words: &[&str]) -> BTreeSet<String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("profiler.bash");
    fs::write(&file, script("bash")).unwrap();
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", ASK, "bash"]).arg(&file).args(words);
    let output = bash.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).filter(|it| !it.is_empty()).collect()
}

/// Whether a shell is there; if not, says so.
fn is_installed(shell: &str) -> bool {
    let is_there = Command::new(shell).arg("--version").stdin(Stdio::null()).output().is_ok();
    if !is_there {
        stderr::say(&format!("skipped: {shell} is not installed"));
    }
    is_there
}

/// A process of this name.
struct Named(Child);

impl Named {
    fn start(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(name);
        fs::copy("/bin/sleep", &program).unwrap();
        let start = Instant::now();
        // While another test forks, the copy is open for writing there.
        let child = loop {
            match Command::new(&program).arg("600").spawn() {
                Ok(child) => break child,
                Err(error) => assert!(start.elapsed() < LONG, "{error}"),
            }
            thread::sleep(Duration::from_millis(10));
        };
        let comm = format!("/proc/{}/comm", child.id());
        while fs::read_to_string(&comm).unwrap().trim_end() != name {
            assert!(start.elapsed() < LONG, "it is not called {name}");
            thread::sleep(Duration::from_millis(10));
        }
        Self(child)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn bash_completes_options_events_and_formats() {
    if !is_installed("bash") {
        return;
    }
    assert_eq!(completed(&["profiler", "rec"]), BTreeSet::from(["record".to_owned()]));
    let events = completed(&["profiler", "record", "-e", "cpu-c"]);
    assert_eq!(events, BTreeSet::from(["cpu-clock", "cpu-cycles"].map(str::to_owned)));
    assert!(completed(&["profiler", "--event", ""]).contains("page-faults"));
    assert_eq!(completed(&["profiler", "-f", "pp"]), BTreeSet::from(["pprof".to_owned()]));
}

#[test]
fn bash_completes_processes() {
    if !is_installed("bash") {
        return;
    }
    let process = Named::start("named-7f3a");
    let hostile = Named::start("a$(reboot);b");
    let pid = process.0.id().to_string();
    for words in [&["profiler", "-p"][..], &["profiler", "record", "-d", "1", "--pid"]] {
        let with = |word| completed(&[words, &[word]].concat());
        let all = with("");
        assert!(all.contains("named-7f3a"), "{all:?}");
        assert!(all.contains(&format!("{pid}  (named-7f3a)")), "{all:?}");
        // What anybody may have called so is not put on the command line.
        assert!(all.contains(&hostile.0.id().to_string()), "{all:?}");
        assert!(!all.iter().any(|it| it.contains("reboot")), "{all:?}");
        // What is not beside others stands by itself.
        assert_eq!(with("named-7"), BTreeSet::from(["named-7f3a".to_owned()]));
    }
    // These are the command's.
    assert!(
        !completed(&["profiler", "record", "--", "kill", "-p", "named"]).contains("named-7f3a")
    );
}

#[test]
fn the_other_shells_take_their_scripts() {
    for shell in ["zsh", "fish"] {
        if is_installed(shell) {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("script");
            fs::write(&file, script(shell)).unwrap();
            let output = Command::new(shell).arg("-n").arg(&file).output().unwrap();
            assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {output:?}");
        }
    }
}
