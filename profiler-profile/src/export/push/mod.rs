//! A window of a run as the requests by which a store takes it.
//!
//! Stores keep a series for each set of labels, and pay for each. So what is sent tells services and containers apart, and
//! neither processes nor threads: equal stacks of a service are one sample.

pub mod otlp;
pub mod parca;
pub mod pyroscope;
mod raw;
mod series;

use std::io;

use self::series::Series;
use super::about::About;
use crate::profile::Profile;

/// Who sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sender {
    /// The name of the machine.
    pub host: String,
    /// What the user wants all series to have beside.
    pub labels: Vec<(String, String)>,
    /// So many bytes a request may have, before it is packed.
    pub max_bytes: usize,
}

/// A request to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its body.
    pub body: Vec<u8>,
    /// The samples that are in it.
    pub samples: u64,
}

/// Makes requests of a window, each within the sender's limit, as long as it has more than one stack.
pub type Encode = fn(&Profile, &About<'_>, &Sender) -> io::Result<Vec<Request>>;

/// Something of some series, and its bytes.
type Make<'a, T> = dyn FnMut(&[Series]) -> io::Result<(T, usize)> + 'a;

/// What is made of all series, in parts of at most so many bytes, with their samples: what is too large is halved.
fn split<T>(
    series: &[Series],
    max_bytes: usize,
    make: &mut Make<'_, T>,
) -> io::Result<Vec<(T, u64)>> {
    let mut parts = Vec::new();
    let mut left = vec![series.to_vec()];
    while let Some(some) = left.pop() {
        if some.is_empty() {
            continue;
        }
        let (made, bytes) = make(&some)?;
        if bytes > max_bytes
            && let Some((first, second)) = halves(&some)
        {
            // The first half is made first.
            left.extend([second, first]);
            continue;
        }
        parts.push((made, some.iter().map(Series::samples).fold(0, u64::saturating_add)));
    }
    Ok(parts)
}

fn halves(series: &[Series]) -> Option<(Vec<Series>, Vec<Series>)> {
    if let [one] = series {
        return one.halves().map(|(first, second)| (vec![first], vec![second]));
    }
    series.split_at_checked(series.len() / 2).map(|(first, second)| (first.into(), second.into()))
}

#[cfg(test)]
pub(super) mod tests {
    use std::{io::Read as _, sync::Arc, time::Duration};

    use prost::Message as _;

    use super::*;
    use crate::{
        export::tests::{ledger, location, options, sample},
        frame::Frame,
        process::{Container, Metadata},
        sample::Sample,
        source::{Counts, Rate, Source},
        store::Store,
    };

    pub(in crate::export) fn sender() -> Sender {
        let labels = vec![("region".into(), "eu".into())];
        Sender { host: "node-1".into(), labels, max_bytes: 4 << 20 }
    }

    /// Three stacks: two of `shop` in a container, of three and one samples by two processes, and one of the kernel.
    pub(in crate::export) fn with_window<T>(use_it: impl FnOnce(&Profile, &About<'_>) -> T) -> T {
        let source = |name: &'static str, counts| Source {
            slot: 0,
            name: name.into(),
            counts,
            rate: Rate::Frequency(20),
        };
        let source = source("cpu-clock", Counts::Clock);
        let mut store = Store::default();
        let frame = |name: Option<&str>, module: Option<&str>, offset| Frame {
            symbol: name.map(Arc::from),
            module: module.map(Arc::from),
            offset,
            ..Frame::default()
        };
        let main = location(1, &[frame(Some("main"), Some("/usr/bin/shop"), 4)]);
        let buy = location(
            2,
            &[
                frame(Some("price"), Some("/usr/bin/shop"), 5),
                frame(Some("buy"), Some("/usr/bin/shop"), 5),
            ],
        );
        let unnamed = location(3, &[frame(None, Some("/usr/lib/libz.so"), 0x1234)]);
        let read = location(4, &[frame(Some("vfs_read"), None, 0)]);
        let shop = Metadata {
            service: Some("shop".into()),
            container: Some(Container { id: "c0ffee".into(), runtime: None }),
            pod: Some("1-2-3".into()),
            ..Metadata::default()
        };
        let of_kernel = Metadata { service: Some("kernel".into()), ..Metadata::default() };
        let (shop, of_kernel) = (Arc::new(shop), Arc::new(of_kernel));
        let first = store.intern(vec![buy, main.clone()]);
        let second = store.intern(vec![unnamed, main]);
        let (kernel, none) = (store.intern(vec![read]), store.empty());
        let mut profile = Profile::new(1 << 20);
        for (pid, process, kernel, user) in [
            (1, &shop, &none, &first),
            (2, &shop, &none, &first),
            (2, &shop, &none, &first),
            (2, &shop, &kernel, &second),
            (3, &of_kernel, &kernel, &none),
        ] {
            let mut sample = Sample {
                source: Arc::new(source.clone()),
                kernel: Arc::clone(kernel),
                user: Arc::clone(user),
                value: 50_000_001,
                ..sample()
            };
            sample.task.tgid = pid;
            sample.task.tid = pid;
            sample.task.process = Some(Arc::clone(process));
            profile.add(&sample);
        }
        let ledger = ledger(&[source]);
        let mut about = About::of_run(&ledger, &options());
        about.duration_ns = u64::try_from(Duration::from_secs(60).as_nanos()).ok();
        use_it(&profile, &about)
    }

    /// The samples and the times of a profile, as our own reader of pprof finds them.
    pub(in crate::export) fn sums(packed: &[u8]) -> Vec<u64> {
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
        let profile = crate::profile_proto::Profile::decode(&*bytes).unwrap();
        let mut sums = vec![0_u64; profile.sample_type.len()];
        for sample in &profile.sample {
            assert!(sample.label.is_empty() && !sample.location_id.is_empty());
            for (sum, value) in sums.iter_mut().zip(&sample.value) {
                *sum += u64::try_from(*value).unwrap();
            }
        }
        sums
    }

    #[test]
    fn what_is_too_large_is_halved_until_it_fits_and_nothing_is_lost() {
        with_window(|profile, about| {
            let series = series::of(profile, &mut about.clone());
            let mut stacks = |some: &[Series]| {
                let stacks: usize = some.iter().map(|it| it.entries.len()).sum();
                Ok((stacks, stacks))
            };
            assert_eq!(split(&series, 3, &mut stacks).unwrap(), [(3, 5)]);
            assert_eq!(split(&series, 2, &mut stacks).unwrap(), [(1, 1), (2, 4)]);
            let mut single = split(&series, 0, &mut stacks).unwrap();
            single.sort_unstable();
            assert_eq!(single, [(1, 1), (1, 1), (1, 3)]);
            assert!(split(&[], 3, &mut stacks).unwrap().is_empty());
        });
    }
}
