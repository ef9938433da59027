//! One JSON object a line: the samples as they come, then a summary. The fields stand in
//! `docs/output.md`.

use serde::{Serialize, Serializer};

use super::{NamedSample, Output, Sink};
use crate::{
    error::{Error, Result},
    ledger::Ledger,
    sample::comm_text,
    symbolize::frame::Stack,
};

pub(super) struct Json {
    sink: Sink,
    event: &'static str,
    line: Vec<u8>,
}

impl Json {
    pub(super) fn new(sink: Sink, event: &'static str) -> Self {
        Self { sink, event, line: Vec::new() }
    }

    fn line(&mut self, value: &impl Serialize) -> Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, value)
            .map_err(|error| Error::system("cannot write a sample as JSON", error))?;
        self.line.push(b'\n');
        self.sink.write(&self.line)
    }
}

#[derive(Serialize)]
struct Summary<'a> {
    summary: &'a Ledger,
}

#[derive(Serialize)]
struct Sample<'a> {
    time_ns: u64,
    pid: u32,
    tid: u32,
    comm: &'a str,
    cpu: u32,
    cgroup_id: u64,
    event: &'static str,
    period: u64,
    kernel: Half<'a>,
    user: Half<'a>,
    user_end: &'static str,
}

/// The frames of half a stack; as text they are made once.
struct Half<'a>(&'a Stack);

impl Serialize for Half<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.0.text(|stack| {
            let frames: Vec<_> = stack.frames().map(|(address, it)| frame(address, it)).collect();
            serde_json::to_string(&frames).unwrap_or_else(|_| "[]".into())
        });
        let raw: &serde_json::value::RawValue =
            serde_json::from_str(text).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

#[derive(Serialize)]
struct Frame<'a> {
    addr: String,
    symbol: Option<&'a str>,
    offset: u64,
    module: Option<&'a str>,
    file: Option<&'a str>,
    line: Option<u32>,
    inlined: bool,
}

fn frame(address: u64, frame: &crate::symbolize::frame::Frame) -> Frame<'_> {
    let source = frame.source.as_ref();
    Frame {
        addr: format!("{address:#x}"),
        symbol: frame.symbol.as_deref(),
        offset: frame.offset,
        module: frame.module.as_deref(),
        file: source.map(|(file, _)| &**file),
        line: source.and_then(|(_, line)| *line),
        inlined: frame.inlined,
    }
}

impl Output for Json {
    fn sample(&mut self, sample: &NamedSample<'_>) -> Result<()> {
        let raw = sample.raw;
        self.line(&Sample {
            time_ns: raw.time_ns,
            pid: raw.tgid,
            tid: raw.tid,
            comm: &comm_text(&raw.comm),
            cpu: raw.cpu,
            cgroup_id: raw.cgroup_id,
            event: self.event,
            period: raw.period,
            kernel: Half(&sample.kernel),
            user: Half(&sample.user),
            user_end: sample.user_end(),
        })
    }

    fn flush(&mut self) -> Result<()> {
        self.sink.flush()
    }

    fn finish(&mut self, ledger: &Ledger) -> Result<()> {
        self.line(&Summary { summary: ledger })?;
        self.sink.flush()
    }
}
