//! What samples refer to: texts, functions, mappings and locations.

use std::{ops::Range, sync::Arc};

use rustc_hash::FxHashMap;

use super::decode;
use crate::{
    import::{
        Budget, Error, Frame, ValueType,
        wire::{Field, Fields, Value},
    },
    profile_proto as proto,
};

/// The tables of a profile.
#[derive(Default)]
pub(super) struct Tables {
    texts: Vec<Arc<str>>,
    /// The frames of all locations.
    pub(super) frames: Vec<Frame>,
    /// Which of them are those of a location, by its id.
    locations: FxHashMap<u64, Range<u32>>,
}

/// Messages with an id, and where each begins.
type ById<M> = FxHashMap<u64, (usize, M)>;

impl Tables {
    pub(super) fn read(profile: &[u8], budget: &mut Budget) -> Result<Self, Error> {
        let mut tables = Self::default();
        let mut mappings: ById<proto::Mapping> = FxHashMap::default();
        let mut functions: ById<proto::Function> = FxHashMap::default();
        for field in Fields::of(profile) {
            let Field { at, number, value } = field?;
            let Value::Bytes(message) = value else { continue };
            match number {
                3 => {
                    let mapping: proto::Mapping = decode(message, at, "mapping", budget)?;
                    budget.take(1)?;
                    insert(&mut mappings, mapping.id, at, mapping, "mapping")?;
                }
                5 => {
                    let function: proto::Function = decode(message, at, "function", budget)?;
                    budget.take(1)?;
                    insert(&mut functions, function.id, at, function, "function")?;
                }
                6 => {
                    if tables.texts.is_empty() && !message.is_empty() {
                        let what = "the first text is not empty".into();
                        return Err(Error::Byte { at, what });
                    }
                    budget.take(1)?;
                    tables.texts.push(String::from_utf8_lossy(message).into());
                }
                _ => {}
            }
        }
        for field in Fields::of(profile) {
            let Field { at, number, value } = field?;
            if let (4, Value::Bytes(message)) = (number, value) {
                let location: proto::Location = decode(message, at, "location", budget)?;
                budget.take(2 + location.line.len())?;
                tables.add(&location, at, &mappings, &functions)?;
            }
        }
        Ok(tables)
    }

    fn add(
        &mut self,
        location: &proto::Location,
        at: usize,
        mappings: &ById<proto::Mapping>,
        functions: &ById<proto::Function>,
    ) -> Result<(), Error> {
        let mut of_all = Frame::default();
        if location.mapping_id != 0 {
            let (at, mapping) = get(mappings, location.mapping_id, at, "mapping")?;
            of_all.module = self.some(mapping.filename, *at)?;
            of_all.build_id = self.some(mapping.build_id, *at)?;
            of_all.is_kernel = of_all.module.as_deref().is_some_and(is_kernel);
        }
        let first = count(&self.frames);
        for (place, line) in location.line.iter().enumerate() {
            let mut frame = Frame { inlined: place + 1 < location.line.len(), ..of_all.clone() };
            if line.function_id != 0 {
                let (at, function) = get(functions, line.function_id, at, "function")?;
                frame.name = match self.some(function.name, *at)? {
                    Some(name) => Some(name),
                    None => self.some(function.system_name, *at)?,
                };
                frame.file = self.some(function.filename, *at)?;
            }
            frame.line = u32::try_from(line.line).ok().filter(|line| *line > 0);
            self.frames.push(frame);
        }
        if location.line.is_empty() {
            self.frames.push(of_all);
        }
        let frames = self.frames.get_mut(usize::try_from(first).unwrap_or(usize::MAX)..);
        for frame in frames.unwrap_or_default().iter_mut().filter(|_| location.address > 0) {
            frame.address = Some(location.address).filter(|_| frame.is_unnamed());
        }
        let frames = first..count(&self.frames);
        match self.locations.insert(location.id, frames) {
            _ if location.id == 0 => {
                Err(Error::Byte { at, what: "the location has the id 0, which means none".into() })
            }
            Some(_) => Err(twice(at, "location", location.id)),
            None => Ok(()),
        }
    }

    /// The frames of a location that a message refers to, by their places.
    pub(super) fn location(&self, id: u64, at: usize) -> Result<Range<u32>, Error> {
        self.locations.get(&id).cloned().ok_or_else(|| missing(at, "location", id))
    }

    /// The text that a message refers to.
    pub(super) fn text(&self, place: i64, at: usize) -> Result<&Arc<str>, Error> {
        let text = usize::try_from(place).ok().and_then(|place| self.texts.get(place));
        text.ok_or_else(|| {
            let what = format!("there is no text {place}: there are {}", self.texts.len());
            Error::Byte { at, what }
        })
    }

    /// The same; 0 is none, and so is an empty one.
    fn some(&self, place: i64, at: usize) -> Result<Option<Arc<str>>, Error> {
        if place == 0 {
            return Ok(None);
        }
        Ok(Some(self.text(place, at)?).filter(|text| !text.is_empty()).cloned())
    }

    pub(super) fn value_type(&self, it: &proto::ValueType, at: usize) -> Result<ValueType, Error> {
        let (name, unit) = (self.text(it.r#type, at)?, self.text(it.unit, at)?);
        Ok(ValueType { name: Arc::clone(name), unit: Arc::clone(unit) })
    }
}

/// There are fewer than 2^32 frames, since each takes more bytes than that.
fn count(frames: &[Frame]) -> u32 {
    u32::try_from(frames.len()).unwrap_or(u32::MAX)
}

fn insert<M>(
    all: &mut ById<M>,
    id: u64,
    at: usize,
    message: M,
    what: &'static str,
) -> Result<(), Error> {
    match all.insert(id, (at, message)) {
        _ if id == 0 => {
            Err(Error::Byte { at, what: format!("the {what} has the id 0, which means none") })
        }
        Some(_) => Err(twice(at, what, id)),
        None => Ok(()),
    }
}

fn get<'a, M>(
    all: &'a ById<M>,
    id: u64,
    at: usize,
    what: &'static str,
) -> Result<&'a (usize, M), Error> {
    all.get(&id).ok_or_else(|| missing(at, what, id))
}

fn twice(at: usize, what: &str, id: u64) -> Error {
    Error::Byte { at, what: format!("the {what} {id} is there twice") }
}

fn missing(at: usize, what: &str, id: u64) -> Error {
    Error::Byte { at, what: format!("there is no {what} {id}") }
}

/// Whether code in a mapping of this name is the kernel's: profiles have no other word for that.
fn is_kernel(module: &str) -> bool {
    const OF_PROCESSES: [&str; 8] =
        ["[vdso", "[vsyscall", "[JIT", "[anon", "[heap", "[stack", "[unknown", "[uprobes"];
    let is_of_process = || OF_PROCESSES.iter().any(|name| module.starts_with(name));
    module.ends_with("/vmlinux") || (module.starts_with('[') && !is_of_process())
}
