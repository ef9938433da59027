//! Profiles that the agent has written, one for each window of time.

use std::path::Path;

use jiff::{Timestamp, Zoned};
use profiler_profile::import::Imported;

use super::recorded;
use crate::{
    error::{Error, Result},
    moment::Moment,
    stderr,
    windows::folder,
};

/// How many stacks and frames all windows may have together: each takes some 100 bytes.
const MAX_THINGS: usize = 8 << 20;

/// What was sampled between two times, of which a missing one is the oldest window or now.
pub(super) fn read(folder: &Path, from: Option<Moment>, to: Option<Moment>) -> Result<Imported> {
    let now = Zoned::now();
    let at =
        |it: Moment, option| it.at(&now).map_err(|why| Error::Usage(format!("{option}: {why}")));
    let from = from.map_or(Ok(Timestamp::MIN), |it| at(it, "--from"))?;
    let to = to.map_or(Ok(now.timestamp()), |it| at(it, "--to"))?;
    if from > to {
        return Err(Error::Usage("--from is later than --to".into()));
    }
    let failed = |error| {
        Error::system_with(
            format!("cannot read {}", folder.display()),
            error,
            "`profiler agent` writes there; only root may read it",
        )
    };
    let windows = folder::list(folder).map_err(failed)?;
    let zone = now.time_zone();
    let shown = |it: Timestamp| it.to_zoned(zone.clone()).strftime("%F %T").to_string();
    let mut sum: Option<(Imported, usize)> = None;
    let mut things = 0_usize;
    // None goes on longer than until the next one begins, but an agent may have ended before that.
    let ends = windows.iter().skip(1).map(|it| it.begun).chain([Timestamp::MAX]);
    for (window, _) in windows.iter().zip(ends).filter(|(it, end)| it.begun <= to && *end > from) {
        let profile = match recorded::read(&window.path) {
            Ok(profile) => profile,
            // The agent may have removed it since.
            Err(error) => {
                stderr::notice(&format!("{error}; it is left out"));
                continue;
            }
        };
        if end(&profile).is_some_and(|it| it <= from) {
            continue;
        }
        things =
            profile.stacks.iter().fold(things, |sum, it| sum.saturating_add(1 + it.frames.len()));
        if things > MAX_THINGS {
            let what = format!("cannot read all of {} from that time", folder.display());
            return Err(Error::system_with(what, "it is too much", "ask for a shorter time"));
        }
        match &mut sum {
            None => sum = Some((profile, 1)),
            Some((all, count)) => {
                if all.append(profile) {
                    *count += 1;
                } else {
                    let path = window.path.display();
                    stderr::notice(&format!("{path} is left out: other events were sampled then"));
                }
            }
        }
    }
    let Some((profile, count)) = sum else {
        let there = match (windows.first(), windows.last()) {
            (Some(first), Some(last)) => {
                format!("there are windows from {} to {}", shown(first.begun), shown(last.begun))
            }
            _ => "there are no windows at all".to_owned(),
        };
        let what = format!("nothing in {} is of that time", folder.display());
        return Err(Error::system(what, there));
    };
    let begun = profile.begun_ns.and_then(|it| Timestamp::from_nanosecond(it.into()).ok());
    let since = begun.map_or_else(String::new, |it| format!(" since {}", shown(it)));
    let seconds = profile.duration_ns.unwrap_or_default() / 1_000_000_000;
    stderr::notice(&format!("{count} windows{since}, {seconds} s in all"));
    Ok(profile)
}

/// When what was sampled ends, if it says so.
fn end(profile: &Imported) -> Option<Timestamp> {
    let end_ns = profile.begun_ns?.checked_add(profile.duration_ns?)?;
    Timestamp::from_nanosecond(end_ns.into()).ok()
}
