//! What Pyroscope takes by `push.v1.PusherService/Push`: a message with a profile of pprof for each series.
//!
//! The messages are those of <https://github.com/grafana/pyroscope/blob/main/api/push/v1/push.proto>. Fields that nothing here
//! writes are left out.

use std::io;

use prost::Message;

use super::{
    Request, Sender,
    raw::{self, Raw},
};
use crate::{export::about::About, profile::Profile};

/// A larger request, before it is packed, never gets through: Pyroscope takes no more than 2 MB of a tenant at once, unless
/// `ingestion_burst_size_mb` says otherwise, and tells to come back.
const MAX_BYTES: usize = 3 << 19;

#[derive(Clone, PartialEq, Message)]
struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<RawProfileSeries>,
}

#[derive(Clone, PartialEq, Message)]
struct RawProfileSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawSample>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct RawSample {
    /// Gzipped.
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
}

/// The requests of a window.
///
/// # Errors
///
/// None that is known: memory is what is written to.
pub fn encode(profile: &Profile, about: &About<'_>, to: &Sender) -> io::Result<Vec<Request>> {
    let request = |(all, samples): (Vec<Raw>, u64)| {
        let series = all.into_iter().map(series).collect::<io::Result<_>>()?;
        Ok(Request { body: PushRequest { series }.encode_to_vec(), samples })
    };
    let to = Sender { max_bytes: to.max_bytes.min(MAX_BYTES), ..to.clone() };
    raw::requests(profile, about, &to)?.into_iter().map(request).collect()
}

fn series(raw: Raw) -> io::Result<RawProfileSeries> {
    let samples = vec![RawSample { raw_profile: raw.packed()? }];
    let labels = raw.labels.into_iter().map(|(name, value)| LabelPair { name, value });
    Ok(RawProfileSeries { labels: labels.collect(), samples })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        export::{
            push::tests::{sender, sums, with_window},
            tests::{ledger, location, options, sample},
        },
        frame::Frame,
        store::Store,
    };

    #[test]
    fn each_series_is_a_profile_with_labels_and_nobody_s_pid() {
        let requests = with_window(|profile, about| encode(profile, about, &sender()).unwrap());
        let [request] = &requests[..] else { panic!("one request") };
        assert_eq!(request.samples, 5);
        let series = PushRequest::decode(&*request.body).unwrap().series;
        let [kernel, shop] = &series[..] else { panic!("{series:?}") };
        let labels: Vec<_> =
            shop.labels.iter().map(|it| (it.name.as_str(), it.value.as_str())).collect();
        assert_eq!(
            labels,
            [
                ("__name__", "process_cpu"),
                ("container_id", "c0ffee"),
                ("host", "node-1"),
                ("pod_uid", "1-2-3"),
                ("region", "eu"),
                ("service_name", "shop"),
            ]
        );
        assert_eq!(kernel.labels.len(), 4);
        assert_eq!(sums(&shop.samples[0].raw_profile), [4, 200_000_004]);
        assert_eq!(sums(&kernel.samples[0].raw_profile), [1, 50_000_001]);
    }

    #[test]
    fn a_request_is_within_the_limit_before_it_is_packed() {
        let small = Sender { max_bytes: 1, ..sender() };
        let requests = with_window(|profile, about| encode(profile, about, &small).unwrap());
        let samples: Vec<u64> = requests.iter().map(|it| it.samples).collect();
        assert_eq!((samples.len(), samples.iter().sum::<u64>()), (3, 5));
    }

    #[test]
    fn no_request_is_larger_than_what_it_takes_at_once() {
        let mut store = Store::default();
        let mut profile = Profile::new(16 << 20);
        let source = sample().source;
        for (at, letter) in (1..).zip(["a", "b", "c", "d"]) {
            let symbol = Some(letter.repeat(600 << 10).into());
            let of_letter = location(at, &[Frame { symbol, ..Frame::default() }]);
            let user = store.intern(vec![of_letter]);
            profile.add(&crate::sample::Sample { user, ..sample() });
        }
        let ledger = ledger(&[(*source).clone()]);
        let about = About::of_run(&ledger, &options());
        let large = Sender { max_bytes: 4 << 20, ..sender() };
        let requests = encode(&profile, &about, &large).unwrap();
        assert_eq!(requests.iter().map(|it| it.samples).collect::<Vec<_>>(), [2, 2]);
    }
}
