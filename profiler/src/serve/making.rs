//! What pages get of the samples.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::{self, Write as _},
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use jiff::tz::TimeZone;
use profiler_profile::{
    diff::Measure,
    export::{
        about::About,
        change::Comparison,
        format::{Export, Format, Options},
        html,
        lines::{File, Lines},
        output::Output,
        root::Root,
        svg,
    },
    import::Counted,
    live::{Line, Live, Range, SLICE, Span},
    printable::printable,
    profile::{Entry, Profile},
    source::Source,
};
use serde::Serialize;

use super::{
    asked::{Asked, Function, Time},
    sources::{Source as Text, Sources},
};
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

/// The same of one source, as a run that has no other, or of all.
fn cut_alone(live: &Live, sources: &[Arc<Source>], asked: &Asked, window: u64) -> Cut {
    let is_wanted = |it: &&Arc<Source>| asked.source.is_none_or(|slot| slot == it.slot);
    let mut sources: Vec<Source> =
        sources.iter().filter(is_wanted).map(|it| (**it).clone()).collect();
    // A profile of one event has no others.
    let is_one = sources.len() == 1;
    sources.iter_mut().filter(|_| is_one).for_each(|it| it.slot = 0);
    let mut cut = cut(live, &sources, asked, window);
    if let Some(source) = sources.first().filter(|_| is_one).cloned().map(Arc::new) {
        for entry in &mut cut.entries {
            entry.source = Arc::clone(&source);
        }
    }
    cut
}

/// Two ranges, and how the second differs from the first.
struct Compared {
    before: Range,
    after: Range,
    comparison: Comparison,
}

/// Compares the time that is asked for with these slices, by the shares of each function, since one may be longer.
fn compare(
    live: &Live,
    sources: &[Arc<Source>],
    asked: &Asked,
    window: u64,
    before: Range,
) -> Compared {
    // The first, unless the run has the one that is asked for.
    let is_there = |slot: &usize| sources.iter().any(|it| it.slot == *slot);
    let source = Some(asked.source.filter(is_there).unwrap_or(0));
    let of = |time| {
        let asked = Asked { time, source, ..*asked };
        let Cut { range, entries, about } = cut_alone(live, sources, &asked, window);
        (range, Counted { profile: profile_of(entries), about, left_out: BTreeSet::new() })
    };
    let (before, counted_before) = of(Time::Range(before));
    let (after, counted) = of(asked.time);
    let comparison = Comparison::new(&counted_before, &counted, Measure::Share);
    Compared { before, after, comparison }
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

/// The samples as the page reads them: all sources, or what has changed in one.
pub(super) fn data(
    live: &Live,
    sources: &[Arc<Source>],
    asked: &Asked,
    window: u64,
) -> io::Result<Vec<u8>> {
    let begun = thread_cpu();
    let mut bytes = Vec::new();
    if let Some(before) = asked.before {
        let Compared { before, after, comparison } = compare(live, sources, asked, window, before);
        let Range { first, end } = before;
        write!(bytes, "{{\"before\":{{\"first\":{first},\"end\":{end}}},")?;
        let Range { first, end } = after;
        write!(bytes, "\"first\":{first},\"end\":{end},\"profile\":")?;
        comparison.write_data(&mut bytes)?;
    } else {
        let sources: Vec<Source> = sources.iter().map(|it| (**it).clone()).collect();
        let Cut { range, entries, about } = cut(live, &sources, asked, window);
        let Range { first, end } = range;
        write!(bytes, "{{\"first\":{first},\"end\":{end},\"profile\":")?;
        html::write_data(&profile_of(entries), &about, &mut bytes)?;
    }
    // What the page asks for less often if that is much.
    let took_ms = thread_cpu().saturating_sub(begun).as_secs_f64() * 1000.0;
    write!(bytes, ",\"took_ms\":{took_ms:.3}}}")?;
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

/// How many lines are shown before and after those that have samples.
const CONTEXT: u32 = 8;
/// How many lines of a file are shown at most, and how much of each.
const MAX_LINES: usize = 2000;
const MAX_LINE: usize = 400;
/// A tab.
const TAB: &str = "    ";

/// The number of a line, the samples that ended there and that came through, and its text.
type NumberedLine = (u32, u64, u64, Option<String>);

/// A function's part of a source file.
#[derive(Serialize)]
struct Part {
    path: String,
    /// Why there is no text.
    why: Option<String>,
    /// When it was last written to, in seconds since 1970.
    changed: Option<u64>,
    lines: Vec<NumberedLine>,
}

/// A function by its lines.
#[derive(Serialize)]
struct Annotated {
    /// All samples that were asked for.
    total: u64,
    files: Vec<Part>,
    /// Samples in the function of which nothing tells the line.
    unknown: u64,
}

/// The lines of a function, and their text where it can be read.
pub(super) fn lines(
    live: &Live,
    sources: &[Arc<Source>],
    asked: &Asked,
    window: u64,
    function: &Function,
    texts: &Sources,
) -> io::Result<Vec<u8>> {
    let Cut { entries, .. } = cut_alone(live, sources, asked, window);
    let total = entries.iter().map(|it| it.count).sum();
    let Lines { files, unknown } = Lines::of_function(&entries, &function.name, &function.module);
    let files = files.into_iter().map(|file| {
        let text = texts.text(&file.path);
        let (text, why) = text.map_or_else(|why| (None, Some(why)), |text| (Some(text), None));
        Part {
            path: printable(&file.path).into_owned(),
            why,
            changed: text
                .as_ref()
                .and_then(|it| Some(it.changed?.duration_since(UNIX_EPOCH).ok()?.as_secs())),
            lines: numbered(&file, text.as_ref()),
        }
    });
    let annotated = Annotated { total, files: files.collect(), unknown: unknown.total };
    Ok(serde_json::to_vec(&annotated)?)
}

/// The lines of a file from a little before the first that has samples on.
fn numbered(file: &File, text: Option<&Text>) -> Vec<NumberedLine> {
    let line = |number: u32, text: Option<&str>| {
        let samples = file.lines.get(&number).copied().unwrap_or_default();
        let shown = text.map(|it| {
            printable(&it.trim_end().replace('\t', TAB)).chars().take(MAX_LINE).collect()
        });
        (number, samples.own, samples.total, shown)
    };
    let all = file.lines.keys().copied().filter(|it| *it > 0);
    let (Some(text), Some(first), Some(last)) = (text, all.clone().min(), all.clone().max()) else {
        return file.lines.keys().map(|it| line(*it, None)).take(MAX_LINES).collect();
    };
    let (first, last) = (first.saturating_sub(CONTEXT).max(1), last.saturating_add(CONTEXT));
    let read = text.text.lines().zip(1..).filter(|(_, at)| (first..=last).contains(at));
    let mut lines: Vec<_> = read.take(MAX_LINES).map(|(text, at)| line(at, Some(text))).collect();
    // Those that the text does not have: it is another one than was compiled.
    let shown = lines.last().map_or(0, |(at, ..)| *at);
    let left = MAX_LINES - lines.len();
    lines.extend(all.filter(|it| *it > shown).take(left).map(|it| line(it, None)));
    lines
}

/// Whether the format can be written of samples that have no time of their own.
pub(super) fn is_offered(format: &Format) -> bool {
    !matches!(format.export, Export::Timeline(_))
}

/// Whether the format can be written of what has changed.
pub(super) fn is_of_changes(format: &Format) -> bool {
    [svg::FORMAT.name, html::FORMAT.name].contains(&format.name)
}

/// What has changed, in one of the formats for that.
pub(super) fn file_of_changes(
    live: &Live,
    sources: &[Arc<Source>],
    asked: &Asked,
    window: u64,
    before: Range,
    format: &Format,
) -> io::Result<Vec<u8>> {
    let Compared { comparison, .. } = compare(live, sources, asked, window, before);
    let mut bytes = Vec::new();
    if format.name == svg::FORMAT.name {
        comparison.write_svg(&mut bytes)?;
    } else {
        comparison.write_html(&mut bytes)?;
    }
    Ok(bytes)
}

/// A file in a format, as `record` writes it of a whole run.
pub(super) fn file(
    live: &Live,
    sources: &[Arc<Source>],
    asked: &Asked,
    window: u64,
    format: &Format,
) -> io::Result<Vec<u8>> {
    let Cut { entries, about, .. } = cut_alone(live, sources, asked, window);
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
    use profiler_profile::export::lines::Samples;

    use super::*;

    #[test]
    fn lines_have_their_text_and_what_is_around_them() {
        let samples = Samples { own: 1, total: 2 };
        let file = |lines: &[u32]| File {
            path: "/a.c".into(),
            lines: lines.iter().map(|it| (*it, samples)).collect(),
        };
        let text: Vec<String> = (1..=30).map(|it| format!("\tline {it}\x1b ")).collect();
        let text = Text { text: text.join("\n"), changed: None };
        let lines = numbered(&file(&[12, 14]), Some(&text));
        assert_eq!((lines.len(), lines[0].0, lines.last().unwrap().0), (19, 4, 22));
        assert_eq!(lines[8].0, 12);
        assert_eq!((lines[8].1, lines[8].2, lines[9].2), (1, 2, 0));
        assert!(lines[8].3.as_ref().unwrap().starts_with("    line 12"));
        assert!(!lines[8].3.as_ref().unwrap().contains('\x1b'));
        // Without text, and where the text is not what was compiled.
        assert_eq!(numbered(&file(&[0, 7]), None), [(0, 1, 2, None), (7, 1, 2, None)]);
        let lines = numbered(&file(&[29, 90]), Some(&text));
        assert_eq!((lines.len(), lines.last().unwrap()), (11, &(90, 1, 2, None)));
        let many: Vec<u32> = (1..=5000).collect();
        assert_eq!(numbered(&file(&many), Some(&text)).len(), MAX_LINES);
    }

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
