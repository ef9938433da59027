//! What there is to show of a run at a moment, and of that what the user has chosen.

use std::{
    cmp::Reverse,
    sync::Arc,
    time::{Duration, Instant},
};

use profiler_profile::{
    live::{
        Begun, Filter, Flame, FunctionName, FunctionRow, Kind, Live, Neighbours, ProcessRow,
        Snapshot, Span, SpawnRow, Stacks, ThreadRow, Vitals,
    },
    source::Source,
};

use super::{
    app::{App, Order, RowKey, View},
    machine::Machine,
};
use crate::kernel;

/// What a view shows.
#[derive(Debug, Default)]
pub(super) enum Body {
    #[default]
    Nothing,
    Functions(Vec<FunctionRow>),
    Processes(Vec<ProcessRow>),
    Threads(Vec<ThreadRow>),
    Spawns(Vec<SpawnRow>),
    Callers(usize, Neighbours),
    Flame(Flame),
}

/// What rows are made of: while it is the same, so are they.
#[derive(Clone, Debug, PartialEq)]
struct Choice {
    look: u64,
    filter: Filter,
    view: View,
    order: Order,
    search: Option<String>,
}

/// What there is to show.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) sources: Vec<Arc<Source>>,
    pub(super) machine: Machine,
    pub(super) vitals: Vitals,
    /// What of a CPU the agent took lately.
    pub(super) own_cpu: Option<f64>,
    told: Option<(Instant, Duration)>,
    /// What of it: the window, or all since the start.
    pub(super) span: Span,
    /// What was sampled, without the samples.
    pub(super) snapshot: Snapshot,
    pub(super) stacks: Stacks,
    /// The processes that have begun, and how many do a second.
    pub(super) begun: Begun,
    pub(super) spawn_rate: f64,
    /// The number of the snapshot.
    look: u64,
    choice: Option<Choice>,
    /// The stacks that are wanted.
    pub(super) wanted: Vec<usize>,
    /// Samples of the source that is shown, and of them those that are wanted.
    pub(super) all: u64,
    pub(super) total: u64,
    pub(super) body: Body,
}

impl Model {
    /// Of these sources nothing yet.
    pub(super) fn new(sources: Vec<Arc<Source>>) -> Self {
        Self { sources, ..Self::default() }
    }

    /// Looks at the run and at the machine.
    pub(super) fn look(&mut self, live: &Live, app: &App) {
        self.machine.look();
        let (vitals, now) = (live.vitals(), Instant::now());
        if vitals.cpu != self.vitals.cpu {
            let (at, before) = self.told.unwrap_or((now, vitals.cpu));
            let passed = now.saturating_duration_since(at).as_secs_f64();
            let used = vitals.cpu.saturating_sub(before).as_secs_f64();
            self.own_cpu = (passed > 0.0).then(|| used / passed);
            self.told = Some((now, vitals.cpu));
        }
        self.vitals = vitals;
        if !app.is_paused {
            self.span = app.span;
            self.take(live.snapshot(app.span, kernel::monotonic_ns()));
            live.set_beside(self.stacks.bytes());
            let now_ns = kernel::monotonic_ns();
            self.begun = live.begun(app.span, now_ns);
            self.spawn_rate = live.spawns().rate(now_ns);
        }
    }

    /// Takes what was sampled.
    pub(super) fn take(&mut self, mut snapshot: Snapshot) {
        let lines = std::mem::take(&mut snapshot.lines);
        self.stacks.take(Snapshot { lines, ..Snapshot::default() });
        self.snapshot = snapshot;
        self.look += 1;
    }

    /// Makes what the user has chosen of it, unless that is made already.
    pub(super) fn choose(&mut self, app: &mut App) {
        let choice = Choice {
            look: self.look,
            filter: app.filter(),
            view: app.view,
            order: app.order(),
            search: app.search.as_ref().map(|it| it.as_str().to_owned()),
        };
        let before = self.choice.take();
        let is_of_same = |it: &Choice| it.look == choice.look && it.filter == choice.filter;
        if !before.as_ref().is_some_and(is_of_same) {
            self.wanted = choice.filter.stacks(&self.stacks);
            let of_source = |it: &&profiler_profile::live::Line| it.entry.source.slot == app.slot;
            self.all = self.stacks.lines().iter().filter(of_source).map(|it| it.count).sum();
            self.total = self.wanted.iter().map(|it| self.stacks.count_of(*it)).sum();
        }
        if before.as_ref() != Some(&choice) {
            self.body = self.body_of(app);
        }
        self.choice = Some(choice);
        self.find_again(app);
    }

    fn body_of(&self, app: &App) -> Body {
        match app.view {
            View::Functions => Body::Functions(self.functions(app)),
            View::Processes => Body::Processes(self.processes(app)),
            View::Threads => Body::Threads(self.threads(app)),
            View::Callers => self.callers(app),
            View::Flame => Body::Flame(Flame::of(&self.stacks, &self.wanted)),
            View::Spawns => Body::Spawns(self.spawns(app)),
        }
    }

    fn functions(&self, app: &App) -> Vec<FunctionRow> {
        let mut rows = self.stacks.function_rows(&self.wanted);
        rows.retain(|it| app.is_found(&self.name(it.function).name));
        let order = app.order();
        rows.sort_by(|a, b| {
            let (name_a, name_b) = (self.name(a.function), self.name(b.function));
            let heat = match order {
                Order::Total => (b.total, b.own).cmp(&(a.total, a.own)),
                Order::Name => std::cmp::Ordering::Equal,
                Order::Module => name_a.module.cmp(&name_b.module).then((b.own).cmp(&a.own)),
                Order::Own | Order::Id => (b.own, b.total).cmp(&(a.own, a.total)),
            };
            heat.then_with(|| name_a.cmp(name_b))
        });
        rows
    }

    fn processes(&self, app: &App) -> Vec<ProcessRow> {
        let mut rows = self.stacks.process_rows(&self.wanted);
        let command = |it: &ProcessRow| it.metadata.as_ref().and_then(|it| it.command_line.clone());
        rows.retain(|it| app.is_found(&it.name) || app.is_found(&command(it).unwrap_or_default()));
        match app.order() {
            Order::Id => rows.sort_by_key(|it| it.tgid),
            Order::Name => rows.sort_by(|a, b| (&a.name, a.tgid).cmp(&(&b.name, b.tgid))),
            _ => rows.sort_by_key(|it| (Reverse(it.count), it.tgid)),
        }
        rows
    }

    fn threads(&self, app: &App) -> Vec<ThreadRow> {
        let mut rows = self.stacks.thread_rows(&self.wanted);
        rows.retain(|it| app.is_found(&it.name) || app.is_found(&it.process));
        match app.order() {
            Order::Id => rows.sort_by_key(|it| (it.tgid, it.tid)),
            Order::Name => rows.sort_by(|a, b| (&a.name, a.tid).cmp(&(&b.name, b.tid))),
            _ => rows.sort_by_key(|it| (Reverse(it.count), it.tid)),
        }
        rows
    }

    fn spawns(&self, app: &App) -> Vec<SpawnRow> {
        let filter = app.filter();
        // What a process has begun has samples of its own.
        let of_all = Filter { process: None, name: None, ..filter.clone() };
        let mut rows = self.stacks.spawn_rows(&of_all.stacks(&self.stacks), &self.begun, &filter);
        rows.retain(|it| {
            let SpawnRow { kind, spawned, .. } = it;
            let command = spawned.command.as_deref().unwrap_or_default();
            let texts = [&*kind.name.text(), &*kind.parent.text(), command];
            texts.iter().any(|it| app.is_found(it))
        });
        rows.sort_by(|a, b| {
            let name = |it: &SpawnRow| (it.kind.name, it.kind.parent, it.kind.group.clone());
            let most = match app.order() {
                Order::Total => (b.count, b.spawned.count).cmp(&(a.count, a.spawned.count)),
                Order::Name => std::cmp::Ordering::Equal,
                _ => (b.spawned.count, b.count).cmp(&(a.spawned.count, a.count)),
            };
            most.then_with(|| name(a).cmp(&name(b)))
        });
        rows
    }

    /// Those of the function that was chosen, or of the hottest.
    fn callers(&self, app: &App) -> Body {
        let hottest = || {
            let rows = self.stacks.function_rows(&self.wanted);
            let key = |it: &FunctionRow| (it.own, it.total, Reverse(self.name(it.function)));
            rows.iter().max_by(|a, b| key(a).cmp(&key(b))).map(|it| it.function)
        };
        let function = match app.function() {
            Some(name) => self.stacks.find(name),
            None => hottest(),
        };
        let Some(function) = function else { return Body::Nothing };
        let mut found = self.stacks.neighbours(&self.wanted, function);
        for of in [&mut found.callers, &mut found.callees] {
            of.retain(|(it, _)| app.is_found(&self.name(*it).name));
        }
        Body::Callers(function, found)
    }

    /// What a function is called.
    pub(super) fn name(&self, function: usize) -> &FunctionName {
        static NONE: FunctionName = FunctionName { name: String::new(), module: String::new() };
        self.stacks.get(function).map_or(&NONE, |it| &it.name)
    }

    /// What a function is part of.
    pub(super) fn kind(&self, function: usize) -> Kind {
        self.stacks.get(function).map_or(Kind::User, |it| it.kind)
    }

    /// The source that is shown.
    pub(super) fn source(&self, app: &App) -> Option<&Source> {
        self.sources.iter().find(|it| it.slot == app.slot).map(|it| &**it)
    }

    /// How many rows the view has.
    pub(super) fn rows(&self) -> usize {
        match &self.body {
            Body::Nothing | Body::Flame(_) => 0,
            Body::Functions(rows) => rows.len(),
            Body::Processes(rows) => rows.len(),
            Body::Threads(rows) => rows.len(),
            Body::Spawns(rows) => rows.len(),
            Body::Callers(_, found) => found.callers.len() + found.callees.len(),
        }
    }

    /// What a row stands for.
    pub(super) fn row(&self, row: usize) -> Option<RowKey> {
        match &self.body {
            Body::Nothing | Body::Flame(_) => None,
            Body::Functions(rows) => {
                rows.get(row).map(|it| RowKey::Function(self.name(it.function).clone()))
            }
            Body::Processes(rows) => {
                rows.get(row).map(|it| RowKey::Process(it.tgid, it.name.clone()))
            }
            Body::Threads(rows) => rows.get(row).map(|it| RowKey::Thread(it.tid, it.name.clone())),
            Body::Spawns(rows) => rows.get(row).map(|it| RowKey::Spawn(it.kind.clone())),
            Body::Callers(_, found) => match row.checked_sub(found.callers.len()) {
                None => found.callers.get(row).map(|it| RowKey::Caller(self.name(it.0).clone())),
                Some(row) => {
                    found.callees.get(row).map(|it| RowKey::Callee(self.name(it.0).clone()))
                }
            },
        }
    }

    /// Has the user stay where they are, while rows move.
    fn find_again(&self, app: &mut App) {
        let Some(chosen) = app.place().chosen.clone() else {
            app.place().row = 0;
            return;
        };
        // Most often it has not moved.
        let row = app.place().row;
        let is_there = |row: &usize| self.row(*row).as_ref() == Some(&chosen);
        let found = Some(row).filter(is_there).or_else(|| (0..self.rows()).find(is_there));
        match found {
            Some(row) => app.place().row = row,
            // It is gone, and no other is chosen in its place.
            None => app.place().chosen = None,
        }
    }
}
