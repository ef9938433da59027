//! Writing what the walk of user stacks needs into the program's maps.

use aya::{
    Ebpf,
    maps::{Array, ArrayOfMaps, HashMap, MapData, MapError},
};
use profiler_common::{
    python::Interpreter,
    unwind::{
        rule::Rule,
        space::{Block, Space},
        table::{self, Chunk, TABLES},
    },
};

use super::load::take_map;
use crate::error::{Error, Result};

/// Arrays of different lengths may take each other's place (Linux 5.10).
const BPF_F_INNER_MAP: u32 = 1 << 12;

/// A type of the program's maps, for aya to write.
macro_rules! pod {
    ($($name:ident($of:ty)),*) => {$(
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        struct $name($of);

        // SAFETY: it is made of integers, and has neither padding nor invalid values.
        unsafe impl aya::Pod for $name {}
    )*};
}
pod!(
    SpacePod(Space),
    BlockPod(Block),
    RulePod(Rule),
    ChunkPod(Chunk),
    WantedPod([u8; TABLES as usize]),
    InterpreterPod(Interpreter)
);

/// The maps.
pub struct UnwindMaps {
    spaces: HashMap<MapData, u32, SpacePod>,
    blocks: Array<MapData, BlockPod>,
    rules: Array<MapData, RulePod>,
    wanted: Array<MapData, WantedPod>,
    tables: ArrayOfMaps<MapData, Table>,
    interpreters: Array<MapData, InterpreterPod>,
    /// What stands in the place of a table that was taken out, for all of these.
    taken_out: Table,
    /// The table of a file that says nothing of its frames.
    nothing: Table,
}

type Table = Array<MapData, ChunkPod>;

/// A table of no pages.
const NOTHING: Chunk = [0; size_of::<Chunk>() / 4];
const TAKEN_OUT: Chunk = {
    let mut chunk = NOTHING;
    let [first_page, ..] = &mut chunk;
    *first_page = table::TAKEN_OUT;
    chunk
};

impl UnwindMaps {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self> {
        let table = |chunk| {
            new_table(&[chunk])
                .map_err(|error| Error::system("cannot make a map for an unwind table", error))
        };
        Ok(Self {
            taken_out: table(TAKEN_OUT)?,
            nothing: table(NOTHING)?,
            spaces: take_map(ebpf, "SPACES")?,
            blocks: take_map(ebpf, "BLOCKS")?,
            rules: take_map(ebpf, "RULE")?,
            wanted: take_map(ebpf, "WANTED")?,
            tables: take_map(ebpf, "TABLE")?,
            interpreters: take_map(ebpf, "INTERPRETER")?,
        })
    }

    /// How many blocks there are.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks.len()
    }

    /// Writes a block.
    pub fn set_block(&mut self, number: u32, block: &Block) -> Result<(), MapError> {
        self.blocks.set(number, BlockPod(*block), 0)
    }

    /// Says where a process's blocks are. Fails if there are too many processes.
    pub fn set_space(&mut self, tgid: u32, space: Space) -> Result<(), MapError> {
        self.spaces.insert(tgid, SpacePod(space), 0)
    }

    /// Says how an interpreter keeps its frames. An element that processes refer to must stay as it is.
    pub fn set_interpreter(&mut self, number: u32, it: Interpreter) -> Result<(), MapError> {
        self.interpreters.set(number, InterpreterPod(it), 0)
    }

    /// Forgets a process.
    pub fn forget_space(&mut self, tgid: u32) -> Result<(), MapError> {
        self.spaces.remove(&tgid)
    }

    /// Writes rules, the first of them with this number.
    pub fn set_rules(&mut self, first: u32, rules: &[Rule]) -> Result<(), MapError> {
        (first..)
            .zip(rules)
            .try_for_each(|(number, rule)| self.rules.set(number, RulePod(*rule), 0))
    }

    /// Puts a table in its place. The kernel frees what was there when no program uses it any more.
    pub fn set_table(&mut self, number: u32, chunks: &[Chunk]) -> Result<(), MapError> {
        self.tables.set(number, &new_table(chunks)?, 0)
    }

    /// Has the walk know that there is no table for this place, and never will be.
    pub fn set_nothing(&mut self, number: u32) -> Result<(), MapError> {
        self.tables.set(number, &self.nothing, 0)
    }

    /// Takes a table out: the walk asks for it when it needs it again.
    pub fn take_table_out(&mut self, number: u32) -> Result<(), MapError> {
        self.tables.set(number, &self.taken_out, 0)
    }

    /// The numbers of the tables that the walk has looked for since this was last asked.
    pub fn take_wanted(&mut self) -> Result<Vec<u32>, MapError> {
        let WantedPod(wanted) = self.wanted.get(&0, 0)?;
        let numbers: Vec<u32> =
            (0..).zip(wanted).filter(|(_, is)| *is != 0).map(|(number, _)| number).collect();
        if !numbers.is_empty() {
            // One that is set in between is set again by the next sample.
            self.wanted.set(0, WantedPod([0; TABLES as usize]), 0)?;
        }
        Ok(numbers)
    }
}

fn new_table(chunks: &[Chunk]) -> Result<Table, MapError> {
    let entries = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
    let mut table = Table::create(entries, BPF_F_INNER_MAP)?;
    for (at, chunk) in (0..).zip(chunks) {
        table.set(at, ChunkPod(*chunk), 0)?;
    }
    Ok(table)
}
