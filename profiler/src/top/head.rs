//! The lines at the top: what is sampled, what the CPUs do, what was lost, and what was chosen.

use std::time::Duration;

use profiler_profile::live::Span;
use ratatui_core::style::{Color, Style};

use super::{
    app::App,
    canvas::{Canvas, width},
    colours,
    model::Model,
    numbers::{count, per_second, percent, share, time},
    terminal::Looks,
};

/// More CPUs than these are one line.
const MAX_CPUS: usize = 16;
/// A CPU's line: its number, so much of its past, and its share.
const CPU_CELLS: u16 = 20;
const PAST_CELLS: usize = 9;
const BARS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// Draws it; the first line below.
pub(super) fn draw(canvas: &mut Canvas<'_>, app: &App, model: &Model) -> u16 {
    let area = canvas.area();
    let (looks, right) = (canvas.looks, area.right());
    let source = model.sources.get(app.slot).or(model.sources.first());
    let event = source.map_or_else(String::new, |it| match it.rate {
        profiler_profile::source::Rate::Frequency(hz) => format!("{} {hz} Hz", it.name),
        profiler_profile::source::Rate::Period(period) => format!("{} every {period}", it.name),
    });
    let span = match model.span {
        Span::Window => format!("last {}", time(model.snapshot.time)),
        Span::Start => format!("since start {}", time(model.snapshot.time)),
    };
    let mut x = canvas.put(area.x, area.y, right, "profiler ", colours::strong());
    if app.is_paused {
        x = canvas.put(x, area.y, right, "PAUSED", colours::strong().patch(colours::reversed()));
        x = canvas.put(x, area.y, right, " ", Style::new());
    }
    x = canvas.put(x, area.y, right, &format!("{event}  {span}  "), Style::new());
    let seconds = model.snapshot.time.as_secs_f64();
    let rate = if seconds > 0.0 { model.all as f64 / seconds } else { 0.0 };
    let samples = format!("{} samples {rate:.0}/s  ", count(model.all));
    x = canvas.put(x, area.y, right.saturating_sub(x), &samples, Style::new());
    // What matters is whether it is little.
    let own =
        |share: f64| if share < 0.0995 { percent(share) } else { format!("{:.0}%", 100.0 * share) };
    let own = model.own_cpu.map_or_else(|| "-".to_owned(), own);
    let own = format!("agent {own} CPU {} MiB", model.vitals.memory_bytes >> 20);
    canvas.put_right(x, area.y, right.saturating_sub(x), &own, looks.faint());

    let y = flow(canvas, area.y + 1, "CPU ", &pieces(app, model, looks));
    let y = cpus(canvas, model, y);
    crumbs(canvas, app, model, y)
}

/// What the CPUs do, and what is missing of the samples, and why.
fn pieces(app: &App, model: &Model, looks: Looks) -> Vec<(String, Style)> {
    let mut pieces = Vec::new();
    let shares = model.machine.all.unwrap_or_default();
    for (name, share, colour) in [
        ("user", shares.user, Color::Yellow),
        ("kernel", shares.kernel, Color::Cyan),
        ("idle", shares.idle, Color::DarkGray),
    ] {
        let style = if looks.colours { Style::new().fg(colour) } else { Style::new() };
        pieces.push((format!("{name} {:>3.0}%", 100.0 * share), style));
    }
    let lost: u64 = model.vitals.lost.by_us();
    let reasons = model.vitals.lost.reasons().into_iter().filter(|(_, count)| *count > 0);
    let reasons: Vec<String> = reasons.map(|(why, n)| format!("{why} {}", count(n))).collect();
    pieces.push(match (lost, reasons.is_empty()) {
        (0, _) => ("lost 0".to_owned(), Style::new()),
        (_, true) => (format!("lost {}", count(lost)), looks.bad()),
        (_, false) => (format!("lost {} ({})", count(lost), reasons.join(", ")), looks.bad()),
    });
    let sampled = model.snapshot.sources.get(app.slot);
    if let Some((sampled, (why, _))) = sampled.and_then(|it| Some((it, it.cut.first()?))) {
        let cut: u64 = sampled.cut.iter().map(|(_, count)| count).sum();
        let why = why.word().replace('_', " ");
        pieces.push((format!("cut {} ({why})", share(cut, sampled.samples)), Style::new()));
    }
    // What is usual on the way from the ring is not worth a word.
    if model.snapshot.behind >= Duration::from_secs(2) {
        pieces.push((format!("names {} behind", time(model.snapshot.behind)), looks.bad()));
    }
    if !model.snapshot.short_of.is_zero() {
        let text = format!("{} less: --max-memory", time(model.snapshot.short_of));
        pieces.push((text, looks.bad()));
    }
    pieces
}

/// Draws pieces one behind the other, in as many lines as they need; the first line below.
fn flow(canvas: &mut Canvas<'_>, mut y: u16, title: &str, pieces: &[(String, Style)]) -> u16 {
    let area = canvas.area();
    let mut x = canvas.put(area.x, y, area.width, title, colours::strong());
    let begin = x;
    for (text, style) in pieces {
        let cells = u16::try_from(width(text)).unwrap_or(u16::MAX);
        if x > begin && x.saturating_add(cells) > area.right() {
            (x, y) = (begin, y + 1);
        }
        x = canvas.put(x, y, area.right().saturating_sub(x), text, *style).saturating_add(2);
    }
    y + 1
}

/// The CPUs, each with its past, or all in one line.
fn cpus(canvas: &mut Canvas<'_>, model: &Model, y: u16) -> u16 {
    let area = canvas.area();
    let busy = &model.machine.busy;
    if busy.len() > MAX_CPUS {
        let label = "CPUs ";
        let x = canvas.put(area.x, y, area.width, label, colours::strong());
        let now: Vec<f64> = busy.values().map(|it| it.back().copied().unwrap_or(0.0)).collect();
        // Where there are more than cells, several share one.
        let each = now.len().div_ceil(usize::from(area.right().saturating_sub(x)).max(1)).max(1);
        for (at, some) in (x..).zip(now.chunks(each)) {
            let mean = some.iter().sum::<f64>() / some.len().max(1) as f64;
            bar(canvas, at, y, mean);
        }
        return y + 1;
    }
    let columns = usize::from((area.width / CPU_CELLS).max(1));
    for (at, (cpu, past)) in busy.iter().enumerate() {
        let (row, column) = (at / columns, at % columns);
        let x = area.x + CPU_CELLS * u16::try_from(column).unwrap_or(0);
        let y = y + u16::try_from(row).unwrap_or(0);
        let mut x = canvas.put(x, y, 4, &format!("{cpu:>3} "), canvas.looks.faint());
        let begin = past.len().saturating_sub(PAST_CELLS);
        for share in past.iter().skip(begin) {
            bar(canvas, x, y, *share);
            x += 1;
        }
        let now = past.back().copied().unwrap_or(0.0);
        canvas.put(x, y, 5, &format!("{:>4.0}%", 100.0 * now), Style::new());
    }
    y + u16::try_from(busy.len().div_ceil(columns)).unwrap_or(0)
}

/// A bar as high as a share of one.
fn bar(canvas: &mut Canvas<'_>, x: u16, y: u16, share: f64) {
    let eighths = (share.clamp(0.0, 1.0) * 7.0).round();
    let bar = BARS.iter().zip(0_u8..).find(|(_, it)| f64::from(*it) >= eighths);
    let colour = match share {
        ..0.5 => Color::Green,
        0.5..0.85 => Color::Yellow,
        _ => Color::Red,
    };
    let style = if canvas.looks.colours { Style::new().fg(colour) } else { Style::new() };
    canvas.put(x, y, 1, bar.map_or("█", |(bar, _)| bar), style);
}

/// What was chosen, and how much of all that is.
fn crumbs(canvas: &mut Canvas<'_>, app: &App, model: &Model, y: u16) -> u16 {
    let (area, looks) = (canvas.area(), canvas.looks);
    let mut text = "all".to_owned();
    for crumb in &app.crumbs {
        text += " › ";
        text += &crumb.text();
    }
    if !app.crumbs.is_empty() {
        text.extend(["   ", &share(model.total, model.all), " of ", &count(model.all)]);
    }
    let style = if app.crumbs.is_empty() { looks.faint() } else { colours::strong() };
    let mut x = canvas.put(area.x, y, area.width, &text, style);
    if let Some(search) = &app.search {
        let shown = search.as_str().strip_prefix("(?i)").unwrap_or(search.as_str());
        let text = format!("   /{}", profiler_profile::printable::printable(shown));
        x = canvas.put(x, y, area.right().saturating_sub(x), &text, colours::strong());
    }
    // The storm that no snapshot of processes shows.
    let spawns = format!("spawns {}", per_second(model.spawn_rate));
    if model.spawn_rate >= 0.05 && width(&spawns) + 2 <= usize::from(area.right().saturating_sub(x))
    {
        canvas.put_right(x, y, area.right() - x, &spawns, looks.faint());
    }
    y + 1
}
