//! The profile of pprof, gzipped: what `go tool pprof`, Pyroscope, Parca, speedscope and others open.
//!
//! All sources are in one profile: of each, how many samples a stack has and what they stand for. The messages are
//! those of <https://github.com/google/pprof/blob/main/proto/profile.proto>.

mod labels;
mod values;

use std::io::{self, Write};

use flate2::{Compression, GzBuilder};
use prost::Message as _;

use self::{
    labels::{Keys, Who},
    values::Values,
};
use super::{
    about::About,
    format::{Export, Format, Processes},
    numbered::{self, Numbered},
    tables::Tables,
};
use crate::{
    printable::printable,
    profile::{Entry, Profile},
    profile_proto as proto,
};

/// The format, by name.
pub const FORMAT: Format = Format {
    name: "pprof",
    help: "Gzipped protobuf, at the end, for `go tool pprof` and all that reads its profiles",
    extensions: &["pb.gz", "pprof"],
    processes: Processes::Always,
    is_binary: true,
    viewers: "go tool pprof -http=: FILE, pprof.me, speedscope.app",
    has_ledger: false,
    export: Export::Whole(write),
};

/// So many samples are encoded at a time.
const CHUNK: usize = 1024;

fn write(profile: &Profile, about: &About<'_>, to: &mut dyn Write) -> io::Result<()> {
    // Without a time and a name, so that the same profile gives the same bytes.
    let mut gzip = GzBuilder::new().write(to, Compression::default());
    write_messages(profile, about, &mut gzip)?;
    gzip.finish()?;
    Ok(())
}

/// The same, not packed.
pub(super) fn unpacked(profile: &Profile, about: &About<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    write_messages(profile, about, &mut bytes)?;
    Ok(bytes)
}

/// What was not packed, packed.
pub(super) fn packed(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().write(Vec::new(), Compression::default());
    gzip.write_all(bytes)?;
    gzip.finish()
}

/// A sample with the numbers of what it refers to.
struct Row {
    who: u32,
    locations: Vec<u32>,
    slot: usize,
    count: u64,
    value: u64,
}

fn write_messages(profile: &Profile, about: &About<'_>, to: &mut impl Write) -> io::Result<()> {
    let mut tables = Tables::default();
    let mut people = Numbered::default();
    let row = |entry: &Entry| {
        let Entry { source, task, kernel, user, count, value } = entry;
        let who = people.number(Who::of(task, &mut tables));
        let locations = tables.stack(kernel, user, *count);
        Row { who, locations, slot: source.slot, count: *count, value: *value }
    };
    let mut rows: Vec<Row> = profile.entries().map(row).collect();
    let keys = Keys::of(&mut tables);
    let values = Values::of(about, profile, &mut tables);
    let comments: Vec<u32> = about.comments.iter().map(|it| tables.text(&printable(it))).collect();
    let mut tables = tables.finish();

    let mut to = Parts { to, bytes: Vec::new() };
    let types = values.types(&tables);
    let default = types.get(about.default_column).copied();
    to.put(&proto::Profile {
        default_sample_type: default.map_or(0, |it| it.r#type),
        period_type: values.period_type(&tables),
        sample_type: types,
        period: values.period(),
        time_nanos: about.begun_ns.and_then(|it| it.try_into().ok()).unwrap_or_default(),
        duration_nanos: about.duration_ns.unwrap_or_default().try_into().unwrap_or(i64::MAX),
        comment: comments.into_iter().map(|it| tables.text(it)).collect(),
        ..proto::Profile::default()
    })?;
    let (people, places) = people.in_order(|who: Who, _| who.placed(&tables));
    let labels: Vec<Vec<proto::Label>> =
        people.iter().map(|who| who.labels(&keys, &tables)).collect();
    for row in &mut rows {
        row.who = places.of(row.who);
        row.locations.iter_mut().for_each(|it| *it = tables.location(*it));
    }
    rows.sort_unstable_by(|a, b| (a.who, &a.locations).cmp(&(b.who, &b.locations)));
    let mut samples = rows.chunk_by(|a, b| (a.who, &a.locations) == (b.who, &b.locations));
    loop {
        let some = samples.by_ref().take(CHUNK);
        let sample: Vec<_> = some.filter_map(|rows| sample(rows, &values, &labels)).collect();
        if sample.is_empty() {
            break;
        }
        to.put(&proto::Profile { sample, ..proto::Profile::default() })?;
    }
    to.put(&proto::Profile {
        mapping: std::mem::take(&mut tables.mappings),
        location: std::mem::take(&mut tables.locations),
        function: std::mem::take(&mut tables.functions),
        string_table: std::mem::take(&mut tables.texts).into_iter().map(String::from).collect(),
        ..proto::Profile::default()
    })
}

/// Writes a profile part by part: one message behind another is the same as one.
struct Parts<W> {
    to: W,
    bytes: Vec<u8>,
}

impl<W: Write> Parts<W> {
    fn put(&mut self, part: &proto::Profile) -> io::Result<()> {
        self.bytes.clear();
        part.encode(&mut self.bytes).map_err(io::Error::other)?;
        self.to.write_all(&self.bytes)
    }
}

/// One sample of rows that have the same thread and stack.
fn sample(rows: &[Row], values: &Values, labels: &[Vec<proto::Label>]) -> Option<proto::Sample> {
    let first = rows.first()?;
    let mut value = vec![0_i64; values.len()];
    for row in rows {
        let at = values.of_slot(row.slot);
        let (skipped, at) = at;
        for (sum, more) in
            value.iter_mut().skip(at).zip([row.count, row.value].iter().skip(skipped))
        {
            *sum = sum.saturating_add(i64::try_from(*more).unwrap_or(i64::MAX));
        }
    }
    let who = usize::try_from(first.who).ok();
    let label = who.and_then(|who| labels.get(who)).cloned().unwrap_or_default();
    let location_id = first.locations.iter().map(|it| numbered::id(*it)).collect();
    Some(proto::Sample { location_id, value, label })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::tests::{sample, written};

    #[test]
    fn the_bytes_do_not_tell_when_they_were_written() {
        let sample = sample();
        let source = (*sample.source).clone();
        // Deflate, no name, no time, of no known system: RFC 1952.
        let bytes = written(write, &[sample], &[source], 1 << 20);
        assert_eq!(bytes[..10], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);
    }
}
