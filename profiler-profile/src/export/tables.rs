//! What the samples of a pprof or OTLP profile refer to: texts, mappings, functions and locations.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    export::{
        folded::{KERNEL, UNKNOWN, name},
        numbered::{Numbered, Places, id},
    },
    frame::{Frame, Origin},
    printable::printable,
    profile_proto as proto,
    stack::{self, Stack},
};

/// The tables while samples come.
///
/// Addresses where the same functions are at the same lines are one location. So processes share it wherever they
/// have the file mapped, and the profile does not tell where that was.
#[derive(Default)]
pub(super) struct Tables {
    texts: Numbered<Box<str>>,
    mappings: Numbered<Mapping>,
    functions: Numbered<Function>,
    locations: Numbered<Location>,
    /// The locations of frames that have come before, by where these are and whether as kernel code. Whoever adds
    /// them holds them.
    known: FxHashMap<(*const Frame, bool), (u32, u32)>,
    /// In how many samples a mapping is, by its number.
    samples: BTreeMap<u32, u64>,
    /// Mappings of the kernel's own code, by their numbers.
    of_kernel: FxHashSet<u32>,
    style: Style,
}

/// What formats with such tables have each its own way.
#[derive(Clone, Copy)]
pub(super) struct Style {
    /// The file of the kernel's own code.
    pub(super) kernel: &'static str,
    /// Whether a place in a file that has no name has a line that says so.
    pub(super) says_unknown: bool,
}

/// pprof's.
impl Default for Style {
    fn default() -> Self {
        Self { kernel: KERNEL, says_unknown: true }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Mapping {
    file: u32,
    build_id: u32,
    /// Whether it is a file of Python's code, which no process maps.
    is_python: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Function {
    name: u32,
    file: u32,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Location {
    mapping: u32,
    /// In the file, where no name tells locations apart; else 0.
    address: u64,
    lines: Box<[Line]>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Line {
    function: u32,
    line: u32,
}

impl Tables {
    pub(super) fn new(style: Style) -> Self {
        Self { style, ..Self::default() }
    }

    /// The number of a text.
    pub(super) fn text(&mut self, text: &str) -> u32 {
        self.texts.number_of(text)
    }

    /// The numbers of the locations of a stack that so many samples have, innermost first.
    pub(super) fn stack(&mut self, kernel: &Stack, user: &Stack, samples: u64) -> Vec<u32> {
        let mut locations = Vec::with_capacity(kernel.locations().len() + user.locations().len());
        let mut mappings: Vec<u32> = Vec::new();
        for (half, is_kernel) in [(kernel, true), (user, false)] {
            for location in half.locations() {
                let (number, mapping) = self.location(location, is_kernel);
                locations.push(number);
                if !mappings.contains(&mapping) {
                    mappings.push(mapping);
                }
            }
        }
        for mapping in mappings {
            let sum = self.samples.entry(mapping).or_default();
            *sum = sum.saturating_add(samples);
        }
        locations
    }

    fn location(&mut self, location: &stack::Location, is_kernel: bool) -> (u32, u32) {
        let frames = &*location.frames;
        let key = (frames.as_ptr(), is_kernel);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let mapping = self.mapping(frames.last(), is_kernel);
        let unnamed = match frames {
            [Frame { module: Some(file), offset, .. }]
                if file.starts_with('/') && frames.iter().all(|it| it.name().is_none()) =>
            {
                Some(*offset)
            }
            _ => None,
        };
        let says_lines = self.style.says_unknown || unnamed.is_none();
        let lines = frames.iter().filter(|_| says_lines).map(|frame| self.line(frame)).collect();
        let address = unnamed.unwrap_or(0);
        let number = self.locations.number(Location { mapping, address, lines });
        self.known.insert(key, (number, mapping));
        (number, mapping)
    }

    fn mapping(&mut self, frame: Option<&Frame>, is_kernel: bool) -> u32 {
        let module = frame.and_then(|it| it.module.as_deref()).filter(|it| !it.is_empty());
        let file = match module {
            // A kernel module stands in brackets, as everything that is no file.
            Some(module) if is_kernel && !module.starts_with(['[', '/']) => {
                self.text(&format!("[{}]", printable(module)))
            }
            Some(module) => self.text(&printable(module)),
            None if is_kernel => self.text(self.style.kernel),
            // If no location had a mapping, pprof would miss that of the program.
            None => self.text(UNKNOWN),
        };
        let build_id = frame.and_then(|it| it.build_id).map(|id| id.to_string());
        let build_id = self.text(&build_id.unwrap_or_default());
        let is_python = frame.is_some_and(|it| it.origin == Origin::Cpython);
        let number = self.mappings.number(Mapping { file, build_id, is_python });
        if is_kernel {
            self.of_kernel.insert(number);
        }
        number
    }

    fn line(&mut self, frame: &Frame) -> Line {
        let name = self.text(&printable(&name(frame)));
        let (file, line) = match &frame.source {
            Some((file, line)) => (self.text(&printable(file)), line.unwrap_or_default()),
            None => (self.text(""), 0),
        };
        Line { function: self.functions.number(Function { name, file }), line }
    }

    /// The tables as they are written.
    pub(super) fn finish(mut self) -> Finished {
        // The first text is always empty.
        self.text("");
        let (texts, text_places) = self.texts.in_order(|text, _| text);
        let text = |number: u32| text_places.of(number);

        let samples = self.samples;
        let is_program = |file: u32| {
            let file = usize::try_from(file).ok().and_then(|file| texts.get(file));
            file.is_some_and(|file| is_program(file))
        };
        // Readers take the first mapping for the program: the one in which most samples are. Files of Python are last, so that a
        // format that takes none of them can leave them out.
        let (mappings, mapping_places) = self.mappings.in_order(|mapping, number| {
            let (file, build_id) = (text(mapping.file), text(mapping.build_id));
            let samples = samples.get(&number).copied().unwrap_or(0);
            let is_program = !mapping.is_python && is_program(file);
            (mapping.is_python, u64::MAX - if is_program { samples } else { 0 }, file, build_id)
        });
        let (functions, function_places) =
            self.functions.in_order(|function, _| (text(function.name), text(function.file)));
        let (locations, location_places) = self.locations.in_order(|mut location, _| {
            for line in &mut location.lines {
                line.function = function_places.of(line.function);
            }
            location.mapping = mapping_places.of(location.mapping);
            location
        });

        let of_python = mappings.iter().zip(0..).filter(|((is_python, ..), _)| *is_python);
        let of_python = of_python.map(|(_, place)| id(place)).collect();
        let mut mappings: Vec<_> =
            mappings.into_iter().zip(0..).map(|(it, place)| mapping(it, place)).collect();
        let file_of = |line: &Line| {
            usize::try_from(line.function)
                .ok()
                .and_then(|it| functions.get(it))
                .map(|(_, file)| *file)
        };
        for Location { mapping, lines, .. } in &locations {
            let mapping = usize::try_from(*mapping).ok().and_then(|it| mappings.get_mut(it));
            let Some(mapping) = mapping else { continue };
            mapping.has_filenames |= lines.iter().any(|line| file_of(line) > Some(0));
            mapping.has_line_numbers |= lines.iter().any(|line| line.line > 0);
            mapping.has_inline_frames |= lines.len() > 1;
        }
        let functions =
            functions.into_iter().zip(0..).map(|((name, file), place)| proto::Function {
                id: id(place),
                name: name.into(),
                // A name that is also that of the system is taken for mangled by pprof, which strips all that is
                // between `<` and `>`: of `<Vec<T> as Drop>::drop` only `::drop` would be left.
                system_name: 0,
                filename: file.into(),
            });
        let functions = functions.collect();
        let locations =
            locations.into_iter().zip(0..).map(|(it, place)| location(&it, place)).collect();
        let of_kernel = self.of_kernel.iter().map(|it| id(mapping_places.of(*it))).collect();
        Finished {
            texts,
            mappings,
            functions,
            locations,
            of_kernel,
            of_python,
            text_places,
            location_places,
        }
    }
}

/// The tables in order, and where in them a number is.
pub(super) struct Finished {
    pub(super) texts: Vec<Box<str>>,
    pub(super) mappings: Vec<proto::Mapping>,
    pub(super) functions: Vec<proto::Function>,
    pub(super) locations: Vec<proto::Location>,
    /// Mappings of the kernel's own code, by their ids.
    pub(super) of_kernel: FxHashSet<u64>,
    /// Those that are files of Python's code.
    pub(super) of_python: FxHashSet<u64>,
    text_places: Places,
    location_places: Places,
}

impl Finished {
    /// The place of a text, from its number.
    pub(super) fn text_place(&self, number: u32) -> u32 {
        self.text_places.of(number)
    }

    /// The same, as messages have it.
    pub(super) fn text(&self, number: u32) -> i64 {
        self.text_place(number).into()
    }

    /// The place of a location.
    pub(super) fn location(&self, number: u32) -> u32 {
        self.location_places.of(number)
    }
}

/// Where it was mapped differs from process to process, and is not said.
fn mapping((_, _, file, build_id): (bool, u64, u32, u32), place: u32) -> proto::Mapping {
    proto::Mapping {
        id: id(place),
        filename: file.into(),
        build_id: build_id.into(),
        // Also where there are no names: pprof would look for them, without the addresses that it needs.
        has_functions: true,
        ..proto::Mapping::default()
    }
}

fn location(location: &Location, place: u32) -> proto::Location {
    let line = |it: &Line| proto::Line { function_id: id(it.function), line: it.line.into() };
    proto::Location {
        id: id(place),
        mapping_id: id(location.mapping),
        address: location.address,
        line: location.lines.iter().map(line).collect(),
    }
}

/// Whether a file is a program, and no library or anything else, by its name.
fn is_program(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    file.starts_with('/') && !name.split('.').skip(1).any(|part| part == "so")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        export::tests::{location, python_frame},
        store::Store,
    };

    #[test]
    fn a_script_is_no_program() {
        let mut store = Store::default();
        let native = Frame {
            symbol: Some("main".into()),
            module: Some("/usr/bin/python3".into()),
            ..Frame::default()
        };
        // By its name it comes first, and it is in as many samples.
        let script = location(1, &[python_frame("run", "/app/serve")]);
        let user = store.intern(vec![script, location(2, &[native])]);
        let mut tables = Tables::default();
        tables.stack(&store.empty(), &user, 5);
        let it = tables.finish();
        let files = it.mappings.iter().map(|of| &*it.texts[usize::try_from(of.filename).unwrap()]);
        assert!(files.eq(["/usr/bin/python3", "/app/serve"]));
    }

    #[test]
    fn a_library_is_no_program() {
        let programs = ["/usr/sbin/mysqld", "/usr/bin/python3.11", "/so", "/opt/a.sock"];
        let others = ["/usr/lib/libc.so.6", "/usr/lib/a.so", "[vdso]", "[kernel.kallsyms]", ""];
        assert!(programs.into_iter().all(is_program));
        assert!(!others.into_iter().any(is_program));
    }
}
