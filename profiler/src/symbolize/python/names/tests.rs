use super::*;
use crate::{
    parser::Parser,
    process::file::FileKey,
    stderr,
    symbolize::{names::Names as Interned, python::attach},
};
use profiler_python::{
    image::{Image, Loaded},
    memory::{Fault, Memory},
};
use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::FileExt as _,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

/// Prints where a function is, and for each line that comes replaces it by another and prints where that is.
const SCRIPT: &str = "
import sys
def made(n):
    scope = {}
    exec(compile('\\n' * n + f'def f{n}():\\n  return 1\\n', f'/made/{n}.py', 'exec'), scope)
    return scope.pop(f'f{n}')
n = 0
while True:
    f = made(n)
    print(id(f.__code__), flush=True)
    if not sys.stdin.readline():
        break
    del f
    n += 1
";

/// A process that runs Python, and its memory.
struct Snake {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    python: Loaded,
}

impl Snake {
    /// `None`, aloud, where there is no Python.
    fn start() -> Option<Self> {
        let spawned = Command::new("python3")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = spawned else {
            stderr::say("skipped: there is no python3");
            return None;
        };
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut stdout = BufReader::new(stdout);
        // By now it is mapped.
        assert_ne!(stdout.fill_buf().unwrap(), b"");
        let maps = fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let mut code = maps.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let path = fields.get(5).filter(|it| it.starts_with('/') && fields[1].contains('x'))?;
            let start = u64::from_str_radix(fields[0].split('-').next()?, 16).ok()?;
            let image = Image::of_file(&File::open(path).ok()?).unwrap()?;
            image.loaded_at(start, u64::from_str_radix(fields[2], 16).ok()?)
        });
        let python = code.next().unwrap();
        Some(Self { child, stdin, stdout, python })
    }

    /// The function that it has made.
    fn made(&mut self) -> Wanted {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        let code: u64 = line.trim().parse().unwrap();
        let memory = File::open(format!("/proc/{}/mem", self.child.id())).unwrap();
        let check = profiler_python::code::check_at(&Mem(&memory), &self.python, code).unwrap();
        Wanted { code, check, instruction: 0 }
    }

    fn make_another(&mut self) {
        self.stdin.write_all(b"\n").unwrap();
    }

    fn process(&self) -> Process<'_> {
        Process { tgid: self.child.id(), image: 1, python: &self.python }
    }

    fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Snake {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

/// Names, with a parser process.
struct Python {
    names: PythonNames,
    parser: Parser,
    interned: Interned,
}

impl Python {
    fn new() -> Self {
        let (names, interned) = (PythonNames::default(), Interned::default());
        Self { names, parser: Parser::not_started(), interned }
    }

    fn find(&mut self, process: Process<'_>, wanted: &[Wanted]) -> Named {
        let with = With { parser: &mut self.parser, interned: &mut self.interned };
        self.names.find(with, process, wanted)
    }

    /// The name and file of a frame, or why there is none.
    fn name(&mut self, process: Process<'_>, wanted: Wanted) -> Result<(String, String), Origin> {
        let frame = self.find(process, &[wanted]).frames.pop().unwrap().unwrap();
        match (frame.symbol, frame.module) {
            (Some(name), Some(file)) => Ok((name.to_string(), file.to_string())),
            _ => Err(frame.origin),
        }
    }
}

fn function(n: u32) -> (String, String) {
    (format!("f{n}"), format!("/made/{n}.py"))
}

#[test]
fn a_function_is_named_and_stays_so() {
    let (Some(mut snake), mut python) = (Snake::start(), Python::new()) else { return };
    let first = snake.made();
    let twice = python.find(snake.process(), &[first, first]);
    assert!(twice.is_final && twice.frames[0] == twice.frames[1]);
    let frame = twice.frames[0].as_ref().unwrap();
    assert_eq!(frame.origin, Origin::Cpython);
    let (file, line) = frame.source.as_ref().unwrap();
    assert_eq!((&**file, *line), ("/made/0.py", Some(1)));
    assert_eq!(python.names.account().entries, 1);
    // It is known when the process has ended, and what is not is told so.
    snake.make_another();
    let second = snake.made();
    snake.end();
    assert_eq!(python.name(snake.process(), first), Ok(function(0)));
    assert_eq!(python.name(snake.process(), second), Err(Origin::ProcessGone));
}

#[test]
fn code_that_was_replaced_has_no_name() {
    let (Some(mut snake), mut python) = (Snake::start(), Python::new()) else { return };
    let (mut last, mut reused) = (snake.made(), 0);
    for n in 1..300 {
        snake.make_another();
        let made = snake.made();
        if n % 2 == 1 {
            python.names.time_budget = TimeBudget::new(Instant::now());
            // Nobody has asked for the last one while it was there.
            if last.code == made.code {
                assert_eq!(python.name(snake.process(), last), Err(Origin::CodeGone), "{n}");
                reused += 1;
            }
            assert_eq!(python.name(snake.process(), made), Ok(function(n)));
        }
        last = made;
    }
    assert!(reused > 0, "no address was used again");
}

#[test]
fn what_is_no_code_has_no_name() {
    let (Some(mut snake), mut python) = (Snake::start(), Python::new()) else { return };
    let made = snake.made();
    let wild = [0, 8, made.code + 8, snake.python.runtime & !7, 1 << 60, !7];
    let wanted = wild.map(|code| Wanted { code, ..made });
    let found = python.find(snake.process(), &wanted);
    let expected = [Origin::NoCode, Origin::CodeGone];
    for frame in found.frames.iter().flatten() {
        assert!(frame.symbol.is_none() && expected.contains(&frame.origin), "{frame:?}");
    }
    assert!(found.is_final);
    let unchecked = Wanted { check: 0, ..made };
    assert_eq!(python.name(snake.process(), unchecked), Err(Origin::NoCode));
    assert_eq!(python.name(snake.process(), made), Ok(function(0)));
}

#[test]
fn a_parser_process_that_ends_costs_no_names() {
    let (Some(mut snake), mut python) = (Snake::start(), Python::new()) else { return };
    let first = snake.made();
    assert_eq!(python.name(snake.process(), first), Ok(function(0)));
    snake.make_another();
    let second = snake.made();
    python.parser.kill();
    assert_eq!(python.name(snake.process(), second), Ok(function(1)));
    assert_eq!(python.parser.account().barred, 0);
}

#[test]
fn nothing_is_read_when_too_much_time_was_taken() {
    let (Some(mut snake), mut python) = (Snake::start(), Python::new()) else { return };
    python.names.time_budget.take(Instant::now(), Duration::from_secs(1000));
    let first = snake.made();
    assert!(!python.find(snake.process(), &[first]).is_final);
    assert_eq!(python.name(snake.process(), first), Err(Origin::Unread));
    python.names.time_budget = TimeBudget::new(Instant::now());
    assert_eq!(python.name(snake.process(), first), Ok(function(0)));
}

#[test]
fn a_process_is_attached_to() {
    let (Some(mut snake), mut python) = (Snake::start(), Python::new()) else { return };
    snake.made();
    let layout = attach::layout(&mut python.parser, snake.process(), 0);
    // The slot is found without a thread's help, by what the interpreter lists.
    let layout = layout.unwrap();
    assert!(layout.slot != 0 && layout.frame_bytes > 0, "{layout:?}");
    let key = FileKey::Number(1);
    let own = File::open("/proc/self/exe").unwrap();
    assert_eq!(attach::image(&mut python.parser, key, &own), Ok(None));
    snake.end();
    let why = attach::layout(&mut python.parser, snake.process(), 0);
    assert_eq!(why, Err(attach::NotAttached::Unread(Origin::ProcessGone)));
}

/// Read here, as the eBPF program does.
struct Mem<'a>(&'a File);

impl Memory for Mem<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.0.read_exact_at(into, address).map_err(|_| Fault::Unmapped)
    }
}
