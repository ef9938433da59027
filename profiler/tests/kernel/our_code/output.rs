//! What is written, and where to.

use std::{collections::HashSet, process::Stdio};

use serde_json::Value;

use crate::support::{Program, parse_json, profiler, run};

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_dash_writes_to_standard_output() {
    let _load = Program::start("chain.c");
    let dir = tempfile::tempdir().unwrap();
    let output = profiler()
        .args(["-d", "1", "-f", "json", "-o", "-"])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let (samples, summary) = parse_json(&String::from_utf8(output.stdout).unwrap());
    assert!(!samples.is_empty(), "{summary}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn compact_json_announces_what_samples_refer_to() {
    let program = Program::start("chain.c");
    let output =
        run(&["-f", "json-compact", "-F", "499", "-d", "1", "-p", &program.pid(), "--metadata"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let mut announced: HashSet<(String, u64)> = HashSet::new();
    let (mut samples, mut summary) = (0, Value::Null);
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let kind = line["type"].as_str().unwrap();
        let refers = |kind: &str, to: &Value| {
            let is_known = to.as_u64().is_none_or(|id| announced.contains(&(kind.into(), id)));
            assert!(is_known, "{line}");
        };
        match kind {
            "sample" => {
                refers("stack", &line["kernel"]);
                refers("stack", &line["user"]);
                refers("process", &line["process"]);
                assert!(!line["process"].is_null(), "{line}");
                samples += 1;
            }
            "stack" => {
                refers("stack", &line["parent"]);
                refers("function", &line["function"]);
            }
            "function" => refers("module", &line["module"]),
            "summary" => summary = line["summary"].clone(),
            _ => {}
        }
        if let Some(id) = line["id"].as_u64() {
            assert!(announced.insert((kind.into(), id)), "{line}");
        }
    }
    assert!(samples > 0 && summary["delivered"] == samples, "{summary}");
    assert!(text.contains("\"symbol\":\"middle\""), "{text}");
}
