#![expect(clippy::cast_sign_loss, reason = "places in tables are not negative")]

use std::{
    io::{Read as _, Write as _},
    process::{Command, Stdio},
};

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesPartialSuccess;
use profiler_testing::skipped;

use super::*;
use crate::{
    export::{
        push::tests::{sender, with_window},
        tests::{ledger, location, options, python_frame, sample},
    },
    frame::Frame,
    sample::Sample,
    source::{Counts, Rate, Source},
    store::Store,
};

fn unpacked(request: &Request) -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&*request.body).read_to_end(&mut bytes).unwrap();
    bytes
}

fn decoded(request: &Request) -> ExportProfilesServiceRequest {
    ExportProfilesServiceRequest::decode(&*unpacked(request)).unwrap()
}

fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a Value> {
    attributes.iter().find(|it| it.key == key)?.value.as_ref()?.value.as_ref()
}

#[test]
fn a_resource_is_a_service_in_a_container_and_its_samples_are_counts() {
    let requests = with_window(|profile, about| encode(profile, about, &sender()).unwrap());
    assert_eq!((requests.len(), requests[0].samples), (1, 5));
    let request = decoded(&requests[0]);
    let dictionary = request.dictionary.unwrap();
    let text = |at: i32| dictionary.string_table[at as usize].as_str();
    let [kernel, shop] = &request.resource_profiles[..] else { panic!("two services") };
    let attributes = &shop.resource.as_ref().unwrap().attributes;
    for (key, value) in [
        ("service.name", "shop"),
        ("container.id", "c0ffee"),
        ("k8s.pod.uid", "1-2-3"),
        ("host.name", "node-1"),
        ("region", "eu"),
    ] {
        assert_eq!(attribute(attributes, key), Some(&Value::StringValue(value.into())), "{key}");
    }
    // What is not known is not said.
    let attributes = &kernel.resource.as_ref().unwrap().attributes;
    assert_eq!(attribute(attributes, "container.id"), None);

    let profile = &shop.scope_profiles[0].profiles[0];
    let kind = |it: &Option<proto::ValueType>| {
        let it = it.unwrap();
        (text(it.type_strindex), text(it.unit_strindex))
    };
    assert_eq!(kind(&profile.sample_type), ("samples", "count"));
    assert_eq!(kind(&profile.period_type), ("cpu", "nanoseconds"));
    assert_eq!((profile.period, profile.duration_nano), (50_000_000, 60_000_000_000));
    let mut stacks = Vec::new();
    for sample in &profile.samples {
        let stack = &dictionary.stack_table[sample.stack_index as usize].location_indices;
        let frames = stack.iter().map(|at| {
            let location = &dictionary.location_table[*at as usize];
            let mapping = &dictionary.mapping_table[location.mapping_index as usize];
            let name = |it: &proto::Line| {
                text(dictionary.function_table[it.function_index as usize].name_strindex)
            };
            let names: Vec<_> = location.lines.iter().map(name).collect();
            let kind = &dictionary.attribute_table[location.attribute_indices[0] as usize];
            assert_eq!(text(kind.key_strindex), "profile.frame.type");
            let Some(Value::StringValue(kind)) = &kind.value.as_ref().unwrap().value else {
                panic!("a text")
            };
            let file = text(mapping.filename_strindex);
            format!("{} {} {:x} {}", names.join("<"), file, location.address, kind)
        });
        stacks.push((frames.collect::<Vec<_>>(), sample.values.clone()));
    }
    stacks.sort();
    let main = "main /usr/bin/shop 0 native".to_owned();
    assert_eq!(
        stacks,
        [
            (vec!["price<buy /usr/bin/shop 0 native".to_owned(), main.clone()], vec![3]),
            (
                vec![
                    "vfs_read vmlinux 0 kernel".to_owned(),
                    // Whoever has its debug info can name it.
                    " /usr/lib/libz.so 1234 native".to_owned(),
                    main
                ],
                vec![1]
            ),
        ]
    );
    // What has become of all samples.
    let of_profile = profile.attribute_indices.iter().map(|at| {
        let it = &dictionary.attribute_table[*at as usize];
        text(it.key_strindex)
    });
    assert!(of_profile.eq(
        ["expected", "delivered", "filtered", "lost"].map(|it| format!("profiler.samples.{it}"))
    ));
}

#[test]
fn functions_of_python_are_in_files_and_in_no_mapping() {
    let mut store = Store::default();
    let (symbol, module) = (Some("main".into()), Some("/usr/bin/python3".into()));
    let native = location(2, &[Frame { symbol, module, ..Frame::default() }]);
    let user = store.intern(vec![location(1, &[python_frame("run", "/app/x.py")]), native]);
    let sample = Sample { user, ..sample() };
    let mut profile = Profile::new(1 << 20);
    profile.add(&sample);
    let ledger = ledger(&[(*sample.source).clone()]);
    let about = About::of_run(&ledger, &options());
    let requests = encode(&profile, &about, &sender()).unwrap();
    let it = decoded(&requests[0]).dictionary.unwrap();
    let text = |at: i32| it.string_table[at as usize].as_str();
    let files = it.mapping_table.iter().map(|it| text(it.filename_strindex));
    assert!(files.eq(["", "/usr/bin/python3"]));
    let frames = it.location_table.iter().skip(1).map(|location| {
        let function = &it.function_table[location.lines[0].function_index as usize];
        let kind = &it.attribute_table[location.attribute_indices[0] as usize].value;
        let Some(Value::StringValue(kind)) = &kind.as_ref().unwrap().value else {
            panic!("a text")
        };
        (
            text(function.name_strindex),
            text(function.filename_strindex),
            location.mapping_index,
            location.lines[0].line,
            kind.as_str(),
        )
    });
    let mut frames: Vec<_> = frames.collect();
    frames.sort_unstable();
    assert_eq!(frames, [("main", "", 1, 0, "native"), ("run", "/app/x.py", 0, 7, "cpython")]);
}

#[test]
fn a_key_is_there_once() {
    let labels = vec![("host.name".into(), "other".into()), ("region".into(), "eu".into())];
    let source = |slot| Source {
        slot,
        name: "cycles".into(),
        counts: Counts::Events,
        rate: Rate::Period(slot as u64 + 1),
    };
    let ledger = ledger(&[source(0), source(1)]);
    let about = About::of_run(&ledger, &options());
    let mut profile = Profile::new(1 << 20);
    profile.add(&sample());
    let sender = Sender { labels, ..sender() };
    let request = decoded(&encode(&profile, &about, &sender).unwrap()[0]);
    let resource = request.resource_profiles[0].resource.as_ref().unwrap();
    let keys = resource.attributes.iter().map(|it| it.key.as_str());
    assert!(keys.eq(["host.name", "region", "service.name"]));
    assert_eq!(
        attribute(&resource.attributes, "host.name"),
        Some(&Value::StringValue("node-1".into()))
    );
    let it = request.dictionary.unwrap();
    let of_profile = &request.resource_profiles[0].scope_profiles[0].profiles[0].attribute_indices;
    let keys = of_profile.iter().map(|at| it.attribute_table[*at as usize].key_strindex);
    let keys: Vec<&str> = keys.map(|at| it.string_table[at as usize].as_str()).collect();
    assert_eq!(
        keys,
        ["expected", "delivered", "filtered", "lost"]
            .map(|it| format!("profiler.samples.cycles.{it}"))
    );
}

fn distinct<T: std::fmt::Debug>(all: &[T]) {
    let mut texts: Vec<_> = all.iter().map(|it| format!("{it:?}")).collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), all.len(), "{all:?}");
}

#[test]
fn index_0_is_nothing_and_nothing_is_there_twice() {
    let requests = with_window(|profile, about| encode(profile, about, &sender()).unwrap());
    let it = decoded(&requests[0]).dictionary.unwrap();
    assert_eq!(it.mapping_table[0], proto::Mapping::default());
    assert_eq!(it.location_table[0], proto::Location::default());
    assert_eq!(it.function_table[0], proto::Function::default());
    assert_eq!(it.link_table, [proto::Link::default()]);
    assert_eq!(it.attribute_table[0], proto::KeyValueAndUnit::default());
    assert_eq!(
        (it.stack_table[0].clone(), it.string_table[0].as_str()),
        (proto::Stack::default(), "")
    );
    distinct(&it.mapping_table);
    distinct(&it.location_table);
    distinct(&it.function_table);
    distinct(&it.attribute_table);
    distinct(&it.stack_table);
    distinct(&it.string_table);
}

#[test]
fn a_request_is_within_the_limit_before_it_is_packed() {
    let whole = with_window(|profile, about| encode(profile, about, &sender()).unwrap());
    let max_bytes = unpacked(&whole[0]).len() - 1;
    let small = Sender { max_bytes, ..sender() };
    let requests = with_window(|profile, about| encode(profile, about, &small).unwrap());
    assert_eq!(requests.len(), 2);
    assert!(requests.iter().all(|it| unpacked(it).len() <= max_bytes));
    assert_eq!(requests.iter().map(|it| it.samples).sum::<u64>(), 5);
}

#[test]
fn a_receiver_may_refuse_a_part() {
    assert_eq!(rejected(&[]), Some((0, String::new())));
    let partial =
        ExportProfilesPartialSuccess { rejected_profiles: 2, error_message: "too old".into() };
    let answer = ExportProfilesServiceResponse { partial_success: Some(partial) };
    assert_eq!(rejected(&answer.encode_to_vec()), Some((2, "too old".into())));
    assert_eq!(rejected(b"<html>"), None);
}

/// Another reader, made from the same definitions by others.
const READER: &str = "
import sys
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service
request = service.ExportProfilesServiceRequest.FromString(sys.stdin.buffer.read())
words = request.dictionary.string_table
for resource in request.resource_profiles:
    name = [it.value.string_value for it in resource.resource.attributes if it.key == 'service.name']
    for scope in resource.scope_profiles:
        for profile in scope.profiles:
            kind = words[profile.sample_type.type_strindex]
            period = words[profile.period_type.type_strindex]
            print(name[0], kind, period, profile.period, sum(sum(it.values) for it in profile.samples))
";

#[test]
fn others_read_the_same() {
    let requests = with_window(|profile, about| encode(profile, about, &sender()).unwrap());
    let python = Command::new("python3")
        .args(["-c", READER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut python) = python else { return skipped("python3 is not installed") };
    // It may have ended already.
    let _ = python.stdin.take().unwrap().write_all(&unpacked(&requests[0]));
    let output = python.wait_with_output().unwrap();
    if String::from_utf8_lossy(&output.stderr).contains("No module named") {
        return skipped("Python's package opentelemetry-proto, with profiles, is not installed");
    }
    let expected = "kernel samples cpu 50000000 1\nshop samples cpu 50000000 4\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
}
