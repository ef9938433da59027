//! Profiles on request, as `go tool pprof` and scrapers ask programs in Go for them: `/debug/pprof/profile`.
//!
//! Address and query: <https://pkg.go.dev/net/http/pprof>; `pid` is ours.

use std::{fmt::Write as _, io, sync::Arc, time::Duration};

use jiff::tz::TimeZone;
use profiler_profile::{
    export::{about::About, format::Options, output::Output, pprof, root::Root},
    profile::Profile,
    source::Source,
};
use tokio::time::sleep;

use crate::{
    kernel,
    output::{
        PRODUCER,
        captures::{Captures, Wanted},
    },
    queue::Depth,
};

/// For how long a profile is taken where that is not said, as programs in Go do.
const DEFAULT_SECONDS: u64 = 30;
const MAX_SECONDS: u64 = 600;
/// Until then the reader has sent what it has read: a round waits for its files, at most `process::tracker::DEADLINE`.
const READ_WITHIN: Duration = Duration::from_millis(300);
/// For how long the naming thread is waited for, and how often it is looked at.
const NAMED_WITHIN: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(20);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    seconds: u64,
    pid: Option<u32>,
}

impl Asked {
    /// What a query says, or what is wrong with it.
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        let mut asked = Self { seconds: DEFAULT_SECONDS, pid: None };
        for part in query.split('&').filter(|it| !it.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match name {
                "seconds" => {
                    let seconds = value.parse().ok();
                    let seconds = seconds.filter(|it| (1..=MAX_SECONDS).contains(it));
                    asked.seconds =
                        seconds.ok_or_else(|| format!("seconds: from 1 to {MAX_SECONDS}"))?;
                }
                "pid" => asked.pid = Some(value.parse().map_err(|_| "pid: a number")?),
                _ => return Err("what there is: seconds, pid".into()),
            }
        }
        Ok(asked)
    }
}

/// What was sampled in a time.
pub(super) struct Taken {
    asked: Asked,
    profile: Profile,
    /// When it was begun; nanoseconds since 1970.
    begun_ns: i128,
    /// Whether some of its samples had no names yet.
    is_short: bool,
}

/// Takes a profile, from now on; `None` if as many are being taken as may be.
pub(super) async fn take(asked: Asked, captures: &Arc<Captures>, depth: &Depth) -> Option<Taken> {
    let time = Duration::from_secs(asked.seconds);
    let from_ns = kernel::monotonic_ns();
    let until_ns = from_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let begun_ns = i128::from(from_ns).saturating_add(kernel::real_time_ahead_ns());
    let capture = captures.begin(Wanted { from_ns, until_ns, tgid: asked.pid })?;
    sleep(time + READ_WITHIN).await;
    let sent = depth.sent();
    let mut waited = Duration::ZERO;
    while depth.done() < sent && waited < NAMED_WITHIN {
        sleep(STEP).await;
        waited += STEP;
    }
    let is_short = depth.done() < sent;
    Some(Taken { asked, profile: capture.end(), begun_ns, is_short })
}

impl Taken {
    /// It in pprof's format.
    pub(super) fn write(&self, sources: &[Arc<Source>]) -> io::Result<Vec<u8>> {
        let Self { asked: Asked { seconds, pid }, profile, begun_ns, is_short } = self;
        let time = Duration::from_secs(*seconds);
        let mut what = format!("{seconds} s of a run");
        if let Some(pid) = pid {
            // Writing to memory does not fail.
            let _ = write!(what, ", process {pid}");
        }
        let sources: Vec<Source> = sources.iter().map(|it| (**it).clone()).collect();
        let mut about = About::of_moment(&sources, *begun_ns, time, &what, PRODUCER);
        if *is_short {
            about.comments.push("samples are missing that had no names yet".into());
        }
        if profile.beyond_limit() > 0 {
            let beyond = profile.beyond_limit();
            about.comments.push(format!("{beyond} samples were counted without their stacks"));
        }
        let options = Options {
            kernel_stacks: profile.entries().any(|it| !it.kernel.is_empty()),
            user_stacks: true,
            names_events: about.sources.len() > 1,
            begun_ns: 0,
            producer: about.producer,
            real_time_ahead_ns: *begun_ns,
            zone: TimeZone::UTC,
            rendered_bytes: 0,
            timeline_bytes: 0,
            root: Root::default(),
        };
        let mut bytes = Vec::new();
        Output::new(pprof::FORMAT.export, options, &mut bytes).finish(profile, &about)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_for_how_long_and_of_whom() {
        let of = |query| Asked::parse(query).map(|it| (it.seconds, it.pid));
        assert_eq!(of(""), Ok((30, None)));
        assert_eq!(of("seconds=5&pid=812"), Ok((5, Some(812))));
        assert_eq!(of("seconds=600"), Ok((600, None)));
        for bad in ["seconds=0", "seconds=601", "seconds=-1", "seconds", "pid=x", "pid=", "gc=1"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
