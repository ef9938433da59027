//! What Parca takes by `WriteRaw`, in JSON: a profile of pprof for each series.
//!
//! The messages are those of
//! <https://github.com/parca-dev/parca/blob/main/proto/parca/profilestore/v1alpha1/profilestore.proto>.

use std::io;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Serialize;

use super::{
    Request, Sender,
    raw::{self, Raw},
};
use crate::{export::about::About, profile::Profile};

#[derive(Serialize)]
struct WriteRawRequest {
    series: Vec<RawProfileSeries>,
    /// Addresses are those of files.
    normalized: bool,
}

#[derive(Serialize)]
struct RawProfileSeries {
    labels: LabelSet,
    samples: Vec<RawSample>,
}

#[derive(Serialize)]
struct LabelSet {
    labels: Vec<Label>,
}

#[derive(Serialize)]
struct Label {
    name: String,
    value: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RawSample {
    raw_profile: String,
}

/// The requests of a window.
///
/// # Errors
///
/// None that is known: memory is what is written to.
pub fn encode(profile: &Profile, about: &About<'_>, to: &Sender) -> io::Result<Vec<Request>> {
    let request = |(all, samples): (Vec<Raw>, u64)| {
        let series = all.into_iter().map(series).collect::<io::Result<_>>()?;
        let body = serde_json::to_vec(&WriteRawRequest { series, normalized: true })?;
        Ok(Request { body, samples })
    };
    raw::requests(profile, about, to)?.into_iter().map(request).collect()
}

fn series(raw: Raw) -> io::Result<RawProfileSeries> {
    let samples = vec![RawSample { raw_profile: STANDARD.encode(raw.packed()?) }];
    let labels = raw.labels.into_iter().map(|(name, value)| Label { name, value }).collect();
    Ok(RawProfileSeries { labels: LabelSet { labels }, samples })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::export::push::tests::{sender, sums, with_window};

    #[test]
    fn each_series_is_a_profile_in_base64() {
        let requests = with_window(|profile, about| encode(profile, about, &sender()).unwrap());
        let body: Value = serde_json::from_slice(&requests[0].body).unwrap();
        assert_eq!((requests.len(), &body["normalized"]), (1, &Value::Bool(true)));
        let shop = &body["series"][1];
        let label = &shop["labels"]["labels"][5];
        assert_eq!((&label["name"], &label["value"]), (&"service_name".into(), &"shop".into()));
        let profile = shop["samples"][0]["rawProfile"].as_str().unwrap();
        assert_eq!(sums(&STANDARD.decode(profile).unwrap()), [4, 200_000_004]);
    }
}
