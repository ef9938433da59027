//! The thread that makes tables: that of a large program takes a while, in which the mappings of others
//! must not wait.

use std::{
    collections::VecDeque,
    fs,
    os::unix::fs::FileExt as _,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use profiler_common::unwind::rule::Rule;
use profiler_profile::frame::Missing;
use profiler_unwind::{NoTable, Rules, Standalone, Table};

use super::interpreters::{Answer, Question};
use crate::{
    parser::{Bars, Budget, Parser, Refusal},
    process::file::MappedFile,
    procfs::maps::{self, Backing},
    realtime::{Priority, Role},
    stderr,
    time_budget::TimeBudget,
};

/// Questions about Python get one part in so many of the thread's time, of which so much may be used at once: tables are for
/// all programs, and what these questions read belongs to anybody.
const PYTHON_SHARE: u32 = 8;
const PYTHON_AT_ONCE: Duration = Duration::from_secs(1);
/// How long the thread waits for another job where only questions are left, and no time for them.
const PYTHON_WAITS: Duration = Duration::from_millis(100);

/// Tables that may wait to be made.
const QUEUE: usize = 64;

/// One of so many tables is that which waits for longest.
const OLDEST_EVERY: u64 = 4;

/// What the table of a file may take: some hundred times what that of the largest known program does.
const BUDGET: Budget = Budget { cpu: Duration::from_secs(3), wall: Duration::from_secs(20) };

/// What a table is to be made of.
pub(super) enum Code {
    File(Arc<MappedFile>),
    Vdso,
}

impl Code {
    /// How large it is.
    fn bytes(&self) -> u64 {
        match self {
            Self::File(file) => {
                file.file().and_then(|it| it.metadata().ok()).map_or(0, |it| it.len())
            }
            Self::Vdso => 0,
        }
    }
}

/// A table's place, and which of those that are there in turn it is.
pub(super) type Ticket = (u32, u64);

/// A table that was made.
pub(super) struct Built {
    /// What it was asked with.
    pub(super) ticket: Ticket,
    /// How often the rules were begun anew before it was made.
    epoch: u64,
    /// The number of the first of the rules that it brought.
    pub(super) first_rule: u32,
    /// Rules that no table before had.
    pub(super) rules: Vec<Rule>,
    /// How many rules there are with these.
    pub(super) rules_in_all: usize,
    /// The table, or why there is none; `None` where the file can't be used now.
    pub(super) table: Option<Result<Standalone, NoTable>>,
    /// Whether rules of it are missing, since those of other files leave no room.
    pub(super) lacks_rules: bool,
}

pub(super) enum Job {
    Make(Ticket, Code),
    StartOver,
    /// Something else that the parser process is asked.
    Python(Question),
}

/// The thread, seen from outside. It ends when this is dropped.
pub(super) struct Builder {
    jobs: mpsc::SyncSender<Job>,
    built: mpsc::Receiver<Built>,
    /// What was found of Python, until somebody takes it.
    python: Option<mpsc::Receiver<Answer>>,
    waiting: usize,
    epoch: u64,
}

impl Builder {
    pub(super) fn start(bars: Arc<Bars>) -> std::io::Result<Self> {
        let (sender, jobs) = mpsc::sync_channel(QUEUE);
        let (done, built) = mpsc::channel();
        let (told, python) = mpsc::channel();
        // It is to be there before the agent gives up what starting it needs.
        let run = move || build(Parser::start(bars, BUDGET, Role::Tables), &jobs, &done, &told);
        thread::Builder::new().name("unwind-tables".into()).spawn(run)?;
        Ok(Self { jobs: sender, built, python: Some(python), waiting: 0, epoch: 0 })
    }

    /// Where questions about Python go, and where the answers come from; `None` but for the first time.
    pub(super) fn python(&mut self) -> Option<(mpsc::SyncSender<Job>, mpsc::Receiver<Answer>)> {
        Some((self.jobs.clone(), self.python.take()?))
    }

    /// Has a table made; whether there was room.
    pub(super) fn ask(&mut self, ticket: Ticket, code: Code) -> bool {
        let asked = self.jobs.try_send(Job::Make(ticket, code)).is_ok();
        self.waiting += usize::from(asked);
        asked
    }

    /// Begins the rules anew; whether there was room to say so. Then no table of before is of use, and
    /// those that are still to come from before are left out.
    pub(super) fn start_over(&mut self) -> bool {
        let told = self.jobs.try_send(Job::StartOver).is_ok();
        self.epoch += u64::from(told);
        told
    }

    /// Whether there is a table to come.
    pub(super) fn is_busy(&self) -> bool {
        self.waiting > 0
    }

    /// The next table that is done.
    pub(super) fn built(&mut self) -> Option<Built> {
        loop {
            let built = self.built.try_recv().ok()?;
            self.waiting -= 1;
            if built.epoch == self.epoch {
                return Some(built);
            }
        }
    }
}

fn build(
    parser: Parser,
    jobs: &mpsc::Receiver<Job>,
    done: &mpsc::Sender<Built>,
    told: &mpsc::Sender<Answer>,
) {
    let mut maker = Maker::new(parser);
    // In the order in which they came.
    let mut waiting: Vec<(Ticket, Code)> = Vec::new();
    let mut made: u64 = 0;
    let mut questions: VecDeque<Question> = VecDeque::new();
    let mut of_python = TimeBudget::sharing(PYTHON_SHARE, PYTHON_AT_ONCE, Instant::now());
    let mut priority = Priority::enter(Role::Tables);
    loop {
        let may_ask = !questions.is_empty() && of_python.is_left(Instant::now());
        let first = match (waiting.is_empty(), questions.is_empty()) {
            (true, true) => jobs.recv().map(Some),
            (true, false) if !may_ask => match jobs.recv_timeout(PYTHON_WAITS) {
                Err(mpsc::RecvTimeoutError::Disconnected) => Err(mpsc::RecvError),
                first => Ok(first.ok()),
            },
            _ => Ok(None),
        };
        let Ok(first) = first else { break };
        priority.renew();
        for job in first.into_iter().chain(jobs.try_iter()) {
            match job {
                Job::Make(ticket, code) => waiting.push((ticket, code)),
                Job::StartOver => maker.start_over(),
                Job::Python(question) => questions.push_back(question),
            }
        }
        // One for each table.
        if may_ask && let Some(question) = questions.pop_front() {
            let start = Instant::now();
            // Nobody waits for it any more when the run is at its end.
            drop(told.send(question.answer(&mut maker.parser)));
            let now = Instant::now();
            of_python.take(now, now.duration_since(start));
        }
        // The smallest first: what takes long holds up only what takes longer. But where small ones keep
        // coming, it has its turn.
        let smallest = waiting.iter().enumerate().min_by_key(|(_, (_, code))| code.bytes());
        let Some((smallest, _)) = smallest else { continue };
        made += 1;
        let at = if made.is_multiple_of(OLDEST_EVERY) { 0 } else { smallest };
        let (ticket, code) = waiting.remove(at);
        if done.send(maker.make(ticket, &code)).is_err() {
            break;
        }
    }
}

/// What makes tables that share their rules.
struct Maker {
    parser: Parser,
    rules: Rules,
    /// How many of them were given away.
    told: usize,
    epoch: u64,
    /// Whether it was said that a Go is not known.
    told_newer_go: bool,
}

impl Maker {
    fn new(parser: Parser) -> Self {
        Self { parser, rules: Rules::new(), told: 0, epoch: 0, told_newer_go: false }
    }

    fn start_over(&mut self) {
        (self.rules, self.told) = (Rules::new(), 0);
        self.epoch += 1;
    }

    fn make(&mut self, ticket: Ticket, code: &Code) -> Built {
        let start = Instant::now();
        let mut table = match code {
            Code::Vdso => {
                let mut rules = Rules::new();
                let table = Table::of_vdso(&vdso(), &mut rules);
                Some(table.map(|table| Standalone::new(table, &rules)))
            }
            Code::File(file) => of_file(&mut self.parser, file),
        };
        if let Some(Ok(table)) = &mut table {
            table.renumber(&mut self.rules);
        }
        let bytes = table.as_ref().map(|it| it.as_ref().map(|it| size_of_val(it.chunks())));
        tracing::debug!("unwind table {ticket:?}: {bytes:?} bytes in {:?}", start.elapsed());
        if !self.told_newer_go && matches!(&table, Some(Ok(it)) if it.is_newer_go()) {
            self.told_newer_go = true;
            stderr::notice(
                "the table of a Go program (.gopclntab) has an unknown version, or does not say where the code \
                 begins: its stacks are unwound by .debug_frame or frame pointers",
            );
        }
        let is_short = matches!(&table, Some(Ok(table)) if table.lacks_rules());
        let lacks_rules = self.rules.is_full() && is_short;
        let first_rule = u32::try_from(self.told).unwrap_or(u32::MAX);
        let rules = self.rules.since(self.told).to_vec();
        self.told = self.rules.len();
        let (epoch, rules_in_all) = (self.epoch, self.told);
        Built { ticket, epoch, first_rule, rules, rules_in_all, table, lacks_rules }
    }
}

/// The table of a file, by the parser process; `None` if it can't be had now.
pub(super) fn of_file(
    parser: &mut Parser,
    file: &MappedFile,
) -> Option<Result<Standalone, NoTable>> {
    let key = file.key()?;
    let table = match file.unchanged() {
        Ok(open) => match parser.table(key, open) {
            Ok(table) => table,
            Err(Refusal::Barred) => Err(NoTable::Barred),
            Err(Refusal::Unavailable | Refusal::Unanswered) => return None,
        },
        // The contents that were mapped do not come back.
        Err(Missing::Changed) => Err(NoTable::Changed),
        Err(_) => return None,
    };
    Some(table.map_err(|why| match why {
        NoTable::Changed | NoTable::NotElf if file.is_memory() => NoTable::Made,
        why => why,
    }))
}

/// The vDSO as it is mapped here, which is as it is mapped everywhere.
pub(super) fn vdso() -> Vec<u8> {
    let read = || {
        let text = fs::read("/proc/self/maps").ok()?;
        let vdso = maps::parse(&text).into_iter().find(|it| it.backing == Backing::Vdso)?;
        let mut bytes = vec![0; usize::try_from(vdso.end - vdso.start).ok()?];
        let memory = fs::File::open("/proc/self/mem").ok()?;
        memory.read_exact_at(&mut bytes, vdso.start).ok()?;
        Some(bytes)
    };
    read().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::unwind::{rule::Cfa, table::RULES};

    fn maker() -> Maker {
        Maker::new(Parser::start(Arc::default(), BUDGET, Role::Tables))
    }

    /// A maker with no room for another rule.
    fn full() -> Maker {
        let mut maker = maker();
        for offset in 0..i32::try_from(RULES).unwrap() {
            // No code has such frames.
            let rule = Rule { cfa_offset: 1 + 2 * offset, ..Rule::of(Cfa::SP) };
            let _ = maker.rules.number(&rule, usize::MAX);
        }
        assert!(maker.rules.is_full());
        maker
    }

    #[test]
    fn a_table_that_lacks_rules_is_whole_when_they_are_begun_anew() {
        if vdso().is_empty() {
            return stderr::say("skipped: there is no vDSO");
        }
        let known = |built: &Built| {
            let Some(Ok(table)) = &built.table else { panic!("no table") };
            !table.lacks_rules()
        };
        let mut maker = full();
        let built = maker.make((0, 0), &Code::Vdso);
        assert!(built.lacks_rules && !known(&built));
        maker.start_over();
        let built = maker.make((0, 0), &Code::Vdso);
        assert!(!built.lacks_rules && known(&built));
        // The kernel is told of all, from the first on.
        assert_eq!((built.first_rule, built.rules.len()), (0, built.rules_in_all));
        let again = maker.make((0, 0), &Code::Vdso);
        assert_eq!((again.first_rule as usize, again.rules.len()), (built.rules_in_all, 0));
    }

    #[test]
    fn tables_from_before_the_rules_were_begun_anew_do_not_come() {
        let mut builder = Builder::start(Arc::default()).unwrap();
        assert!(builder.ask((0, 1), Code::Vdso));
        let first = loop {
            if let Some(built) = builder.built() {
                break built;
            }
            thread::yield_now();
        };
        assert_eq!((first.ticket, builder.is_busy()), ((0, 1), false));
        for number in 0..10 {
            assert!(builder.ask((number, 2), Code::Vdso));
        }
        assert!(builder.start_over());
        assert!(builder.ask((10, 3), Code::Vdso));
        let mut rules = Vec::new();
        while builder.is_busy() {
            match builder.built() {
                Some(built) => rules.push((built.first_rule, built.rules.len())),
                None => thread::yield_now(),
            }
        }
        // Those that come refer to the rules that are told with them.
        assert!(!rules.is_empty());
        assert_eq!(rules[0], (0, first.rules.len()));
    }
}
