//! One JSON object a line: the samples as they come, then a summary. The fields stand in
//! `docs/output.md`.

use std::{
    borrow::Cow,
    io::{self, Write},
    sync::Arc,
};

use serde::Serialize;
use serde_json::value::RawValue;

use super::{
    Exporter, Flushed,
    format::{Format, Processes},
    json_text,
    rendered::Rendered,
};
use crate::{
    ledger::{Ledger, memory::Cache},
    process::Metadata,
    sample::Sample,
    stack::Stack,
};

/// The format, by name.
pub const FORMAT: Format = Format {
    name: "json",
    help: "A JSON object per line: samples are streamed, a summary comes last",
    extensions: &["jsonl"],
    processes: Processes::IfAsked,
    is_binary: false,
    viewers: "jq",
    has_ledger: true,
    export: |to, options| Box::new(Json::new(to, options.rendered_bytes)),
};

/// Samples as JSON, one a line, as they come.
pub struct Json<W> {
    lines: Lines<W>,
    rendered: Rendered<Arc<RawValue>>,
}

impl<W: Write> Json<W> {
    /// Writes lines to `to`, and keeps so many bytes of stacks that are rendered.
    pub fn new(to: W, rendered_bytes: usize) -> Self {
        Self { lines: Lines::new(to), rendered: Rendered::new(rendered_bytes) }
    }
}

/// Writes one value a line.
pub(super) struct Lines<W> {
    to: W,
    line: Vec<u8>,
}

impl<W: Write> Lines<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, line: Vec::new() }
    }

    /// Writes a line; gives its length in bytes.
    pub(super) fn write(&mut self, value: &impl Serialize) -> io::Result<usize> {
        self.line.clear();
        json_text::write(&mut self.line, value)?;
        self.line.push(b'\n');
        self.to.write_all(&self.line)?;
        Ok(self.line.len())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "summary")]
pub(super) struct Summary<'a> {
    pub(super) summary: &'a Ledger,
}

/// A sample, with its stacks and its process as the form has them.
#[derive(Serialize)]
#[serde(tag = "type", rename = "sample")]
pub(super) struct Line<'a, Half, Process> {
    time_ns: u64,
    pid: u32,
    tid: u32,
    comm: Cow<'a, str>,
    cpu: u32,
    cgroup_id: u64,
    event: &'a str,
    period: u64,
    kernel: Half,
    user: Half,
    user_end: &'static str,
    user_from_snapshot: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<Process>,
}

impl<'a, Half, Process> Line<'a, Half, Process> {
    pub(super) fn new(
        sample: &'a Sample,
        kernel: Half,
        user: Half,
        process: Option<Process>,
    ) -> Self {
        Self {
            time_ns: sample.time_ns,
            pid: sample.task.tgid,
            tid: sample.task.tid,
            comm: sample.task.comm.text(),
            cpu: sample.cpu,
            cgroup_id: sample.task.cgroup_id,
            event: &sample.source.name,
            period: sample.value,
            kernel,
            user,
            user_end: sample.user_end.word(),
            user_from_snapshot: sample.from_snapshot,
            process,
        }
    }
}

/// The frames of half a stack as JSON.
fn half(stack: &Stack) -> Arc<RawValue> {
    let frames: Vec<_> = stack.frames().map(|(address, it)| frame(address, it)).collect();
    let raw = json_text::to_string(&frames).and_then(RawValue::from_string);
    // Frames have no map whose keys could fail to be strings.
    Arc::from(raw.unwrap_or_default())
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

fn frame(address: u64, frame: &crate::frame::Frame) -> Frame<'_> {
    let source = frame.source.as_ref();
    Frame {
        addr: format!("{address:#x}"),
        symbol: frame.name(),
        offset: frame.offset,
        module: frame.module.as_deref(),
        build_id: frame.build_id.map(|id| id.to_string()),
        file: source.map(|(file, _)| &**file),
        line: source.and_then(|(_, line)| *line),
        inlined: frame.inlined,
        origin: frame.origin.to_string(),
    }
}

impl<W: Write> Json<W> {
    fn sample(&mut self, sample: &Sample) -> io::Result<()> {
        let kernel = self.rendered.get(&sample.kernel, half);
        let user = self.rendered.get(&sample.user, half);
        let process: Option<&Metadata> = sample.task.process.as_deref();
        self.lines.write(&Line::new(sample, &*kernel, &*user, process))?;
        Ok(())
    }
}

impl<W: Write> Exporter for Json<W> {
    fn add(&mut self, samples: &[Sample]) -> io::Result<()> {
        samples.iter().try_for_each(|sample| self.sample(sample))
    }

    fn flush(&mut self) -> io::Result<Flushed> {
        self.lines.flush().map(|()| Flushed::Written)
    }

    fn finish(&mut self, ledger: &Ledger) -> io::Result<()> {
        self.lines.write(&Summary { summary: ledger })?;
        self.lines.flush()
    }

    fn account(&self) -> Vec<Cache> {
        vec![self.rendered.account()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        export::tests::{Written, sample},
        process::Container,
        sample::Task,
    };
    use serde_json::{Value, json};

    fn written(process: Option<&Metadata>) -> Value {
        let (to, blank) = (Written::default(), sample());
        let task = Task { process: process.cloned().map(Arc::new), ..blank.task.clone() };
        let mut json = Json::new(to.clone(), 1 << 20);
        json.add(&[Sample { task, ..blank }]).unwrap();
        json.flush().unwrap();
        serde_json::from_str(&to.text()).unwrap()
    }

    #[test]
    fn a_sample_says_what_it_is() {
        let sample = written(None);
        assert_eq!((&sample["type"], &sample["comm"]), (&json!("sample"), &json!("a")));
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
