//! Real interpreters: what is read from outside is what they say themselves.
//!
//! Those of the machine are asked: Debian's, those of pyenv, and those that `PROFILER_TEST_PYTHONS` lists, with
//! colons between.

#![allow(clippy::indexing_slicing, clippy::panic, clippy::print_stderr, clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    io::{BufRead as _, BufReader, ErrorKind},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
};

use profiler_python::{
    code,
    code::Unnamed,
    image::{Image, Loaded},
    memory::{Fault, Memory},
    slot::{self, NoSlot},
};
use serde_json::Value;

/// `/proc/PID/mem`
struct Mem(File);

impl Memory for Mem {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.0.read_exact_at(into, address).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Fault::Gone,
            _ => Fault::Unmapped,
        })
    }
}

impl Mem {
    fn word(&self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }
}

/// An interpreter that runs `truth.py`.
struct Python {
    child: Child,
    _stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Python {
    fn start(command: &Path) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth.py");
        let mut child = Command::new(command)
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, _stdin: stdin, stdout: BufReader::new(stdout) }
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "it has ended");
        serde_json::from_str(&line).unwrap()
    }

    fn memory(&self) -> Mem {
        Mem(File::open(format!("/proc/{}/mem", self.child.id())).unwrap())
    }

    /// The interpreter among what it has mapped.
    fn loaded(&self) -> Loaded {
        let pid = self.child.id();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let code = maps.lines().filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let (range, rights, offset) = (fields.next()?, fields.next()?, fields.next()?);
            let path = fields.nth(2).filter(|it| it.starts_with('/') && rights.contains('x'))?;
            let start = u64::from_str_radix(range.split('-').next()?, 16).ok()?;
            Some((path, start, u64::from_str_radix(offset, 16).ok()?))
        });
        let mut found = Vec::new();
        for (path, start, offset) in code {
            if let Some(image) = Image::of_file(&File::open(path).unwrap()).unwrap() {
                found.push(image.loaded_at(start, offset).unwrap());
            }
        }
        assert_eq!(found.len(), 1, "one file is the interpreter");
        found.pop().unwrap()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

/// One of each version and each kind of file.
fn pythons() -> Vec<PathBuf> {
    let mut all = Vec::new();
    let listed = env::var_os("PROFILER_TEST_PYTHONS").unwrap_or_default();
    all.extend(env::split_paths(&listed));
    all.extend((8..=30).map(|minor| PathBuf::from(format!("/usr/bin/python3.{minor}"))));
    let versions = env::home_dir().map(|home| home.join(".pyenv/versions")).into_iter();
    for version in versions.filter_map(|it| fs::read_dir(it).ok()).flatten().flatten() {
        let name = version.file_name().into_string().unwrap_or_default();
        let minor = name.strip_prefix("3.").and_then(|it| it.split('.').next()?.parse::<u8>().ok());
        if minor.is_some_and(|it| it >= 8) {
            all.push(version.path().join("bin/python3"));
        }
    }
    all.retain(|it| it.is_file());
    all
}

/// Runs of instructions with their lines.
fn runs(lines: &Value) -> Vec<(u32, Option<u32>)> {
    let number = |it: &Value| u32::try_from(it.as_u64().unwrap()).unwrap();
    let pairs = lines.as_array().unwrap().iter();
    pairs.map(|it| (number(&it[0]), Some(number(&it[1])).filter(|line| *line != 0))).collect()
}

#[test]
fn what_is_read_is_what_python_says() {
    let all = pythons();
    if all.is_empty() {
        eprintln!("skipped: no Python from 3.8 on is installed");
    }
    for pair in all.chunks(2) {
        thread::scope(|scope| {
            for command in pair {
                scope.spawn(|| ask(command));
            }
        });
    }
}

/// Compares names, lines and threads.
fn ask(command: &Path) {
    let mut python = Python::start(command);
    let head = python.line();
    let (loaded, memory) = (python.loaded(), python.memory());
    let version = loaded.offsets.version.to_string();
    let said: Vec<String> = head[0].as_array().unwrap().iter().map(Value::to_string).collect();
    assert!(version.starts_with(&format!("{}.{}.", said[0], said[1])), "{version} is {said:?}");
    let (mut codes, mut all_runs) = (0, 0);
    loop {
        let line = python.line();
        let Some(id) = line.get(0).and_then(Value::as_u64) else { break };
        let checked = code::check_at(&memory, &loaded, id).unwrap();
        let code = code::read(&memory, &loaded, id, checked).unwrap();
        assert_eq!(Some(&*code.name), line[1].as_str());
        assert_eq!(Some(&*code.file), line[2].as_str());
        assert_eq!(Some(u64::from(code.first_line)), line[3].as_u64(), "{line}");
        assert!(code.lines.is_sane() && !code.is_internal());
        let mut first = 0_u32;
        for (end, truth) in runs(&line[4]) {
            for instruction in [first, first.midpoint(end), end - 1] {
                let found = code.lines.find(instruction);
                assert_eq!(found, truth, "{version} {instruction} of {line}");
            }
            (first, all_runs) = (end, all_runs + 1);
        }
        // At one of another check there is another object.
        assert_eq!(code::read(&memory, &loaded, id, checked ^ 2), Err(Unnamed::Reused));
        codes += 1;
    }
    assert!(codes > 1000, "{codes}");

    let found = slot::threads(&memory, &loaded).unwrap();
    let states: BTreeMap<u64, u64> = found.iter().map(|it| (it.id, it.state)).collect();
    let ids: Vec<u64> = head[1].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert_eq!((states.len(), found.len(), ids.len()), (4, 4, 4));
    let slot = slot::slot(&memory, &loaded, 0).unwrap();
    for id in ids {
        let mut state = memory.word(id.wrapping_add_signed(slot.offset));
        if let Some(at) = slot.in_table {
            state = memory.word(state.wrapping_add_signed(at.into()));
        }
        assert_eq!(state, states[&id]);
    }
    eprintln!("{}: {version}, {codes} code objects, {all_runs} runs, {slot:?}", command.display());

    python.child.kill().unwrap();
    python.child.wait().unwrap();
    assert_eq!(slot::slot(&memory, &loaded, 0), Err(NoSlot::Unreadable(Fault::Gone)));
    assert_eq!(code::read(&memory, &loaded, loaded.runtime & !7, 1), Err(Unnamed::Gone));
}

#[test]
fn other_files_are_no_interpreters() {
    for path in ["/proc/self/exe", "/bin/sh", "/proc/self/maps", "/etc/passwd", "/"] {
        assert_eq!(Image::of_file(&File::open(path).unwrap()), Ok(None), "{path}");
    }
}
