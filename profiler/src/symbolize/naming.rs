//! How much of what was sampled has names, and how many stacks are whole, by file, and what would help.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use profiler_common::build_id::BuildId;
use profiler_profile::{
    frame::{Frame, Origin},
    ledger::naming::FileNaming,
    stack::Stack,
    stack_end::StackEnd,
};
use rustc_hash::FxHashMap;

/// Files that are told apart; what comes beyond is counted as one.
const LIMIT: usize = 4096;
/// What the name of a file would be for frames outside of every mapping.
const NOWHERE: &str = "[not mapped]";

/// Counts the frames of user stacks as they are delivered.
#[derive(Debug, Default)]
pub struct Naming {
    files: FxHashMap<Arc<str>, Counts>,
    ends: FxHashMap<&'static str, u64>,
    /// Frames of all files.
    named: u64,
    unnamed: FxHashMap<Origin, u64>,
}

/// Which file lacks symbols. In a container another may have the same name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Stripped {
    #[default]
    None,
    One(BuildId),
    /// Several, or one without a build id.
    Unknown,
}

impl Stripped {
    fn add(&mut self, id: Option<BuildId>) {
        *self = match (*self, id) {
            (Self::None, Some(id)) => Self::One(id),
            (Self::One(known), Some(id)) if known == id => Self::One(id),
            _ => Self::Unknown,
        };
    }
}

/// The frames of one file.
#[derive(Debug, Default)]
struct Counts {
    /// Of the files by that name that have frames without a symbol.
    stripped: Stripped,
    samples: u64,
    frames: u64,
    named: u64,
    unnamed: FxHashMap<Origin, u64>,
    cut: FxHashMap<&'static str, u64>,
}

impl Naming {
    /// Counts a user stack, and how it ended.
    pub fn add(&mut self, stack: &Stack, end: StackEnd) {
        let Some(outermost) = stack.locations().last() else { return };
        let is_whole = end == StackEnd::Complete;
        let end = end.word();
        *self.ends.entry(end).or_default() += 1;
        if !is_whole {
            let Some(frame) = outermost.frames.last() else { return };
            *self.file(frame).cut.entry(end).or_default() += 1;
        }
        for (depth, location) in stack.locations().iter().enumerate() {
            let Some(frame) = location.frames.last() else { continue };
            if frame.origin.is_named() {
                self.named += 1;
            } else {
                *self.unnamed.entry(frame.origin).or_default() += 1;
            }
            let file = self.file(frame);
            file.frames += 1;
            file.samples += u64::from(depth == 0);
            if frame.origin.is_named() {
                file.named += 1;
            } else {
                if frame.origin == Origin::NoSymbol {
                    file.stripped.add(frame.build_id);
                }
                *file.unnamed.entry(frame.origin).or_default() += 1;
            }
        }
    }

    /// What is counted of the file of a frame.
    fn file(&mut self, frame: &Frame) -> &mut Counts {
        let is_full = self.files.len() >= LIMIT;
        let name = match &frame.module {
            Some(name) if !is_full || self.files.contains_key(name) => Arc::clone(name),
            Some(_) => Arc::from("[other files]"),
            None => Arc::from(NOWHERE),
        };
        self.files.entry(name).or_default()
    }

    /// The files most of whose frames that have no name are those of no symbol.
    pub(crate) fn without_symbols(&self) -> impl Iterator<Item = (&str, BuildId)> {
        self.files.iter().filter_map(|(module, counts)| match counts.stripped {
            Stripped::One(id) if counts.most_unnamed() == Some(Origin::NoSymbol) => {
                Some((module.as_ref(), id))
            }
            _ => None,
        })
    }

    /// How many stacks have ended how.
    #[must_use]
    pub fn ends(&self) -> BTreeMap<&'static str, u64> {
        self.ends.iter().map(|(end, count)| (*end, *count)).collect()
    }

    /// How many frames have a name, and why the others have none.
    #[must_use]
    pub fn frames(&self) -> BTreeMap<String, u64> {
        let unnamed = self.unnamed.iter().map(|(why, count)| (why.to_string(), *count));
        unnamed.chain([("named".to_owned(), self.named)]).collect()
    }

    /// Each file, those with most frames first. Packages are those that have the symbols of a file.
    pub(crate) fn files(&self, packages: &FxHashMap<&str, String>) -> Vec<FileNaming> {
        let finish = |(module, counts): (&Arc<str>, &Counts)| {
            let hint = match (packages.get(module.as_ref()), counts.most_unnamed()) {
                (Some(package), _) => {
                    Some(format!("install {package}, or use --debuginfod").into())
                }
                (_, most) => most.and_then(Origin::hint).map(Cow::from),
            };
            let &Counts { samples, frames, named, ref unnamed, ref cut, .. } = counts;
            let cut = cut.iter().map(|(end, count)| (*end, *count)).collect();
            let unnamed = unnamed.iter().map(|(why, count)| (why.to_string(), *count)).collect();
            let module = module.as_ref().to_owned();
            FileNaming { module, samples, frames, named, unnamed, hint, cut }
        };
        let mut files: Vec<FileNaming> = self.files.iter().map(finish).collect();
        files.sort_by(|one, other| (other.frames, &one.module).cmp(&(one.frames, &other.module)));
        files
    }
}

impl Counts {
    /// Why most of the frames without a name have none.
    fn most_unnamed(&self) -> Option<Origin> {
        let most = self.unnamed.iter().max_by_key(|(_, count)| **count);
        most.map(|(origin, _)| *origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_profile::{
        address::Address, ledger::naming::table, stack::Location, store::Store,
    };

    fn location(module: Option<&str>, origin: Origin) -> Location {
        let (module, build_id) = (module.map(Arc::from), BuildId::from_slice(&[1]));
        let frame = Frame { module, build_id, origin, ..Frame::default() };
        Location { address: Address::sampled(0), frames: Arc::from([frame]) }
    }

    fn stack(locations: Vec<Location>) -> Arc<Stack> {
        Store::default().intern(locations)
    }

    #[test]
    fn counts_frames_by_file_and_why() {
        let mut naming = Naming::default();
        let stack = stack(vec![
            location(Some("/lib/stripped"), Origin::NoSymbol),
            location(Some("/bin/program"), Origin::Elf),
            location(Some("/bin/program"), Origin::Elf),
            location(None, Origin::NotMapped),
        ]);
        naming.add(&stack, StackEnd::Complete);
        naming.add(&stack, StackEnd::NotMapped);
        assert_eq!(naming.ends(), [("complete", 1), ("mapping_unknown", 1)].into());
        let id = BuildId::from_slice(&[1]).unwrap();
        assert_eq!(naming.without_symbols().collect::<Vec<_>>(), [("/lib/stripped", id)]);
        let packages = [("/lib/stripped", "some-dbgsym".to_owned())].into_iter().collect();
        let text = table(&naming.files(&packages));
        let hint = "/lib/stripped (no symbol; install some-dbgsym, or use --debuginfod)\n";
        assert!(text.contains(hint), "{text}");
        let files = naming.files(&FxHashMap::default());
        let of = |name: &str| files.iter().find(|file| file.module == name).unwrap();
        assert_eq!(files[0].module, "/bin/program");
        assert_eq!((of("/bin/program").samples, of("/bin/program").frames), (0, 4));
        let stripped = of("/lib/stripped");
        assert_eq!((stripped.samples, stripped.frames, stripped.named), (2, 2, 0));
        assert_eq!(stripped.unnamed["no symbol"], 2);
        let frames = |of: fn(&FileNaming) -> u64| files.iter().map(of).sum::<u64>();
        assert_eq!(naming.frames()["named"], frames(|it| it.named));
        assert_eq!(naming.frames().values().sum::<u64>(), frames(|it| it.frames));
        assert!(
            table(&files).contains("0 %  /lib/stripped (no symbol; install"),
            "{}",
            table(&files)
        );
        assert_eq!(of(NOWHERE).frames, 2);
        assert_eq!(of(NOWHERE).cut, [("mapping_unknown", 1)].into());
        assert!(stripped.cut.is_empty());
    }

    #[test]
    fn of_two_files_with_one_name_no_package_is_told() {
        let unnamed = |id: &[u8]| {
            let build_id = BuildId::from_slice(id);
            let module = Some(Arc::from("/lib/stripped"));
            let frame = Frame { module, build_id, origin: Origin::NoSymbol, ..Frame::default() };
            stack(vec![Location { address: Address::sampled(0), frames: Arc::from([frame]) }])
        };
        let mut naming = Naming::default();
        for _ in 0..2 {
            naming.add(&unnamed(&[1]), StackEnd::Complete);
            assert_eq!(naming.without_symbols().count(), 1);
        }
        naming.add(&unnamed(&[2]), StackEnd::Complete);
        naming.add(&unnamed(&[1]), StackEnd::Complete);
        assert_eq!(naming.without_symbols().count(), 0);
        let mut naming = Naming::default();
        naming.add(&unnamed(&[]), StackEnd::Complete);
        assert_eq!(naming.without_symbols().count(), 0);
    }

    #[test]
    fn the_files_are_bounded() {
        let mut naming = Naming::default();
        for number in 0..LIMIT + 10 {
            let name = number.to_string();
            naming.add(&stack(vec![location(Some(&name), Origin::Elf)]), StackEnd::Complete);
        }
        let files = naming.files(&FxHashMap::default());
        assert_eq!(files.len(), LIMIT + 1);
        assert_eq!(files[0].frames, 10);
    }
}
