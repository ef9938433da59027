//! The views that are tables: functions, processes and threads.

use std::time::Duration;

use profiler_profile::{
    frame::Origin,
    live::{FunctionRow, ProcessRow, ThreadRow},
    printable::printable,
    process::Metadata,
};
use ratatui_core::{layout::Rect, style::Style};

use super::{
    app::{App, Order, View},
    canvas::Canvas,
    colours::letter,
    model::{Body, Model},
    numbers::{count, cpu_share, percent, share},
    table::{self, Column},
};

type Cells = Vec<(String, Style)>;

/// Draws the table of a view.
pub(super) fn draw(canvas: &mut Canvas<'_>, area: Rect, app: &mut App, model: &Model) {
    let order = app.order();
    let columns = columns(app.view, order);
    table::titles(canvas, area, &columns);
    let below = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    let rows = model.rows();
    app.place().fit(rows, usize::from(below.height));
    let (offset, chosen) = (app.place().offset, app.place().row);
    app.hits.rows = below;
    if rows == 0 {
        let why = if app.crumbs.is_empty() && app.search.is_none() {
            "nothing was sampled"
        } else {
            "nothing of that was sampled: Esc takes the last choice back"
        };
        canvas.put(below.x, below.y, below.width, why, canvas.looks.faint());
    }
    for (line, row) in (0..below.height).zip(offset..rows) {
        let cells = match &model.body {
            Body::Functions(rows) => rows.get(row).map(|it| function(canvas, model, it)),
            Body::Processes(rows) => rows.get(row).map(|it| process(canvas, app, model, it)),
            Body::Threads(rows) => rows.get(row).map(|it| thread(app, model, it)),
            _ => None,
        };
        let at = Rect { y: below.y + line, height: 1, ..below };
        table::row(canvas, at, &columns, &cells.unwrap_or_default(), row == chosen);
    }
}

fn columns(view: View, order: Order) -> Vec<Column> {
    let is = |it| order == it;
    match view {
        View::Processes => vec![
            Column::number("PID", 8, is(Order::Id)),
            Column::number("CPU", 6, is(Order::Own)),
            Column::number("SHARE", 6, false),
            Column::number("KERNEL", 6, false),
            Column::name("PROCESS", 3, is(Order::Name)),
            Column::name("UNIT", 3, false),
            Column::name("COMMAND", 6, false),
        ],
        View::Threads => vec![
            Column::number("TID", 8, is(Order::Id)),
            Column::number("CPU", 6, is(Order::Own)),
            Column::number("SHARE", 6, false),
            Column::number("SAMPLES", 7, false),
            Column::name("THREAD", 1, is(Order::Name)),
            Column::name("PROCESS", 1, false),
        ],
        _ => vec![
            Column::number("SELF", 6, is(Order::Own)),
            Column::number("TOTAL", 6, is(Order::Total)),
            Column::number("SAMPLES", 7, false),
            Column { width: 1, ..Column::name("", 0, false) },
            Column::name("FUNCTION", 3, is(Order::Name)),
            Column::name("MODULE", 1, is(Order::Module)),
        ],
    }
}

fn function(canvas: &Canvas<'_>, model: &Model, row: &FunctionRow) -> Cells {
    let (name, kind) = (model.name(row.function), model.kind(row.function));
    let style = canvas.looks.kind(kind);
    let file = name.module.rsplit('/').next().unwrap_or(&name.module);
    vec![
        (share(row.own, model.total), Style::new()),
        (share(row.total, model.total), Style::new()),
        (count(row.own), Style::new()),
        (letter(kind).into(), canvas.looks.faint()),
        (name.name.clone(), style),
        (file.to_owned(), canvas.looks.faint()),
    ]
}

/// Of one CPU.
fn cpu(app: &App, model: &Model, samples: u64, value: u64) -> String {
    let time: Duration = model.snapshot.time;
    let share = model.source(app).and_then(|it| cpu_share(it, samples, value, time));
    share.map_or_else(|| "-".into(), percent)
}

fn process(canvas: &Canvas<'_>, app: &App, model: &Model, row: &ProcessRow) -> Cells {
    let metadata = row.metadata.as_deref();
    let command = metadata.and_then(|it| it.command_line.as_deref()).unwrap_or_default();
    let hint = hint(row);
    let (last, style) = match &hint {
        Some(hint) => (hint.clone(), canvas.looks.bad()),
        None => (printable(command).into_owned(), canvas.looks.faint()),
    };
    vec![
        (row.tgid.to_string(), Style::new()),
        (cpu(app, model, row.count, row.value), Style::new()),
        (share(row.count, model.total), Style::new()),
        (share(row.kernel, row.count), Style::new()),
        (row.name.clone(), Style::new()),
        (metadata.map(group).unwrap_or_default(), Style::new()),
        (last, style),
    ]
}

/// The container, by as much of its id as people use, or the unit.
fn group(metadata: &Metadata) -> String {
    let container = metadata.container.as_ref().map(|it| it.id.chars().take(12).collect());
    let text = container.or_else(|| metadata.unit.clone()).unwrap_or_default();
    printable(&text).into_owned()
}

/// What would help the process that is chosen.
pub(super) fn hint_of_chosen(app: &mut App, model: &Model) -> Option<String> {
    let Body::Processes(rows) = &model.body else { return None };
    let row = rows.get(app.place().row)?;
    hint(row).map(|hint| format!("{} (pid {}): {hint}", row.name, row.tgid))
}

/// What would help a process of which much has no name.
fn hint(row: &ProcessRow) -> Option<String> {
    // Some code has no name anywhere.
    if row.unnamed.saturating_mul(5) < row.count {
        return None;
    }
    let origin = row.why?;
    let command = row.metadata.as_ref().and_then(|it| it.command_line.as_deref());
    let program = command.and_then(|it| it.split(' ').next()?.rsplit('/').next());
    let is_made = matches!(origin, Origin::NoMap | Origin::OldMap | Origin::BadMap);
    let what = match program.unwrap_or(&row.name) {
        "node" | "nodejs" if is_made => {
            "restart with --perf-basic-prof --interpreted-frames-native-stack"
        }
        "java" if is_made => {
            "restart with -XX:+PreserveFramePointer, and then run jcmd PID Compiler.perfmap"
        }
        "dotnet" if is_made => "restart with DOTNET_PerfMapEnabled=1",
        _ => origin.hint()?,
    };
    Some(format!("{} without names: {what}", share(row.unnamed, row.count)))
}

fn thread(app: &App, model: &Model, row: &ThreadRow) -> Cells {
    vec![
        (row.tid.to_string(), Style::new()),
        (cpu(app, model, row.count, row.value), Style::new()),
        (share(row.count, model.total), Style::new()),
        (count(row.count), Style::new()),
        (row.name.clone(), Style::new()),
        (format!("{} (pid {})", row.process, row.tgid), Style::new()),
    ]
}
