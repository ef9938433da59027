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
