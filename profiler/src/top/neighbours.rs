//! The view of a function with what calls it and what it calls.

use profiler_profile::live::Neighbours;
use ratatui_core::{layout::Rect, style::Style};

use super::{
    app::App,
    canvas::Canvas,
    colours::{self, letter},
    model::{Body, Model},
    numbers::{count, share},
    table::{self, Column},
};

const COLUMNS: [Column; 5] = [
    Column::number("SHARE", 6, true),
    Column::number("SAMPLES", 7, false),
    Column { width: 1, ..Column::name("", 0, false) },
    Column::name("FUNCTION", 3, false),
    Column::name("MODULE", 1, false),
];

/// A line of it.
enum Line {
    Title(String),
    /// What calls it or is called: its row, its number and its samples.
    Neighbour(usize, usize, u64),
    /// The function.
    Chosen,
}

/// Draws it: callers above, the function, and callees below.
pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, app: &mut App, model: &Model) {
    table::titles(canvas, area, &COLUMNS);
    let below = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    let Body::Callers(function, found) = &model.body else {
        let why = "the function was not sampled: Esc takes the choice back";
        canvas.put(below.x, below.y, below.width, why, canvas.looks.faint());
        return;
    };
    // Two titles and the function are lines that are no rows.
    let room = usize::from(below.height.saturating_sub(3));
    app.place().fit(model.rows(), room);
    let (offset, chosen) = (app.place().offset, app.place().row);
    // So that pages are as long as what is seen.
    app.hits.rows = Rect { y: area.bottom(), height: below.height.saturating_sub(3), ..below };
    for (y, line) in (below.y..below.bottom()).zip(lines(found, offset, room)) {
        let at = Rect { y, height: 1, ..below };
        match line {
            Line::Title(text) => {
                canvas.put(at.x, y, at.width, &text, colours::strong());
            }
            Line::Neighbour(row, function, samples) => {
                app.hits.lines.push((y, row));
                neighbour(canvas, at, model, (function, samples), found.total, row == chosen);
            }
            Line::Chosen => itself(canvas, at, model, *function, found),
        }
    }
}

/// All lines, of rows so many from this one on.
fn lines(found: &Neighbours, offset: usize, room: usize) -> Vec<Line> {
    let callers = found.callers.len();
    let rows = found.callers.iter().chain(&found.callees).enumerate().skip(offset).take(room);
    let row = |(row, (function, samples)): (usize, &(usize, u64))| {
        Line::Neighbour(row, *function, *samples)
    };
    let (above, below): (Vec<_>, Vec<_>) = rows.partition(|(row, _)| *row < callers);
    let mut lines =
        vec![Line::Title(title("callers", found.outermost, found, "called by nothing"))];
    lines.extend(above.into_iter().map(row));
    lines.push(Line::Chosen);
    lines.push(Line::Title(title("callees", found.own, found, "itself")));
    lines.extend(below.into_iter().map(row));
    lines
}

/// The function in the middle.
fn itself(canvas: &mut Canvas<'_>, at: Rect, model: &Model, function: usize, found: &Neighbours) {
    let (name, kind) = (model.name(function), model.kind(function));
    let cells = [
        (share(found.total, model.all), colours::strong()),
        (count(found.total), colours::strong()),
        (letter(kind).to_owned(), Style::new()),
        (format!("▶ {}", name.name), canvas.looks.kind(kind).patch(colours::strong())),
        (file(&name.module).to_owned(), Style::new()),
    ];
    table::row(canvas, at, &COLUMNS, &cells, false);
}

fn title(what: &str, other: u64, found: &Neighbours, said: &str) -> String {
    if other == 0 {
        return what.to_owned();
    }
    format!("{what}   {said}: {} ({})", share(other, found.total), count(other))
}

fn neighbour(
    canvas: &mut Canvas<'_>,
    at: Rect,
    model: &Model,
    (function, samples): (usize, u64),
    total: u64,
    is_chosen: bool,
) {
    let (name, kind) = (model.name(function), model.kind(function));
    let cells = [
        (share(samples, total), Style::new()),
        (count(samples), Style::new()),
        (letter(kind).to_owned(), canvas.looks.faint()),
        (format!("  {}", name.name), canvas.looks.kind(kind)),
        (file(&name.module).to_owned(), canvas.looks.faint()),
    ];
    table::row(canvas, at, &COLUMNS, &cells, is_chosen);
}

fn file(module: &str) -> &str {
    module.rsplit('/').next().unwrap_or(module)
}
