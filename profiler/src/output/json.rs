//! One JSON object a line: the samples as they come, then a summary. The fields stand in
//! `docs/output.md`.

use serde::{Serialize, Serializer};

use super::{NamedSample, Output, Sink};
use crate::{
    error::{Error, Result},
    ledger::Ledger,
    process::metadata::Metadata,
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
    user_copied: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<&'a Metadata>,
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
    build_id: Option<String>,
    file: Option<&'a str>,
    line: Option<u32>,
    inlined: bool,
    origin: String,
}

fn frame(address: u64, frame: &crate::symbolize::frame::Frame) -> Frame<'_> {
    let source = frame.source.as_ref();
    Frame {
        addr: format!("{address:#x}"),
        symbol: frame.symbol.as_deref(),
        offset: frame.offset,
        module: frame.module.as_deref(),
        build_id: frame.build_id.map(|id| id.to_string()),
        file: source.map(|(file, _)| &**file),
        line: source.and_then(|(_, line)| *line),
        inlined: frame.inlined,
        origin: frame.origin.to_string(),
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
            user_copied: sample.is_copied,
            process: sample.metadata.as_deref(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        process::{cgroup::Container, space::SpaceId},
        sample::{Addresses, RawSample},
    };
    use profiler_common::sample::UserEnd;
    use serde_json::{Value, json};
    use std::rc::Rc;

    fn written(process: Option<&Metadata>) -> Value {
        let raw = RawSample {
            time_ns: 1,
            cgroup_id: 2,
            period: 3,
            tgid: 4,
            tid: 5,
            cpu: 6,
            comm: *b"a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            user_end: UserEnd::NotCaptured,
            kernel: Addresses::default(),
            user: Addresses::default(),
            copy: None,
        };
        let (kernel, user) = (Rc::default(), Rc::default());
        let metadata = process.cloned().map(Rc::new);
        let (space, is_copied) = (SpaceId::KERNEL, false);
        let sample = NamedSample { raw: &raw, space, kernel, user, is_copied, metadata };
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut json = Json::new(Sink::open(Some(file.path())).unwrap(), "cycles");
        json.sample(&sample).unwrap();
        json.flush().unwrap();
        serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap()
    }

    #[test]
    fn a_sample_has_its_process_if_asked_for() {
        assert_eq!(written(None).get("process"), None);
        let known = Metadata {
            command_line: Some("a b".into()),
            parent: Some(7),
            cgroup: Some("/docker/1".into()),
            container: Some(Container { id: "1".into(), runtime: Some("docker") }),
            pod: None,
            unit: Some("a.service".into()),
        };
        assert_eq!(
            written(Some(&known))["process"],
            json!({
                "command_line": "a b",
                "parent": 7,
                "cgroup": "/docker/1",
                "container": { "id": "1", "runtime": "docker" },
                "pod": null,
                "unit": "a.service",
            })
        );
        let nothing = &written(Some(&Metadata::default()))["process"];
        assert_eq!((&nothing["command_line"], &nothing["container"]), (&Value::Null, &Value::Null));
    }
}
