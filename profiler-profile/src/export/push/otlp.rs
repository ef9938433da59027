//! OTLP profiles (`v1development`), as a body of a POST to a receiver, gzipped.
//!
//! A resource is a service in a container. Each source has a profile there. What has become of the samples of the window, all
//! services together, is in the attributes of each profile: those of a scope would be labels of series to Pyroscope.

use std::{collections::BTreeMap, io};

use opentelemetry_proto::tonic::{
    collector::profiles::v1development::{
        ExportProfilesServiceRequest, ExportProfilesServiceResponse,
    },
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value},
    profiles::v1development as proto,
    resource::v1::Resource,
};
use prost::Message as _;
use rustc_hash::FxHashMap;

use super::{
    Request, Sender,
    series::{self, Series, Whose},
};
use crate::{
    export::{
        about::{About, Sampled},
        pprof::packed,
        tables::{Finished, Style, Tables},
    },
    printable::printable,
    profile::{Entry, Profile},
    profile_proto,
};

const STYLE: Style = Style { kernel: "vmlinux", says_unknown: false };

/// The requests of a window.
///
/// # Errors
///
/// None that is known: memory is what is written to.
pub fn encode(profile: &Profile, about: &About<'_>, to: &Sender) -> io::Result<Vec<Request>> {
    let mut about = about.clone();
    let series = series::of(profile, &mut about);
    let mut make = |series: &[Series]| {
        let bytes = request(series, &about, to).encode_to_vec();
        let len = bytes.len();
        Ok((bytes, len))
    };
    let pack = |(bytes, samples): (Vec<u8>, u64)| Ok(Request { body: packed(&bytes)?, samples });
    super::split(&series, to.max_bytes, &mut make)?.into_iter().map(pack).collect()
}

/// What a receiver has refused of a request that it has taken: how many profiles, and why. `None` if the answer is none.
#[must_use]
pub fn rejected(answer: &[u8]) -> Option<(u64, String)> {
    let answer = ExportProfilesServiceResponse::decode(answer).ok()?;
    let partial = answer.partial_success.unwrap_or_default();
    Some((u64::try_from(partial.rejected_profiles).unwrap_or(0), partial.error_message))
}

/// The tables that samples refer to. Index 0 of each is the one that is nothing.
struct Dictionary {
    tables: Finished,
    /// Those that are not yet in the tables' texts.
    texts: FxHashMap<String, usize>,
    more_texts: Vec<String>,
    attributes: Vec<proto::KeyValueAndUnit>,
    /// By the text of the key and the value.
    known: FxHashMap<(i32, String), i32>,
    stacks: Vec<proto::Stack>,
    stack_places: FxHashMap<Vec<u32>, i32>,
}

/// What of a source is sent.
struct Sent {
    sample_type: (String, &'static str),
    period_type: (String, &'static str),
    period: u64,
    /// Whether it is the count of samples, or else what they stand for.
    is_count: bool,
}

impl Sent {
    fn of(slot: usize, source: &Sampled, about: &About<'_>, entries: &[&Entry]) -> Self {
        let account = about.ledger.and_then(|it| it.sources.get(slot));
        let of_frequency = account.and_then(|it| 1_000_000_000_u64.checked_div(it.frequency?));
        if source.is_time()
            && let Some(counts) = &source.counts
        {
            return Self {
                sample_type: (counts.name.to_string(), "count"),
                period_type: (source.values.name.to_string(), "nanoseconds"),
                period: of_frequency.or(account.and_then(|it| it.period)).unwrap_or(0),
                is_count: true,
            };
        }
        let (count, value) = entries.iter().fold((0_u64, 0_u64), |(count, value), it| {
            (count.saturating_add(it.count), value.saturating_add(it.value))
        });
        let name = source.values.name.to_string();
        let unit = if source.is_time() { "nanoseconds" } else { "count" };
        let mean = value.checked_div(count).unwrap_or(0);
        let period = account.and_then(|it| it.period).unwrap_or(mean);
        Self {
            sample_type: (name.clone(), unit),
            period_type: (name, unit),
            period,
            is_count: false,
        }
    }
}

fn request(series: &[Series], about: &About<'_>, to: &Sender) -> ExportProfilesServiceRequest {
    let mut tables = Tables::new(STYLE);
    let numbers: Vec<Vec<Vec<u32>>> = series
        .iter()
        .map(|it| it.entries.iter())
        .map(|entries| entries.map(|it| tables.stack(&it.kernel, &it.user, it.count)).collect())
        .collect();
    let mut dictionary = Dictionary::new(tables.finish());
    let ledger = dictionary.ledger(about);
    let mut resources = Vec::new();
    for (series, stacks) in series.iter().zip(&numbers) {
        let mut profiles = Vec::new();
        for (slot, source) in about.sources.iter().enumerate() {
            let of_source = series.entries.iter().zip(stacks);
            let of_source = of_source.filter(|(it, _)| it.source.slot == slot);
            let (entries, stacks): (Vec<&Entry>, Vec<&Vec<u32>>) = of_source.unzip();
            if entries.is_empty() {
                continue;
            }
            let sent = Sent::of(slot, source, about, &entries);
            let mut profile = dictionary.profile(&sent, &entries, &stacks);
            profile.time_unix_nano =
                about.begun_ns.and_then(|it| it.try_into().ok()).unwrap_or_default();
            profile.duration_nano = about.duration_ns.unwrap_or_default();
            profile.attribute_indices.clone_from(&ledger);
            profiles.push(profile);
        }
        resources.push(resource(&series.whose, profiles, about, to));
    }
    ExportProfilesServiceRequest {
        resource_profiles: resources,
        dictionary: Some(dictionary.finish()),
    }
}

fn resource(
    whose: &Whose,
    profiles: Vec<proto::Profile>,
    about: &About<'_>,
    to: &Sender,
) -> proto::ResourceProfiles {
    let own = [
        ("service.name", Some(&whose.service)),
        ("container.id", whose.container.as_ref()),
        ("k8s.pod.uid", whose.pod.as_ref()),
        ("host.name", Some(&to.host)),
    ];
    let own = own.into_iter().filter_map(|(key, value)| Some((key, value?)));
    let by_user = to.labels.iter().map(|(key, value)| (key.as_str(), value));
    // A key is there once; none of the user's is in the place of ours.
    let all: BTreeMap<&str, &String> = by_user.chain(own).collect();
    let attributes = all.into_iter().map(|(key, value)| KeyValue {
        key: key.to_owned(),
        value: Some(text(&printable(value))),
        ..KeyValue::default()
    });
    let (name, version) = about.producer.split_once(' ').unwrap_or((about.producer, ""));
    let scope = InstrumentationScope {
        name: name.to_owned(),
        version: version.to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_profiles =
        vec![proto::ScopeProfiles { scope: Some(scope), profiles, schema_url: String::new() }];
    let resource = Some(Resource { attributes: attributes.collect(), ..Resource::default() });
    proto::ResourceProfiles { resource, scope_profiles, schema_url: String::new() }
}

impl Dictionary {
    fn new(tables: Finished) -> Self {
        let texts = tables.texts.iter().enumerate();
        Self {
            texts: texts.map(|(at, text)| (text.to_string(), at)).collect(),
            tables,
            more_texts: Vec::new(),
            attributes: vec![proto::KeyValueAndUnit::default()],
            known: FxHashMap::default(),
            stacks: vec![proto::Stack::default()],
            stack_places: FxHashMap::default(),
        }
    }

    fn text(&mut self, text: &str) -> i32 {
        if let Some(at) = self.texts.get(text) {
            return place(*at);
        }
        let at = self.texts.len();
        self.texts.insert(text.to_owned(), at);
        self.more_texts.push(text.to_owned());
        place(at)
    }

    fn attribute(&mut self, key: &str, value: Value) -> i32 {
        let key = self.text(key);
        let next = place(self.attributes.len());
        let at = *self.known.entry((key, format!("{value:?}"))).or_insert(next);
        if at == next {
            let value = Some(AnyValue { value: Some(value) });
            self.attributes.push(proto::KeyValueAndUnit {
                key_strindex: key,
                value,
                unit_strindex: 0,
            });
        }
        at
    }

    /// What has become of all samples of the window.
    fn ledger(&mut self, about: &About<'_>) -> Vec<i32> {
        let Some(ledger) = about.ledger else { return Vec::new() };
        // Two of one name are one here, since a key is there once.
        let mut all: Vec<(String, u64)> = Vec::new();
        for source in &ledger.sources {
            let total = &source.total;
            for (what, count) in [
                ("expected", total.expected),
                ("delivered", total.delivered),
                ("filtered", total.filtered.total()),
                ("lost", total.lost.total()),
            ] {
                let event = if ledger.sources.len() == 1 {
                    String::new()
                } else {
                    format!("{}.", printable(&source.event))
                };
                let key = format!("profiler.samples.{event}{what}");
                match all.iter_mut().find(|(it, _)| *it == key) {
                    Some((_, sum)) => *sum = sum.saturating_add(count),
                    None => all.push((key, count)),
                }
            }
        }
        let attribute = |(key, count): (String, u64)| {
            self.attribute(&key, Value::IntValue(i64::try_from(count).unwrap_or(i64::MAX)))
        };
        all.into_iter().map(attribute).collect()
    }

    fn profile(&mut self, sent: &Sent, entries: &[&Entry], stacks: &[&Vec<u32>]) -> proto::Profile {
        let mut kind = |(name, unit): &(String, &str)| {
            let (type_strindex, unit_strindex) = (self.text(&printable(name)), self.text(unit));
            Some(proto::ValueType { type_strindex, unit_strindex })
        };
        let (sample_type, period_type) = (kind(&sent.sample_type), kind(&sent.period_type));
        // Two stacks that differ in addresses only are one here.
        let mut values: FxHashMap<i32, i64> = FxHashMap::default();
        for (entry, stack) in entries.iter().zip(stacks) {
            let value = if sent.is_count { entry.count } else { entry.value };
            let sum = values.entry(self.stack(stack)).or_default();
            *sum = sum.saturating_add(i64::try_from(value).unwrap_or(i64::MAX));
        }
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_unstable();
        let sample = |(stack_index, value)| proto::Sample {
            stack_index,
            values: vec![value],
            ..proto::Sample::default()
        };
        proto::Profile {
            sample_type,
            samples: values.into_iter().map(sample).collect(),
            period_type,
            period: i64::try_from(sent.period).unwrap_or(i64::MAX),
            ..proto::Profile::default()
        }
    }

    /// The place of a stack, of numbers of locations, innermost first.
    fn stack(&mut self, numbers: &[u32]) -> i32 {
        let locations: Vec<u32> = numbers.iter().map(|it| self.tables.location(*it)).collect();
        if locations.is_empty() {
            return 0;
        }
        let next = place(self.stacks.len());
        let at = *self.stack_places.entry(locations.clone()).or_insert(next);
        if at == next {
            let location_indices =
                locations.iter().map(|it| i32::try_from(*it).map_or(0, |it| it.saturating_add(1)));
            self.stacks.push(proto::Stack { location_indices: location_indices.collect() });
        }
        at
    }

    fn finish(mut self) -> proto::ProfilesDictionary {
        let mut mappings = std::mem::take(&mut self.tables.mappings);
        // They are the last. What a function of Python is in, is its file.
        mappings.retain(|it| !self.tables.of_python.contains(&it.id));
        let mut mapping_table = vec![proto::Mapping::default()];
        for mapping in &mappings {
            let build_id = index(mapping.build_id).and_then(|at| self.tables.texts.get(at));
            let build_id = build_id.filter(|it| !it.is_empty()).map(ToString::to_string);
            let attribute = build_id.map(|it| {
                self.attribute("process.executable.build_id.gnu", Value::StringValue(it))
            });
            mapping_table.push(proto::Mapping {
                filename_strindex: number(mapping.filename),
                attribute_indices: attribute.into_iter().collect(),
                ..proto::Mapping::default()
            });
        }
        let locations = std::mem::take(&mut self.tables.locations);
        let mut location_table = vec![proto::Location::default()];
        for location in &locations {
            let (kind, mapping_id) = match location.mapping_id {
                it if self.tables.of_kernel.contains(&it) => ("kernel", it),
                it if self.tables.of_python.contains(&it) => ("cpython", 0),
                it => ("native", it),
            };
            let kind = self.attribute("profile.frame.type", Value::StringValue(kind.into()));
            location_table.push(proto::Location {
                mapping_index: id(mapping_id),
                address: location.address,
                lines: location.line.iter().map(line).collect(),
                attribute_indices: vec![kind],
            });
        }
        let function = |it: &profile_proto::Function| proto::Function {
            name_strindex: number(it.name),
            filename_strindex: number(it.filename),
            ..proto::Function::default()
        };
        let functions = self.tables.functions.iter().map(function);
        let texts = self.tables.texts.iter().map(ToString::to_string);
        proto::ProfilesDictionary {
            mapping_table,
            location_table,
            function_table: [proto::Function::default()].into_iter().chain(functions).collect(),
            link_table: vec![proto::Link::default()],
            string_table: texts.chain(self.more_texts).collect(),
            attribute_table: self.attributes,
            stack_table: self.stacks,
        }
    }
}

fn line(it: &profile_proto::Line) -> proto::Line {
    proto::Line { function_index: id(it.function_id), line: it.line, column: 0 }
}

fn text(it: &str) -> AnyValue {
    AnyValue { value: Some(Value::StringValue(it.to_owned())) }
}

/// An id of pprof, of which 0 is none, is a place in a table here whose first is nothing.
fn id(id: u64) -> i32 {
    i32::try_from(id).unwrap_or(0)
}

fn number(place: i64) -> i32 {
    i32::try_from(place).unwrap_or(0)
}

fn index(place: i64) -> Option<usize> {
    usize::try_from(place).ok()
}

fn place(at: usize) -> i32 {
    i32::try_from(at).unwrap_or(0)
}

#[cfg(test)]
mod tests;
