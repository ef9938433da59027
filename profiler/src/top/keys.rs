//! What keys and the mouse do.

use std::path::PathBuf;

use crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use profiler_profile::live::{Flame, FunctionName, ProcessRow, Span};
use ratatui_core::layout::Position;

use super::{
    app::{App, Crumb, RowKey, View, Wish},
    model::{Body, Model},
    prompt::{self, Prompt, Purpose, Wanted},
};
use crate::{filter::users, procfs, units};

/// What a file is called by default.
const FILE: &str = "profile.html";
/// Rows that a turn of the wheel moves by.
const WHEEL: isize = 3;

/// Does what a key, the mouse or the terminal says.
pub(super) fn handle(event: &Event, app: &mut App, model: &Model) {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => {
            app.said = None;
            if app.prompt.is_some() {
                type_key(*key, app, model);
            } else {
                press(*key, app, model);
            }
        }
        Event::Mouse(mouse) => point(*mouse, app, model),
        Event::Resize(..) => app.wish = Some(Wish::Redraw),
        _ => {}
    }
}

fn press(key: KeyEvent, app: &mut App, model: &Model) {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        match key.code {
            KeyCode::Char('c') => app.wish = Some(Wish::Quit),
            KeyCode::Char('z') => app.wish = Some(Wish::Suspend),
            KeyCode::Char('l') => app.wish = Some(Wish::Redraw),
            KeyCode::Char('d' | 'f') => page(app, model, 1),
            KeyCode::Char('u' | 'b') => page(app, model, -1),
            KeyCode::Char('n') => step(app, model, 1),
            KeyCode::Char('p') => step(app, model, -1),
            _ => {}
        }
        return;
    }
    if app.shows_help || app.shows_log {
        (app.shows_help, app.shows_log) = (false, false);
        if !matches!(key.code, KeyCode::Char('q')) {
            return;
        }
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::F(10) => app.wish = Some(Wish::Quit),
        KeyCode::Char('?' | 'h') | KeyCode::F(1)
            if app.view != View::Flame || key.code != KeyCode::Char('h') =>
        {
            app.shows_help = true;
        }
        KeyCode::Char('L') => app.shows_log = true,
        KeyCode::Char(digit @ '1'..='9') => {
            let number = digit.to_digit(10).map_or(0, |it| it as usize);
            if let Some(view) = number.checked_sub(1).and_then(|it| View::ALL.get(it)) {
                app.view = *view;
            }
        }
        KeyCode::Tab => turn(app, 1),
        KeyCode::BackTab => turn(app, View::ALL.len() - 1),
        KeyCode::Char(' ' | 'p') => app.is_paused = !app.is_paused,
        KeyCode::Char('w') => {
            app.span = if app.span == Span::Window { Span::Start } else { Span::Window };
        }
        KeyCode::Char('e') => app.slot = (app.slot + 1) % model.sources.len().max(1),
        KeyCode::Char('/') | KeyCode::F(3) => {
            let before = app.search.as_ref().map(|it| it.as_str().to_owned());
            let before = before.unwrap_or_default();
            let shown = before.strip_prefix("(?i)").unwrap_or(&before);
            app.prompt = Some(Prompt::new(Purpose::Search, shown));
        }
        KeyCode::Char('n') => next_found(app, model, true),
        KeyCode::Char('N') => next_found(app, model, false),
        KeyCode::Char('f' | '\\') | KeyCode::F(4) => {
            app.prompt = Some(Prompt::new(Purpose::Filter, ""));
        }
        KeyCode::Char('u') => app.prompt = Some(Prompt::new(Purpose::Filter, "user ")),
        KeyCode::Char('s') => app.prompt = Some(Prompt::new(Purpose::Save, FILE)),
        KeyCode::Char('>' | 'o') | KeyCode::F(6) => app.reorder(true),
        KeyCode::Char('<') => app.reorder(false),
        KeyCode::Esc | KeyCode::Backspace => back(app),
        KeyCode::Enter => enter(app, model),
        KeyCode::Down | KeyCode::Char('j') => step(app, model, 1),
        KeyCode::Up | KeyCode::Char('k') => step(app, model, -1),
        KeyCode::PageDown => page(app, model, 1),
        KeyCode::PageUp => page(app, model, -1),
        KeyCode::Home | KeyCode::Char('g') => go(app, model, 0),
        KeyCode::End | KeyCode::Char('G') => go(app, model, model.rows().saturating_sub(1)),
        KeyCode::Left | KeyCode::Char('h') => beside(app, model, false),
        KeyCode::Right | KeyCode::Char('l') => beside(app, model, true),
        KeyCode::Char('c') => callers(app),
        _ => {}
    }
}

fn turn(app: &mut App, by: usize) {
    let next = (app.view.number() + by) % View::ALL.len();
    app.view = View::ALL.get(next).copied().unwrap_or_default();
}

/// Takes back what was done last: a zoom, what was looked for, what was chosen.
fn back(app: &mut App) {
    if app.view == View::Flame && app.unzoom() {
        // That was it.
    } else if app.search.is_some() {
        app.search = None;
    } else {
        app.undo();
    }
}

/// Goes into what is chosen.
fn enter(app: &mut App, model: &Model) {
    if app.view == View::Flame {
        app.zoom();
        return;
    }
    let row = app.place().row;
    match model.row(row) {
        Some(RowKey::Function(name) | RowKey::Caller(name) | RowKey::Callee(name)) => {
            app.choose(Crumb::Function(name));
            app.view = View::Callers;
        }
        Some(RowKey::Process(id, name)) => {
            app.choose(Crumb::Process(id, name));
            app.view = View::Functions;
        }
        Some(RowKey::Spawn(kind)) => {
            app.choose(Crumb::Name(kind.name));
            app.view = View::Functions;
        }
        Some(RowKey::Thread(id, name)) => {
            app.choose(Crumb::Thread(id, name));
            app.view = View::Functions;
        }
        None => {}
    }
}

/// The callers of what is chosen in the flame graph.
fn callers(app: &mut App) {
    let is_function = |it: &&FunctionName| !it.module.is_empty();
    if let (View::Flame, Some(name)) = (app.view, app.call.last().filter(is_function).cloned()) {
        app.choose(Crumb::Function(name));
        app.view = View::Callers;
    }
}

fn go(app: &mut App, model: &Model, row: usize) {
    let chosen = if row == 0 { None } else { model.row(row) };
    let place = app.place();
    (place.row, place.chosen) = (row, chosen);
}

fn step(app: &mut App, model: &Model, by: isize) {
    if let Body::Flame(flame) = &model.body {
        return climb(app, flame, by > 0);
    }
    let last = model.rows().saturating_sub(1);
    let row = app.place().row.saturating_add_signed(by).min(last);
    go(app, model, row);
}

fn page(app: &mut App, model: &Model, by: isize) {
    let lines = isize::try_from(app.hits.rows.height.max(2) - 1).unwrap_or(1);
    if !matches!(model.body, Body::Flame(_)) {
        step(app, model, by * lines);
    }
}

/// Goes to the largest call of the chosen one, or to its caller.
fn climb(app: &mut App, flame: &Flame, deeper: bool) {
    let at = flame.follow(&app.call);
    app.call = flame.path(at);
    if !deeper {
        app.call.pop();
        return;
    }
    let total = |it: &usize| flame.get(*it).map_or(0, |it| it.total);
    if let Some(largest) = flame.calls(at).max_by_key(total) {
        app.call = flame.path(largest);
    }
}

/// Goes to the next of what was found, or the one before: tables have nothing else.
fn next_found(app: &mut App, model: &Model, forward: bool) {
    let Body::Flame(flame) = &model.body else {
        return step(app, model, if forward { 1 } else { -1 });
    };
    let Some(search) = &app.search else { return };
    let within = flame.within(flame.follow(&app.zoom));
    let at = flame.follow(&app.call).clamp(within.start, within.end);
    let is_found = |it: &usize| flame.get(*it).is_some_and(|node| search.is_match(&node.name.name));
    let next = if forward {
        (at.saturating_add(1)..within.end).chain(within.start..at).find(is_found)
    } else {
        (within.start..at).rev().chain((at..within.end).rev()).find(is_found)
    };
    if let Some(next) = next {
        app.call = flame.path(next);
    }
}

/// Goes to the call on the left or the right of the chosen one.
fn beside(app: &mut App, model: &Model, right: bool) {
    let Body::Flame(flame) = &model.body else { return };
    let at = flame.follow(&app.call);
    let Some(node) = flame.get(at) else { return };
    let siblings: Vec<usize> = flame.calls(node.parent).collect();
    let place = siblings.iter().position(|it| *it == at);
    let next = place.and_then(|it| if right { it.checked_add(1) } else { it.checked_sub(1) });
    if let Some(next) = next.and_then(|it| siblings.get(it)) {
        app.call = flame.path(*next);
    }
}

/// A key while a line is typed.
fn type_key(key: KeyEvent, app: &mut App, model: &Model) {
    let Some(mut prompt) = app.prompt.take() else { return };
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Esc => return,
        KeyCode::Char('c') if is_control => return,
        KeyCode::Enter => {
            if let Err(wrong) = done(&prompt, app, model) {
                prompt.wrong = Some(wrong);
                app.prompt = Some(prompt);
            }
            return;
        }
        KeyCode::Char('u') if is_control => prompt.text.clear(),
        KeyCode::Backspace => {
            prompt.text.pop();
        }
        KeyCode::Char(typed) if !is_control => prompt.text.push(typed),
        _ => {}
    }
    prompt.wrong = None;
    app.prompt = Some(prompt);
}

/// Does what was typed.
fn done(prompt: &Prompt, app: &mut App, model: &Model) -> Result<(), String> {
    let text = prompt.text.trim();
    match prompt.purpose {
        Purpose::Search if text.is_empty() => app.search = None,
        Purpose::Search => {
            // As less and vim have it: who types a capital letter means it.
            let any_case = !prompt::has_capital(text);
            units::parse_pattern(text)?;
            let pattern = if any_case { format!("(?i){text}") } else { text.to_owned() };
            app.search = Some(units::parse_pattern(&pattern)?);
        }
        Purpose::Save if text.is_empty() => return Err("type a file name".into()),
        Purpose::Save => app.wish = Some(Wish::Save(PathBuf::from(text))),
        Purpose::Filter => {
            let crumb = match Wanted::parse(text)? {
                Wanted::Process(id) => {
                    let rows = model.stacks.process_rows(&all(model));
                    let name = rows.into_iter().find(|it| it.tgid == id).map(|it| it.name);
                    Crumb::Process(id, name.unwrap_or_else(|| "process".into()))
                }
                Wanted::Cpu(cpu) => Crumb::Cpu(cpu),
                Wanted::Group(name) => Crumb::Group(group(model, &name)?),
                Wanted::User(name) => {
                    let uid = users::id_of(&name).ok_or_else(|| format!("no user '{name}'"))?;
                    Crumb::User(uid, processes_of(model, uid))
                }
            };
            app.choose(crumb);
        }
    }
    Ok(())
}

fn all(model: &Model) -> Vec<usize> {
    (0..model.stacks.lines().len()).collect()
}

/// The container or unit that was meant: by its name, or by how its id begins.
fn group(model: &Model, name: &str) -> Result<String, String> {
    let rows = model.stacks.process_rows(&all(model));
    let groups = rows
        .iter()
        .filter_map(|it| it.metadata.as_ref())
        .filter_map(|it| it.container.as_ref().map(|it| &it.id).or(it.unit.as_ref()));
    let mut found: Vec<&String> = groups.filter(|it| it.starts_with(name)).collect();
    found.sort_unstable();
    found.dedup();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(format!("nothing that was sampled is in '{name}'")),
        _ if found.iter().any(|it| *it == name) => Ok(name.to_owned()),
        several => Err(format!("{} names begin with '{name}'", several.len())),
    }
}

/// The processes that were sampled and are a user's: who they are now, and of those that have ended, who they were
/// when they executed their program.
pub(super) fn processes_of(model: &Model, uid: u32) -> Vec<u32> {
    let rows = model.stacks.process_rows(&all(model));
    let known = |it: &ProcessRow| it.metadata.as_ref().and_then(|it| it.uid);
    let is_theirs =
        |it: &&ProcessRow| procfs::status::user_of(it.tgid).or_else(|| known(it)) == Some(uid);
    rows.iter().filter(is_theirs).map(|it| it.tgid).collect()
}

fn point(mouse: MouseEvent, app: &mut App, model: &Model) {
    let at = Position::new(mouse.column, mouse.row);
    match mouse.kind {
        MouseEventKind::ScrollDown => step(app, model, WHEEL),
        MouseEventKind::ScrollUp => step(app, model, -WHEEL),
        MouseEventKind::Down(MouseButton::Left) => {
            if let Some((_, view)) = app.hits.tabs.iter().find(|(area, _)| area.contains(at)) {
                app.view = *view;
                return;
            }
            let call = app.hits.calls.iter().find(|(area, _)| area.contains(at));
            if let Some(call) = call.map(|(_, call)| call.clone()) {
                // What is chosen already is gone into.
                if app.call == call {
                    app.zoom();
                } else {
                    app.call = call;
                }
            } else if let Some(row) = row_at(app, at).filter(|it| *it < model.rows()) {
                let is_chosen = app.place().row == row && app.place().chosen.is_some();
                if is_chosen {
                    enter(app, model);
                } else {
                    choose_row(app, model, row);
                }
            }
        }
        MouseEventKind::Down(MouseButton::Right) => back(app),
        _ => {}
    }
}

/// The row that is drawn there.
fn row_at(app: &mut App, at: Position) -> Option<usize> {
    if let Some((_, row)) = app.hits.lines.iter().find(|(y, _)| *y == at.y) {
        return Some(*row);
    }
    let area = app.hits.rows;
    area.contains(at).then(|| app.place().offset + usize::from(at.y - area.y))
}

/// As [`go`], and also the first row is kept.
fn choose_row(app: &mut App, model: &Model, row: usize) {
    let chosen = model.row(row);
    let place = app.place();
    (place.row, place.chosen) = (row, chosen);
}
