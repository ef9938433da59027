//! The screen's thread: what comes from the user and from the run, and when it is drawn.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crossterm::event;
use profiler_profile::{
    live::{Live, SLICE, Span},
    source::Source,
};
use ratatui_core::{buffer::Buffer, layout::Rect, style::Style};

use super::{
    app::{App, Crumb, View, Wish},
    canvas::Canvas,
    flame, foot, head, help, keys,
    model::Model,
    neighbours, numbers,
    saver::{Saver, Shown},
    tables,
    terminal::{Looks, Terminal},
};
use crate::{
    error::{Error, Result},
    kernel, stderr,
};

/// The least time between two pictures.
const FRAME: Duration = Duration::from_millis(100);
/// What the least screen is.
const COLUMNS: u16 = 60;
const LINES: u16 = 12;

/// Shows the run until the user or the run ends it.
pub(super) fn run(
    live: &Live,
    sources: &[Arc<Source>],
    saver: &Saver,
    looks: Looks,
    is_over: &AtomicBool,
) -> Result<()> {
    let failed = |error: std::io::Error| Error::system("cannot use the terminal", error);
    let mut terminal = Terminal::enter().map_err(failed)?;
    let (mut app, mut model) = (App::default(), Model::new(sources.to_vec()));
    let mut drawn: Option<Instant> = None;
    let mut looked: Option<Instant> = None;
    let (mut has_changed, mut is_told) = (true, false);
    while !is_over.load(Ordering::Acquire) {
        if looked.is_none_or(|it| it.elapsed() >= SLICE) {
            looked = Some(Instant::now());
            model.look(live, &app);
            follow_user(&mut app, &model);
            has_changed = true;
        }
        if live.is_over() && !is_told {
            // The last look is what there is from now on.
            model.look(live, &app);
            (is_told, has_changed, app.is_paused) = (true, true, true);
            app.said = Some("all that was sampled has ended; q quits".into());
        }
        if let Some(said) = saver.told() {
            (app.said, has_changed) = (Some(said), true);
        }
        let is_due = drawn.is_none_or(|it| it.elapsed() >= FRAME);
        if has_changed && is_due {
            model.choose(&mut app);
            let (_, told) = stderr::held();
            terminal
                .paint(|buffer| draw(buffer, &mut app, &model, looks, &told))
                .map_err(failed)?;
            (drawn, has_changed) = (Some(Instant::now()), false);
        }
        if event::poll(FRAME / 2).map_err(failed)? {
            while event::poll(Duration::ZERO).map_err(failed)? {
                let event = event::read().map_err(failed)?;
                let (view, crumbs) = (app.view, app.crumbs.len());
                keys::handle(&event, &mut app, &model);
                has_changed = true;
                // What comes next is about what it leads to.
                if (view, crumbs) != (app.view, app.crumbs.len()) {
                    model.choose(&mut app);
                }
                if app.wish.is_some() {
                    break;
                }
            }
        }
        if app.span != model.span && !app.is_paused {
            looked = None;
        }
        match app.wish.take() {
            Some(Wish::Quit) => return Ok(()),
            Some(Wish::Suspend) => terminal.suspend().map_err(failed)?,
            Some(Wish::Save(path)) => app.said = Some(saver.save(shown(path, &app, &model))),
            Some(Wish::Redraw) => terminal.forget(),
            None => {}
        }
    }
    Ok(())
}

/// Has the processes of a user that were found since, too.
fn follow_user(app: &mut App, model: &Model) {
    for crumb in &mut app.crumbs {
        if let Crumb::User(uid, theirs) = crumb {
            theirs.extend(keys::processes_of(model, *uid));
            theirs.sort_unstable();
            theirs.dedup();
        }
    }
}

/// What is shown, to be saved in a file.
fn shown(path: PathBuf, app: &App, model: &Model) -> Shown {
    let lines = model.wanted.iter().filter_map(|it| model.stacks.lines().get(*it)).cloned();
    let time = model.snapshot.time;
    let mut what = match model.span {
        Span::Window => format!("the last {}", numbers::time(time)),
        Span::Start => format!("{} since the start", numbers::time(time)),
    };
    for crumb in &app.crumbs {
        what = format!("{what}, {}", crumb.text());
    }
    let now_ns = i128::from(kernel::monotonic_ns()) + kernel::real_time_ahead_ns();
    let begun_ns = now_ns - i128::try_from(time.as_nanos()).unwrap_or(0);
    let (lines, source) = (lines.collect(), model.source(app).cloned());
    Shown { path, lines, source, begun_ns, time, what }
}

/// Draws all of it.
pub(super) fn draw(
    buffer: &mut Buffer,
    app: &mut App,
    model: &Model,
    looks: Looks,
    told: &[String],
) {
    let mut canvas = Canvas { buffer, looks };
    let area = canvas.area();
    app.hits.calls.clear();
    app.hits.lines.clear();
    app.hits.rows = Rect::default();
    if area.width < COLUMNS || area.height < LINES {
        app.hits.tabs.clear();
        let (width, height) = (area.width, area.height);
        canvas.put(0, 0, width, &format!("needs at least {COLUMNS}×{LINES}"), Style::new());
        canvas.put(0, 1, width, &format!("this is {width}×{height}; q quits"), Style::new());
        return;
    }
    let y = head::draw(&mut canvas, app, model);
    let body =
        Rect { y, height: area.bottom().saturating_sub(foot::LINES).saturating_sub(y), ..area };
    if app.shows_help {
        help::keys(&mut canvas, body);
    } else if app.shows_log {
        help::log(&mut canvas, body, told);
    } else {
        match app.view {
            View::Functions | View::Processes | View::Threads | View::Spawns => {
                tables::draw(&mut canvas, body, app, model);
            }
            View::Callers => neighbours::draw(&mut canvas, body, app, model),
            View::Flame => flame::draw(&mut canvas, body, app, model),
        }
    }
    // What would help what is chosen, or else what was told last.
    let hint = tables::hint_of_chosen(app, model);
    foot::draw(&mut canvas, app, hint.as_deref().or(told.last().map(|it| &**it)));
}
