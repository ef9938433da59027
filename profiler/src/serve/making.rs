//! What pages get of the samples.

use std::{fmt::Write as _, io, sync::Arc, time::Duration};

use jiff::tz::TimeZone;
use profiler_profile::{
    export::{
        about::About,
        format::{Export, Format, Options},
        html,
        output::Output,
        root::Root,
    },
    live::{Line, Live, Range, SLICE, Span},
    profile::{Entry, Profile},
    source::Source,
};
use serde::Serialize;

use super::asked::{Asked, Time};
use crate::{kernel, limits::budget::CacheBudget, output::PRODUCER};

/// The id of a CPU, process or thread, that of the process, the name, and the slices that have samples with their
/// numbers.
type Row = (u32, u32, String, Vec<u64>, Vec<u64>);

/// When whose samples were taken.
#[derive(Serialize)]
struct Timeline {
    /// The slices that are kept.
    first: u64,
    end: u64,
    /// The first of those that are here.
    since: u64,
    strips: Vec<Row>,
}

/// Some time of a run, and its samples.
struct Cut {
    range: Range,
    entries: Vec<Entry>,
    about: About<'static>,
}

/// The slices that a time stands for, of those that are kept.
pub(super) fn range(time: Time, kept: Range, window: u64) -> Range {
    match time {
        Time::Window => Range { first: kept.end.saturating_sub(window).max(kept.first), ..kept },
        Time::Start => Range { first: 0, ..kept },
        Time::Range(range) => range.within(kept),
    }
}

fn cut(live: &Live, sources: &[Source], asked: &Asked, window: u64) -> Cut {
    let now_ns = kernel::monotonic_ns();
    let kept = live.kept(now_ns);
    let range = range(asked.time, kept, window);
    let mut lines = match asked.time {
        Time::Start => live.snapshot(Span::Start, now_ns).lines,
        Time::Window | Time::Range(_) => live.between(range),
    };
    lines.retain(|Line { entry, .. }| {
        asked.source.is_none_or(|it| it == entry.source.slot)
            && asked.process.is_none_or(|it| it == entry.task.tgid)
            && asked.thread.is_none_or(|it| it == entry.task.tid)
    });
    let time = lasting(range.slices());
    let ago = lasting(kept.end.saturating_sub(range.first));
    let begun_ns = i128::from(now_ns) + kernel::real_time_ahead_ns()
        - i128::try_from(ago.as_nanos()).unwrap_or(0);
    let mut what = format!("{:.1} s of a run", time.as_secs_f64());
    for (name, id) in [("process", asked.process), ("thread", asked.thread)] {
        if let Some(id) = id {
            // Writing to memory does not fail.
            let _ = write!(what, ", {name} {id}");
        }
    }
    let about = About::of_moment(sources, begun_ns, time, &what, PRODUCER);
    Cut { range, entries: lines.iter().map(Line::to_entry).collect(), about }
}

fn lasting(slices: u64) -> Duration {
    SLICE.saturating_mul(u32::try_from(slices).unwrap_or(u32::MAX))
}

fn profile_of(entries: Vec<Entry>) -> Profile {
    // It shares its stacks with the window, which has a limit.
    let mut profile = Profile::new(usize::MAX);
    for entry in entries {
        profile.add_entry(entry);
    }
    profile
}

/// The samples as the page reads them, all sources.
pub(super) fn data(
    live: &Live,
    sources: &[Arc<Source>],
    asked: &Asked,
    window: u64,
) -> io::Result<Vec<u8>> {
    let begun = thread_cpu();
    let sources: Vec<Source> = sources.iter().map(|it| (**it).clone()).collect();
    let Cut { range: Range { first, end }, entries, about } = cut(live, &sources, asked, window);
    let mut bytes = format!("{{\"first\":{first},\"end\":{end},\"profile\":").into_bytes();
    html::write_data(&profile_of(entries), &about, &mut bytes)?;
    // What the page asks for less often if that is much.
    let took_ms = thread_cpu().saturating_sub(begun).as_secs_f64() * 1000.0;
    bytes.extend_from_slice(format!(",\"took_ms\":{took_ms:.3}}}").as_bytes());
    Ok(bytes)
}

/// CPU time of the calling thread.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// The strips of one source.
pub(super) fn strips(live: &Live, asked: &Asked) -> io::Result<Vec<u8>> {
    let kept = live.kept(kernel::monotonic_ns());
    let range = Range { first: asked.since, ..kept }.within(kept);
    let strips = live.strips(asked.by, asked.source.unwrap_or(0), range).into_iter().map(|it| {
        let (slices, counts) = it.counts.into_iter().unzip();
        (it.id, it.process, it.name, slices, counts)
    });
    let timeline =
        Timeline { first: kept.first, end: kept.end, since: range.first, strips: strips.collect() };
    Ok(serde_json::to_vec(&timeline)?)
}

/// Whether the format can be written of samples that have no time of their own.
pub(super) fn is_offered(format: &Format) -> bool {
    !matches!(format.export, Export::Timeline(_))
}

/// A file in a format, as `record` writes it of a whole run.
pub(super) fn file(
    live: &Live,
    sources: &[Arc<Source>],
    asked: &Asked,
    window: u64,
    format: &Format,
) -> io::Result<Vec<u8>> {
    let is_wanted = |it: &&Arc<Source>| asked.source.is_none_or(|slot| slot == it.slot);
    let mut sources: Vec<Source> =
        sources.iter().filter(is_wanted).map(|it| (**it).clone()).collect();
    // A profile of one event has no others.
    let is_one = sources.len() == 1;
    sources.iter_mut().filter(|_| is_one).for_each(|it| it.slot = 0);
    let Cut { mut entries, about, .. } = cut(live, &sources, asked, window);
    if let Some(source) = sources.first().filter(|_| is_one).cloned().map(Arc::new) {
        for entry in &mut entries {
            entry.source = Arc::clone(&source);
        }
    }
    let profile = profile_of(entries);
    let options = Options {
        kernel_stacks: profile.entries().any(|it| !it.kernel.is_empty()),
        user_stacks: true,
        names_events: about.sources.len() > 1,
        begun_ns: 0,
        producer: about.producer,
        real_time_ahead_ns: about.begun_ns.unwrap_or_default(),
        zone: TimeZone::system(),
        rendered_bytes: CacheBudget::within(None).rendered,
        timeline_bytes: 0,
        root: Root::default(),
    };
    let mut bytes = Vec::new();
    let mut output = Output::new(format.export, options, &mut bytes);
    if !output.needs_profile() {
        output.add(profile.entries())?;
    }
    output.finish(&profile, &about)?;
    drop(output);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_of_what_is_kept() {
        let kept = Range { first: 100, end: 200 };
        let of = |time| {
            let Range { first, end } = range(time, kept, 20);
            (first, end)
        };
        assert_eq!(of(Time::Window), (180, 200));
        assert_eq!(of(Time::Start), (0, 200));
        assert_eq!(of(Time::Range(Range { first: 90, end: 110 })), (100, 110));
        assert_eq!(of(Time::Range(Range { first: 300, end: 310 })), (200, 200));
        let young = Range { first: 0, end: 3 };
        assert_eq!(range(Time::Window, young, 20), young);
    }
}
