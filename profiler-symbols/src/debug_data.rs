//! Names that a stripped file carries packed, as those of Fedora and its kin do.
//!
//! `.gnu_debugdata` is a small ELF file, packed by xz, that names the functions which `.dynsym` does
//! not. Whoever runs a program has written the file, so its unpacking has bounds.

use std::time::Instant;

use xz4rust::{XzDecoder, XzNextBlockResult};

/// The memory that the packer may ask for. By default xz asks for 8 MiB, at most for so much.
const DICTIONARY_BYTES: usize = 64 << 20;
/// How much is unpacked, and how much of what is packed is looked at, at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// What is packed, if that is so many bytes at most and done in time.
#[must_use]
pub fn unpack(mut packed: &[u8], limit: usize, deadline: Instant) -> Option<Vec<u8>> {
    let mut decoder = XzDecoder::in_heap_with_alloc_dict_size(0, DICTIONARY_BYTES);
    let (mut unpacked, mut chunk) = (Vec::new(), vec![0; CHUNK_BYTES]);
    loop {
        let next = packed.get(..CHUNK_BYTES).unwrap_or(packed);
        let step = decoder.decode(next, &mut chunk).ok()?;
        let (taken, given) = (step.input_consumed(), step.output_produced());
        unpacked.extend_from_slice(chunk.get(..given)?);
        packed = packed.get(taken..)?;
        match step {
            _ if unpacked.len() > limit || Instant::now() > deadline => return None,
            XzNextBlockResult::EndOfStream(..) => return Some(unpacked),
            // It is cut off.
            XzNextBlockResult::NeedMoreData(0, 0) => return None,
            XzNextBlockResult::NeedMoreData(..) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Image, Images, Options, SymbolFile};
    use profiler_testing::{MINIDEBUGINFO, skipped};
    use proptest::prelude::*;
    use std::{
        fs,
        io::Write as _,
        path::PathBuf,
        process::{Command, Stdio},
        sync::Arc,
        time::Duration,
    };
    use tempfile::TempDir;

    const LIMIT_BYTES: usize = 64 << 20;

    /// In text of one function after the other, of which `exported` keeps its name.
    const PROGRAM: &str = "static int __attribute__((noinline)) hidden(int x) { return x * 3; }
        int __attribute__((noinline)) exported(int x) { return hidden(x) + 1; }
        int main(void) { return exported(1); }";

    /// What xz makes of some bytes; `None` if it is not installed.
    fn xz(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut xz = Command::new("xz");
        let Ok(mut child) = xz.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
            skipped("xz is not installed");
            return None;
        };
        let mut to = child.stdin.take().unwrap();
        let bytes = bytes.to_vec();
        let writer = std::thread::spawn(move || to.write_all(&bytes).unwrap());
        let packed = child.wait_with_output().unwrap().stdout;
        writer.join().unwrap();
        Some(packed)
    }

    /// A program stripped as Fedora does, and where its functions lie in it.
    struct Stripped {
        dir: TempDir,
        places: Vec<(String, u64)>,
    }

    impl Stripped {
        fn new() -> Self {
            let dir = TempDir::new().unwrap();
            fs::write(dir.path().join("source.c"), PROGRAM).unwrap();
            let stripped = Self { places: Vec::new(), dir };
            let export = "-Wl,--export-dynamic-symbol=exported";
            stripped.run(Command::new("gcc").args(["-O1", export, "-o", "program", "source.c"]));
            let places = places(&fs::read(stripped.program()).unwrap());
            stripped.run(Command::new("sh").args([MINIDEBUGINFO, "program"]));
            Self { places, ..stripped }
        }

        fn run(&self, command: &mut Command) {
            assert!(command.current_dir(&self.dir).status().unwrap().success(), "{command:?}");
        }

        fn program(&self) -> PathBuf {
            self.dir.path().join("program")
        }

        /// Puts other bytes in place of what is packed.
        fn set_packed(&self, bytes: &[u8]) {
            fs::write(self.dir.path().join("other"), bytes).unwrap();
            let update = ["--update-section", ".gnu_debugdata=other", "program"];
            self.run(Command::new("objcopy").args(update));
        }

        /// The names of both functions and of `main`.
        fn names(&self, unpack_time: Duration) -> [Option<String>; 3] {
            let main = Image::new(Arc::new(fs::read(self.program()).unwrap()), None);
            let images = Images { main, debug: None, supplementary: None, package: None };
            let options = Options { lines: false, unpack_time };
            let symbols = SymbolFile::load(images, options).unwrap();
            ["hidden", "exported", "main"].map(|name| {
                let (_, offset) = self.places.iter().find(|(it, _)| it == name).unwrap();
                match symbols.find(*offset) {
                    Answer::Found(found) => Some(found.name),
                    _ => None,
                }
            })
        }
    }

    /// The functions of a file with all its symbols, by their offset.
    fn places(elf: &[u8]) -> Vec<(String, u64)> {
        use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};
        let elf = object::File::parse(elf).unwrap();
        let offset = |address: u64| {
            let mut segments = elf.segments();
            let holds = |it: &object::Segment<'_, '_>| {
                (it.address()..it.address() + it.size()).contains(&address)
            };
            segments.find(holds).map(|it| address - it.address() + it.file_range().0)
        };
        let symbols = elf.symbols();
        symbols.filter_map(|it| Some((it.name().ok()?.into(), offset(it.address())?))).collect()
    }

    const PLENTY: Duration = Duration::from_secs(60);

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn some(names: [&str; 3]) -> [Option<String>; 3] {
        names.map(|name| (!name.is_empty()).then(|| name.to_owned()))
    }

    #[test]
    fn packed_names_and_exported_ones_are_found() {
        if xz(b"").is_none() {
            return;
        }
        let stripped = Stripped::new();
        assert_eq!(stripped.names(PLENTY), some(["hidden", "exported", "main"]));
    }

    #[test]
    fn exported_names_remain_where_nothing_can_be_unpacked() {
        let Some(nothing) = xz(b"") else { return };
        let stripped = Stripped::new();
        assert_eq!(stripped.names(Duration::ZERO), some(["", "exported", ""]));
        for packed in [&b""[..], b"nonsense", &nothing] {
            stripped.set_packed(packed);
            assert_eq!(stripped.names(PLENTY), some(["", "exported", ""]));
        }
    }

    #[test]
    fn what_is_unpacked_is_bounded() {
        const LIMIT: usize = 1 << 20;
        let Some(bomb) = xz(&vec![0; 8 * LIMIT]) else { return };
        assert!(bomb.len() < LIMIT / 100);
        assert!(unpack(&bomb, 8 * LIMIT, Instant::now()).is_none());
        assert!(unpack(&bomb, 8 * LIMIT, later()).is_some());
        assert!(unpack(&bomb, LIMIT, later()).is_none());
        assert!(unpack(&xz(&vec![7; LIMIT + 1]).unwrap(), LIMIT, later()).is_none());
        assert!(
            unpack(&xz(&vec![7; LIMIT]).unwrap(), LIMIT, later())
                .is_some_and(|it| it.len() == LIMIT)
        );
    }

    #[test]
    fn what_is_damaged_is_no_harm() {
        let text: Vec<u8> = (0..10_000u32).flat_map(u32::to_le_bytes).collect();
        let Some(packed) = xz(&text) else { return };
        assert!(unpack(&packed, LIMIT_BYTES, later()).is_some_and(|it| it == text));
        for at in (0..packed.len()).step_by(97) {
            assert!(unpack(&packed[..at], LIMIT_BYTES, later()).is_none(), "{at}");
            let mut damaged = packed.clone();
            damaged[at] ^= 0x55;
            let _ = unpack(&damaged, LIMIT_BYTES, later());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(unpack(&bytes, LIMIT_BYTES, later()).is_none());
        }
    }
}
