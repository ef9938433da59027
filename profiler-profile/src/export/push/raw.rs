//! Series as profiles of pprof with labels: what Pyroscope and Parca take.

use std::io;

use super::{
    Sender,
    series::{self, Series, Whose},
};
use crate::{
    export::{about::About, pprof},
    printable::printable,
    profile::Profile,
};

/// More samples in a profile, Pyroscope refuses.
const MAX_SAMPLES: usize = 16_000;

/// A profile of a series.
pub(super) struct Raw {
    pub(super) labels: Vec<(String, String)>,
    /// Not packed yet.
    unpacked: Vec<u8>,
}

impl Raw {
    /// The profile, gzipped.
    pub(super) fn packed(&self) -> io::Result<Vec<u8>> {
        pprof::packed(&self.unpacked)
    }
}

/// The profiles of a window, in requests, with the samples of each.
pub(super) fn requests(
    profile: &Profile,
    about: &About<'_>,
    to: &Sender,
) -> io::Result<Vec<(Vec<Raw>, u64)>> {
    let mut about = about.clone();
    let series = series::of(profile, &mut about);
    name_types(&mut about);
    let mut make = |some: &[Series]| {
        let raw = some.iter().map(|it| {
            let unpacked = pprof::unpacked(&it.profile(), &about)?;
            Ok(Raw { labels: labels(&it.whose, to), unpacked })
        });
        let raw: Vec<Raw> = raw.collect::<io::Result<_>>()?;
        let fits = some.iter().all(|it| it.entries.len() <= MAX_SAMPLES);
        let bytes = raw.iter().map(|it| it.unpacked.len()).sum();
        Ok((raw, if fits { bytes } else { usize::MAX }))
    };
    super::split(&series, to.max_bytes, &mut make)
}

/// Has types have names of letters, digits and `_` only: of others, Pyroscope refuses the whole profile.
fn name_types(about: &mut About<'_>) {
    let is_taken = |it: char| it.is_ascii_alphanumeric() || it == '_';
    for source in &mut about.sources {
        for it in source.counts.iter_mut().chain([&mut source.values]) {
            it.name = it.name.replace(|it: char| !is_taken(it), "_").into();
        }
    }
}

/// Labels as Prometheus has them, sorted by their names, each of which is there once.
fn labels(whose: &Whose, to: &Sender) -> Vec<(String, String)> {
    let own = [
        ("__name__", Some("process_cpu")),
        ("service_name", Some(whose.service.as_str())),
        ("container_id", whose.container.as_deref()),
        ("pod_uid", whose.pod.as_deref()),
        ("host", Some(to.host.as_str())),
    ];
    let own = own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let by_user = to.labels.iter().map(|(name, value)| (name.replace('.', "_"), value.as_str()));
    let all = by_user.chain(own).map(|(name, value)| (name, printable(value).into_owned()));
    let all: std::collections::BTreeMap<_, _> = all.collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::{
        export::{
            push::tests::sender,
            tests::{ledger, options, sample},
        },
        profile_proto as proto,
        source::{Counts, Rate, Source},
    };

    #[test]
    fn types_have_names_that_stores_take() {
        let source = |slot, name: &'static str, counts| Source {
            slot,
            name: name.into(),
            counts,
            rate: Rate::Period(1),
        };
        let all = [
            source(0, "page-faults", Counts::Events),
            source(1, "cycles:u", Counts::Events),
            source(2, "cpu/event=0x3c/", Counts::Events),
        ];
        for (sources, expected) in [
            (&all[..1], &["samples", "page_faults"][..]),
            (
                &all[..],
                &[
                    "page_faults_samples",
                    "page_faults",
                    "cycles_u_samples",
                    "cycles_u",
                    "cpu_event_0x3c__samples",
                    "cpu_event_0x3c_",
                ],
            ),
        ] {
            let ledger = ledger(sources);
            let about = About::of_run(&ledger, &options());
            let mut profile = Profile::new(1 << 20);
            profile.add(&sample());
            let requests = requests(&profile, &about, &sender()).unwrap();
            let it = proto::Profile::decode(&*requests[0].0[0].unpacked).unwrap();
            let text = |at: i64| it.string_table[usize::try_from(at).unwrap()].as_str();
            assert!(it.sample_type.iter().map(|it| text(it.r#type)).eq(expected.iter().copied()));
            assert_eq!(text(it.period_type.unwrap().r#type), "page_faults");
            assert_eq!(text(it.default_sample_type), expected[1]);
        }
    }
}
