//! What the user has chosen to see.

use std::path::PathBuf;

use profiler_profile::{
    live::{Filter, FunctionName, Span, SpawnKind},
    printable::printable,
    sample::Comm,
};
use ratatui_core::layout::Rect;
use regex::Regex;

use super::prompt::Prompt;

/// What fills the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum View {
    #[default]
    Functions,
    Processes,
    Callers,
    Flame,
    Threads,
    Spawns,
}

impl View {
    /// All of them, in the order of their keys, `1` first.
    pub(super) const ALL: [Self; 6] =
        [Self::Functions, Self::Processes, Self::Callers, Self::Flame, Self::Threads, Self::Spawns];

    /// What it is called.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Functions => "functions",
            Self::Processes => "processes",
            Self::Callers => "callers",
            Self::Flame => "flame",
            Self::Threads => "threads",
            Self::Spawns => "spawns",
        }
    }

    /// The columns that its rows can be sorted by; the first is where it begins.
    pub(super) fn orders(self) -> &'static [Order] {
        match self {
            Self::Functions => &[Order::Own, Order::Total, Order::Name, Order::Module],
            Self::Processes | Self::Threads => &[Order::Own, Order::Id, Order::Name],
            Self::Callers | Self::Flame => &[Order::Own],
            Self::Spawns => &[Order::Own, Order::Total, Order::Name],
        }
    }

    pub(super) fn number(self) -> usize {
        Self::ALL.iter().position(|it| *it == self).unwrap_or(0)
    }
}

/// What rows are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Own,
    Total,
    Name,
    Module,
    Id,
}

/// One thing that was chosen, and what all views show then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Crumb {
    Process(u32, String),
    Name(Comm),
    Thread(u32, String),
    Group(String),
    User(u32, Vec<u32>),
    Cpu(u32),
    Function(FunctionName),
}

impl Crumb {
    /// What it is, for people.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Process(id, name) => format!("{name} (pid {id})"),
            Self::Name(name) => printable(&name.text()).into_owned(),
            Self::Thread(id, name) => format!("{name} (tid {id})"),
            Self::Group(name) => printable(name).chars().take(24).collect(),
            Self::User(id, _) => format!("uid {id}"),
            Self::Cpu(cpu) => format!("CPU {cpu}"),
            Self::Function(FunctionName { name, .. }) => name.clone(),
        }
    }
}

/// What a row stands for, by which it is found again when rows have moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RowKey {
    Function(FunctionName),
    Caller(FunctionName),
    Callee(FunctionName),
    Process(u32, String),
    Thread(u32, String),
    Spawn(SpawnKind),
}

/// Where the user is in a list.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// The row; `None` while it is just the first.
    pub(super) chosen: Option<RowKey>,
    pub(super) row: usize,
    /// The first row that is shown.
    pub(super) offset: usize,
}

impl Place {
    /// Has the chosen one of so many rows within so many lines.
    pub(super) fn fit(&mut self, rows: usize, lines: usize) {
        self.row = self.row.min(rows.saturating_sub(1));
        self.offset = self.offset.min(self.row).min(rows.saturating_sub(lines));
        self.offset = self.offset.max((self.row + 1).saturating_sub(lines));
    }
}

/// What only the one who has the terminal and the machine can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Quit,
    Suspend,
    Save(PathBuf),
    /// Draw everything anew.
    Redraw,
}

/// Where the mouse would hit what, as it was drawn last.
#[derive(Clone, Debug, Default)]
pub(super) struct Hits {
    pub(super) tabs: Vec<(Rect, View)>,
    pub(super) rows: Rect,
    /// The lines that have rows, where not all have.
    pub(super) lines: Vec<(u16, usize)>,
    pub(super) calls: Vec<(Rect, Vec<FunctionName>)>,
}

/// All that the user has chosen.
#[derive(Debug, Default)]
pub(super) struct App {
    pub(super) view: View,
    pub(super) span: Span,
    /// The source that is shown, by slot.
    pub(super) slot: usize,
    pub(super) crumbs: Vec<Crumb>,
    /// By view: the number of the order, and where the user is.
    pub(super) orders: [usize; View::ALL.len()],
    pub(super) places: [Place; View::ALL.len()],
    pub(super) search: Option<Regex>,
    pub(super) prompt: Option<Prompt>,
    pub(super) is_paused: bool,
    pub(super) shows_help: bool,
    pub(super) shows_log: bool,
    /// The call that fills the flame graph, those that did before, and the one that is chosen there.
    pub(super) zoom: Vec<FunctionName>,
    pub(super) zooms: Vec<Vec<FunctionName>>,
    pub(super) call: Vec<FunctionName>,
    /// What is to be told, until the next key.
    pub(super) said: Option<String>,
    pub(super) wish: Option<Wish>,
    pub(super) hits: Hits,
}

impl App {
    /// Which samples all views show.
    pub(super) fn filter(&self) -> Filter {
        let mut filter = Filter { slot: self.slot, ..Filter::default() };
        for crumb in &self.crumbs {
            match crumb {
                Crumb::Process(id, _) => filter.process = Some(*id),
                Crumb::Name(name) => filter.name = Some(*name),
                Crumb::Thread(id, _) => filter.thread = Some(*id),
                Crumb::Group(name) => filter.group = Some(name.clone()),
                Crumb::User(id, theirs) => filter.user = Some((*id, theirs.clone())),
                Crumb::Cpu(cpu) => filter.cpu = Some(*cpu),
                Crumb::Function(name) => filter.function = Some(name.clone()),
            }
        }
        filter
    }

    /// Chooses, in the place of what of that kind was chosen before.
    pub(super) fn choose(&mut self, crumb: Crumb) {
        let kind = std::mem::discriminant(&crumb);
        self.crumbs.retain(|it| std::mem::discriminant(it) != kind);
        self.crumbs.push(crumb);
        self.places = <[Place; View::ALL.len()]>::default();
    }

    /// Has the chosen call fill the flame graph.
    pub(super) fn zoom(&mut self) {
        if self.zoom != self.call {
            let before = std::mem::replace(&mut self.zoom, self.call.clone());
            self.zooms.push(before);
        }
    }

    /// Takes the last zoom back; whether there was one.
    pub(super) fn unzoom(&mut self) -> bool {
        if self.zoom.is_empty() {
            self.zooms.clear();
            return false;
        }
        // One may have led to what is gone since.
        while let Some(before) = self.zooms.pop() {
            if before != self.zoom {
                self.zoom = before;
                return true;
            }
        }
        self.zoom.clear();
        true
    }

    /// Takes the last choice back; whether there was one.
    pub(super) fn undo(&mut self) -> bool {
        self.places = <[Place; View::ALL.len()]>::default();
        self.crumbs.pop().is_some()
    }

    /// The function that was chosen.
    pub(super) fn function(&self) -> Option<&FunctionName> {
        self.crumbs.iter().rev().find_map(|it| match it {
            Crumb::Function(name) => Some(name),
            _ => None,
        })
    }

    /// What the rows are sorted by.
    pub(super) fn order(&self) -> Order {
        let orders = self.view.orders();
        let number = self.orders.get(self.view.number()).copied().unwrap_or(0);
        orders.get(number).copied().unwrap_or(Order::Own)
    }

    /// Sorts by the next column, or the one before.
    pub(super) fn reorder(&mut self, forward: bool) {
        let count = self.view.orders().len();
        if let Some(order) = self.orders.get_mut(self.view.number()) {
            *order = (*order + if forward { 1 } else { count - 1 }) % count;
        }
    }

    /// Where the user is in this view.
    pub(super) fn place(&mut self) -> &mut Place {
        let [functions, processes, callers, flame, threads, spawns] = &mut self.places;
        match self.view {
            View::Functions => functions,
            View::Processes => processes,
            View::Callers => callers,
            View::Flame => flame,
            View::Threads => threads,
            View::Spawns => spawns,
        }
    }

    /// Whether something is looked for and this is it.
    pub(super) fn is_found(&self, text: &str) -> bool {
        self.search.as_ref().is_none_or(|it| it.is_match(text))
    }
}
