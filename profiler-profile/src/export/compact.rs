//! JSON for storing and sending: modules, functions, stacks and processes are announced once, each with
//! an id, and samples refer to them. `docs/output.md` has the fields, and a program that expands it.

use std::{
    io::{self, Write},
    sync::Arc,
};

use profiler_common::build_id::BuildId;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{
    Exporter, Row,
    about::About,
    format::{Export, Format, Processes},
    json::{Last, Line, write_line},
};
use crate::{
    frame::{Frame, Origin},
    process::Metadata,
    stack::Stack,
};

/// What was announced is forgotten, by us and by the reader, after so many bytes of announcements. These
/// are some 100,000 frames.
const LIMIT_BYTES: usize = 8 << 20;

/// The format, by name.
pub const FORMAT: Format = Format {
    name: "json-compact",
    help: "The same, much smaller: modules, functions and stacks are written once, then referred to by id",
    extensions: &["compact.jsonl"],
    processes: Processes::IfAsked,
    is_binary: false,
    viewers: "jq",
    has_ledger: true,
    export: Export::Stream(|_| Box::new(Compact::new())),
};

/// Samples as compact JSON, as they come.
struct Compact {
    line: Vec<u8>,
    known: Known,
    limit_bytes: usize,
}

/// The ids of all that was announced.
#[derive(Default)]
struct Known {
    modules: FxHashMap<(Option<Arc<str>>, Option<BuildId>), u32>,
    functions: FxHashMap<FunctionKey, u32>,
    stacks: FxHashMap<StackKey, u32>,
    /// By where they are; they are held, so that no other comes to stand there.
    processes: FxHashMap<*const Metadata, (Arc<Metadata>, u32)>,
    /// How long the announcements were.
    bytes: usize,
}

#[derive(PartialEq, Eq, Hash)]
struct FunctionKey {
    symbol: Option<Arc<str>>,
    module: Option<u32>,
    origin: Origin,
}

/// A frame and the stack that it stands on.
#[derive(PartialEq, Eq, Hash)]
struct StackKey {
    parent: Option<u32>,
    function: u32,
    address: u64,
    offset: u64,
    source: Option<(Arc<str>, Option<u32>)>,
    inlined: bool,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Announcement<'a> {
    /// All ids are free again.
    Reset,
    Module {
        id: u32,
        module: Option<&'a str>,
        build_id: Option<String>,
    },
    Function {
        id: u32,
        symbol: Option<&'a str>,
        module: Option<u32>,
        origin: String,
    },
    Stack {
        id: u32,
        parent: Option<u32>,
        function: u32,
        addr: String,
        offset: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        file: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        line: Option<u32>,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        inlined: bool,
    },
    Process {
        id: u32,
        process: &'a Metadata,
    },
}

impl Compact {
    fn new() -> Self {
        Self { line: Vec::new(), known: Known::default(), limit_bytes: LIMIT_BYTES }
    }

    fn announce(&mut self, it: &Announcement<'_>, to: &mut dyn Write) -> io::Result<()> {
        self.known.bytes += write_line(it, &mut self.line, to)?;
        Ok(())
    }

    /// The id of the innermost frame; `None` without frames.
    fn stack(&mut self, stack: &Stack, to: &mut dyn Write) -> io::Result<Option<u32>> {
        let mut parent = None;
        for (address, frame) in stack.frames().rev() {
            parent = Some(self.frame(parent, address, frame, to)?);
        }
        Ok(parent)
    }

    fn frame(
        &mut self,
        parent: Option<u32>,
        address: u64,
        frame: &Frame,
        to: &mut dyn Write,
    ) -> io::Result<u32> {
        let function = self.function(frame, to)?;
        let Frame { offset, inlined, ref source, .. } = *frame;
        let source = source.clone();
        let key = StackKey { parent, function, address, offset, source, inlined };
        if let Some(id) = self.known.stacks.get(&key) {
            return Ok(*id);
        }
        let id = next_id(self.known.stacks.len());
        let addr = format!("{address:#x}");
        let source = frame.source.as_ref();
        let file = source.map(|(file, _)| &**file);
        let line = source.and_then(|(_, line)| *line);
        let it = Announcement::Stack { id, parent, function, addr, offset, file, line, inlined };
        self.announce(&it, to)?;
        self.known.stacks.insert(key, id);
        Ok(id)
    }

    fn function(&mut self, frame: &Frame, to: &mut dyn Write) -> io::Result<u32> {
        let module = self.module(frame, to)?;
        let symbol = frame.symbol.clone().filter(|_| frame.name().is_some());
        let key = FunctionKey { symbol, module, origin: frame.origin };
        if let Some(id) = self.known.functions.get(&key) {
            return Ok(*id);
        }
        let id = next_id(self.known.functions.len());
        let origin = frame.origin.to_string();
        self.announce(&Announcement::Function { id, symbol: frame.name(), module, origin }, to)?;
        self.known.functions.insert(key, id);
        Ok(id)
    }

    fn module(&mut self, frame: &Frame, to: &mut dyn Write) -> io::Result<Option<u32>> {
        if frame.module.is_none() && frame.build_id.is_none() {
            return Ok(None);
        }
        let key = (frame.module.clone(), frame.build_id);
        if let Some(id) = self.known.modules.get(&key) {
            return Ok(Some(*id));
        }
        let id = next_id(self.known.modules.len());
        let build_id = frame.build_id.map(|id| id.to_string());
        let module = frame.module.as_deref();
        self.announce(&Announcement::Module { id, module, build_id }, to)?;
        self.known.modules.insert(key, id);
        Ok(Some(id))
    }

    fn process(&mut self, process: &Arc<Metadata>, to: &mut dyn Write) -> io::Result<u32> {
        let key = Arc::as_ptr(process);
        if let Some((_, id)) = self.known.processes.get(&key) {
            return Ok(*id);
        }
        let id = next_id(self.known.processes.len());
        self.announce(&Announcement::Process { id, process }, to)?;
        self.known.processes.insert(key, (Arc::clone(process), id));
        Ok(id)
    }
}

/// An announcement has more bytes than its id has values left, so the limit comes long before.
fn next_id(known: usize) -> u32 {
    u32::try_from(known).unwrap_or(u32::MAX)
}

impl Exporter for Compact {
    fn add(&mut self, row: Row<'_>, to: &mut dyn Write) -> io::Result<()> {
        if self.known.bytes >= self.limit_bytes {
            self.known = Known::default();
            write_line(&Announcement::Reset, &mut self.line, to)?;
        }
        let kernel = self.stack(row.kernel, to)?;
        let user = self.stack(row.user, to)?;
        let process = row.task.process.as_ref().map(|it| self.process(it, to)).transpose()?;
        write_line(&Line::new(row, kernel, user, process), &mut self.line, to)?;
        Ok(())
    }

    fn finish(&mut self, about: &About<'_>, to: &mut dyn Write) -> io::Result<()> {
        write_line(&Last::of(about), &mut self.line, to)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        export::{
            json::Json,
            tests::{location as at, sample},
        },
        sample::{Sample, Task},
        stack::Location,
        stack_end::StackEnd,
        store::Store,
    };
    use serde_json::{Value, json};
    use std::{
        collections::HashMap,
        process::{Command, Stdio},
    };

    fn frame(symbol: &str, module: &str, offset: u64) -> Frame {
        let build_id = BuildId::from_slice(module.as_bytes());
        let (symbol, module) = (Some(Arc::from(symbol)), Some(Arc::from(module)));
        Frame { symbol, module, offset, build_id, origin: Origin::Elf, ..Frame::default() }
    }

    /// Stacks with all that a frame can have, innermost first, and of each the number of its process.
    fn stacks() -> Vec<(Vec<Location>, Option<usize>)> {
        let start = at(0x1000, &[frame("_start", "/bin/a", 0x21)]);
        let main = at(0x1100, &[frame("main", "/bin/a", 0x40)]);
        let source = |file: &str, line| Some((Arc::from(file), line));
        let inlined = [
            Frame { source: source("a.c", Some(7)), inlined: true, ..frame("min", "/bin/a", 3) },
            Frame { source: source("b.c", None), ..frame("sort", "/bin/a", 0x90) },
        ];
        let unnamed = Frame { symbol: None, origin: Origin::NoSymbol, ..frame("", "/lib/c", 5) };
        let blank = frame("", "/lib/c", 5);
        let same_name = frame("main", "/bin/b", 0x40);
        [
            (vec![main.clone(), start.clone()], Some(0)),
            (vec![at(0x1200, &inlined), main.clone(), start.clone()], Some(0)),
            (vec![at(0x1200, &inlined[1..]), main.clone(), start.clone()], Some(1)),
            (vec![at(0x2000, &[unnamed]), main.clone()], None),
            (vec![at(0x2000, &[blank]), main.clone()], None),
            (vec![at(0x1100, &[same_name]), start.clone()], None),
            (vec![at(u64::MAX, &[Frame::default()])], None),
            (vec![], Some(1)),
            (vec![main, start], Some(1)),
        ]
        .into()
    }

    /// What a format writes for samples with these stacks, in this order and then backwards.
    fn written(mut exporter: impl Exporter) -> String {
        let (mut to, mut store) = (Vec::new(), Store::default());
        let process = |line: &str| {
            Arc::new(Metadata { command_line: Some(line.into()), ..Metadata::default() })
        };
        let processes = [process("a"), process("b")];
        let mut stacks = stacks();
        stacks.extend(stacks.clone().into_iter().rev());
        for (time_ns, (user, of)) in (1..).zip(stacks) {
            // In every third sample the process is in the kernel.
            let in_kernel = Frame { module: None, build_id: None, ..frame("read", "", 9) };
            let kernel = vec![at(u64::MAX - 9, &[in_kernel])];
            let kernel = store.intern(if time_ns % 3 == 0 { kernel } else { Vec::new() });
            let blank = sample();
            let process = of.map(|of| Arc::clone(&processes[of]));
            let sample = Sample {
                time_ns,
                task: Task { process, ..blank.task.clone() },
                kernel,
                user: store.intern(user),
                user_end: StackEnd::Complete,
                from_snapshot: time_ns % 2 == 0,
                ..blank
            };
            exporter.add((&sample).into(), &mut to).unwrap();
        }
        String::from_utf8(to).unwrap()
    }

    fn plain() -> Vec<Value> {
        values(&written(Json::new(1 << 20)))
    }

    fn compact(limit_bytes: usize) -> String {
        written(Compact { limit_bytes, ..Compact::new() })
    }

    fn values(text: &str) -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// What the plain form has, made from the compact one by what `docs/output.md` says of it.
    fn expanded(text: &str) -> Vec<Value> {
        let mut known: HashMap<(String, u64), Value> = HashMap::new();
        let mut samples = Vec::new();
        for mut line in values(text) {
            let kind = line["type"].as_str().unwrap().to_owned();
            let get = |kind: &str, id: &Value| &known[&(kind.to_owned(), id.as_u64().unwrap())];
            match kind.as_str() {
                "reset" => known.clear(),
                "sample" => {
                    for half in ["kernel", "user"] {
                        let (mut frames, mut id) = (Vec::new(), line[half].clone());
                        while !id.is_null() {
                            let frame = get("stack", &id);
                            let function = get("function", &frame["function"]);
                            let module = match &function["module"] {
                                Value::Null => &Value::Null,
                                id => get("module", id),
                            };
                            frames.push(json!({
                                "addr": frame["addr"],
                                "symbol": function["symbol"],
                                "offset": frame["offset"],
                                "module": module["module"],
                                "build_id": module["build_id"],
                                "file": frame["file"],
                                "line": frame["line"],
                                "inlined": frame["inlined"].as_bool().unwrap_or(false),
                                "origin": function["origin"],
                            }));
                            id = frame["parent"].clone();
                        }
                        line[half] = frames.into();
                    }
                    if let Some(process) = line.get_mut("process") {
                        *process = get("process", process)["process"].clone();
                    }
                    samples.push(line);
                }
                _ => {
                    let id = line["id"].as_u64().unwrap();
                    assert_eq!(known.insert((kind, id), line), None, "announced twice");
                }
            }
        }
        samples
    }

    #[test]
    fn it_expands_to_the_plain_form() {
        let text = compact(LIMIT_BYTES);
        assert_eq!(expanded(&text), plain());
        assert!(!text.contains("reset"));
        let of_kind = |kind: &str| {
            let of_kind = values(&text).into_iter().filter(|line| line["type"] == kind);
            of_kind.count()
        };
        // Each is announced once, and stacks share what they have in common.
        assert_eq!((of_kind("module"), of_kind("process"), of_kind("stack")), (3, 2, 10));
    }

    #[test]
    fn what_was_announced_is_bounded() {
        for limit_bytes in [0, 300, 1000] {
            let text = compact(limit_bytes);
            assert_eq!(expanded(&text), plain());
            let lines = text.split_inclusive('\n').map(|line| {
                (serde_json::from_str::<Value>(line).unwrap()["type"].to_string(), line.len())
            });
            let (mut announced, mut resets) = (0, 0);
            for (kind, length) in lines {
                match kind.as_str() {
                    "\"reset\"" => (announced, resets) = (0, resets + 1),
                    // One sample announces at most 5 frames with all that they have here.
                    "\"sample\"" => assert!(announced < limit_bytes + 1500, "{announced}"),
                    _ => announced += length,
                }
            }
            assert!(resets > 0);
        }
    }

    #[test]
    fn the_program_in_the_docs_expands_it() {
        let docs = include_str!("../../../docs/output.md");
        let (_, program) = docs.split_once("```python\n").unwrap();
        let (program, _) = program.split_once("```").unwrap();
        let python = Command::new("python3")
            .args(["-c", program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut python) = python else {
            let _ = std::io::stderr().write_all(b"skipped: python3 is not installed\n");
            return;
        };
        // Less than a pipe holds.
        python.stdin.take().unwrap().write_all(compact(1000).as_bytes()).unwrap();
        let output = python.wait_with_output().unwrap();
        assert_eq!(values(&String::from_utf8(output.stdout).unwrap()), plain());
    }
}
