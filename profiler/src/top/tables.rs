//! The views that are tables: functions, processes, threads and spawns.

use std::time::Duration;

use profiler_profile::{
    frame::Origin,
    live::{FunctionRow, Kind, ProcessRow, Span, SpawnRow, ThreadRow},
    printable::printable,
    process::Metadata,
    sample::Comm,
};
use ratatui_core::{layout::Rect, style::Style};

use super::{
    app::{App, Order, View},
    canvas::Canvas,
    colours::letter,
    model::{Body, Model},
    numbers::{count, cpu_share, percent, rate, share, short_time},
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
        let why = if app.view == View::Spawns {
            "no process has begun"
        } else if app.crumbs.is_empty() && app.search.is_none() {
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
            Body::Spawns(rows) => rows.get(row).map(|it| spawn(canvas, app, model, it)),
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
        View::Spawns => vec![
            Column::number("RATE", 7, is(Order::Own)),
            Column::number("COUNT", 6, false),
            Column::number("LIFE", 6, false),
            Column::number("CPU", 6, is(Order::Total)),
            Column::name("PROCESS ← PARENT ← UNIT", 5, is(Order::Name)),
            Column::name("COMMAND", 3, false),
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

/// Processes that have begun: what they are, who has begun them, and where that runs.
fn spawn(canvas: &Canvas<'_>, app: &App, model: &Model, row: &SpawnRow) -> Cells {
    let SpawnRow { kind, spawned, count: samples, value } = row;
    let name = |it: Comm| printable(&it.text()).into_owned();
    let mut text = name(kind.name);
    if !kind.has_executed {
        text += " (fork)";
    }
    for by in [Some(name(kind.parent)), kind.group.as_deref().map(short)].into_iter().flatten() {
        if !by.is_empty() {
            text.extend([" ← ", &by]);
        }
    }
    let lived = u32::try_from(spawned.ended).ok().and_then(|it| spawned.lived.checked_div(it));
    // Since the start, not all of them are known one by one.
    let cpu =
        if model.span == Span::Start { "-".into() } else { cpu(app, model, *samples, *value) };
    let command = spawned.command.as_deref().unwrap_or_default();
    vec![
        (rate(spawned.count, model.begun.time), Style::new()),
        (count(spawned.count), Style::new()),
        (lived.map_or_else(|| "-".into(), short_time), Style::new()),
        (cpu, Style::new()),
        (text, canvas.looks.kind(Kind::User)),
        (printable(command).into_owned(), canvas.looks.faint()),
    ]
}

/// The container, by as much of its id as people use, or the unit.
fn group(metadata: &Metadata) -> String {
    metadata.group().map(short).unwrap_or_default()
}

fn short(group: &str) -> String {
    // A unit's name has a dot in it.
    let is_container = group.len() == 64 && !group.contains('.');
    printable(if is_container { group.get(..12).unwrap_or(group) } else { group }).into_owned()
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
    let (origin, _) = row.why.iter().max_by_key(|(_, samples)| *samples)?;
    let command = row.metadata.as_ref().and_then(|it| it.command_line.as_deref());
    let program = command.and_then(|it| it.split(' ').next()?.rsplit('/').next());
    let is_made = matches!(origin, Origin::NoMap | Origin::OldMap | Origin::BadMap);
    let pid = row.tgid;
    let what = match program.unwrap_or(&row.name) {
        "node" | "nodejs" if is_made => {
            "restart with --perf-basic-prof --interpreted-frames-native-stack".into()
        }
        "java" if is_made => {
            format!("restart with -XX:+PreserveFramePointer, then jcmd {pid} Compiler.perfmap")
        }
        "dotnet" if is_made => "restart with DOTNET_PerfMapEnabled=1".into(),
        _ => origin.hint()?.to_owned(),
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
