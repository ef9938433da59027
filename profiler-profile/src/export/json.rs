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
    Exporter, Row,
    about::About,
    format::{Export, Format, Processes},
    json_text,
    rendered::Rendered,
};
use crate::{
    ledger::{Ledger, memory::Cache},
    process::Metadata,
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
    export: Export::Stream(|options| Box::new(Json::new(options.rendered_bytes))),
};

/// Samples as JSON, one a line, as they come.
pub(super) struct Json {
    line: Vec<u8>,
    rendered: Rendered<Arc<RawValue>>,
}

impl Json {
    /// Keeps so many bytes of stacks that are rendered.
    pub(super) fn new(rendered_bytes: usize) -> Self {
        Self { line: Vec::new(), rendered: Rendered::new(rendered_bytes) }
    }
}

/// Writes a value as a line, in a buffer that is used again; gives its length in bytes.
pub(super) fn write_line(
    value: &impl Serialize,
    line: &mut Vec<u8>,
    to: &mut dyn Write,
) -> io::Result<usize> {
    line.clear();
    json_text::write(&mut *line, value)?;
    line.push(b'\n');
    to.write_all(line)?;
    Ok(line.len())
}

/// The last line.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum Last<'a> {
    /// Of a run.
    Summary { summary: &'a Ledger },
    /// Of samples that were counted and read back.
    Profile { begun_ns: Option<i64>, duration_ns: Option<u64>, comments: &'a [String] },
}

impl<'a> Last<'a> {
    pub(super) fn of(about: &'a About<'a>) -> Self {
        match about.ledger {
            Some(summary) => Self::Summary { summary },
            None => Self::Profile {
                begun_ns: about.begun_ns.and_then(|it| it.try_into().ok()),
                duration_ns: about.duration_ns,
                comments: &about.comments,
            },
        }
    }
}

/// A sample, with its stacks and its process as the form has them.
#[derive(Serialize)]
#[serde(tag = "type", rename = "sample")]
pub(super) struct Line<'a, Half, Process> {
    time_ns: Option<u64>,
    pid: u32,
    tid: u32,
    comm: Cow<'a, str>,
    cpu: Option<u32>,
    cgroup_id: Option<u64>,
    event: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    period: u64,
    kernel: Half,
    user: Half,
    user_end: Option<&'static str>,
    user_from_snapshot: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<Process>,
}

impl<'a, Half, Process> Line<'a, Half, Process> {
    pub(super) fn new(row: Row<'a>, kernel: Half, user: Half, process: Option<Process>) -> Self {
        let Row { source, task, count, value, moment, .. } = row;
        Self {
            time_ns: moment.map(|it| it.time_ns),
            pid: task.tgid,
            tid: task.tid,
            comm: task.comm.text(),
            cpu: moment.map(|it| it.cpu),
            cgroup_id: moment.map(|_| task.cgroup_id),
            event: &source.name,
            count: Some(count).filter(|_| moment.is_none()),
            period: value,
            kernel,
            user,
            user_end: moment.map(|it| it.user_end.word()),
            user_from_snapshot: moment.map(|it| it.from_snapshot),
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

impl Exporter for Json {
    fn add(&mut self, row: Row<'_>, to: &mut dyn Write) -> io::Result<()> {
        let kernel = self.rendered.get(row.kernel, half);
        let user = self.rendered.get(row.user, half);
        let process: Option<&Metadata> = row.task.process.as_deref();
        write_line(&Line::new(row, &*kernel, &*user, process), &mut self.line, to)?;
        Ok(())
    }

    fn finish(&mut self, about: &About<'_>, to: &mut dyn Write) -> io::Result<()> {
        write_line(&Last::of(about), &mut self.line, to)?;
        Ok(())
    }

    fn account(&self) -> Vec<Cache> {
        vec![self.rendered.account()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        export::tests::sample,
        process::Container,
        sample::{Sample, Task},
    };
    use serde_json::{Value, json};

    fn written(process: Option<&Metadata>) -> Value {
        let (mut to, blank) = (Vec::new(), sample());
        let task = Task { process: process.cloned().map(Arc::new), ..blank.task.clone() };
        Json::new(1 << 20).add((&Sample { task, ..blank }).into(), &mut to).unwrap();
        serde_json::from_slice(&to).unwrap()
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
            service: Some("shop".into()),
            ..Metadata::default()
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
                "service": "shop",
            })
        );
        let nothing = &written(Some(&Metadata::default()))["process"];
        assert_eq!((&nothing["command_line"], &nothing["container"]), (&Value::Null, &Value::Null));
    }
}
