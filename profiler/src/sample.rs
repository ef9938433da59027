//! From bytes to a sample. The layout stands in [`profiler_common::sample`].

use std::mem::offset_of;

use profiler_common::{
    python::wire::{self, Frame},
    sample::{COMM_LEN, COPY_BYTES, COPY_REGISTERS, InterpreterEnd, SampleHeader, UserEnd},
    settings::MAX_SOURCES,
};

/// A copy of a stack begins within a page.
const PAGE_BYTES: usize = 4096;

/// One stack sample, its addresses still in the ring's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawSample<'a> {
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub time_ns: u64,
    /// The task's cgroup v2 id.
    pub cgroup_id: u64,
    /// How many units of the event the sample stands for.
    pub period: u64,
    /// Process id.
    pub tgid: u32,
    /// Thread id.
    pub tid: u32,
    /// The CPU that was sampled.
    pub cpu: u32,
    /// The slot of the source that fired, below [`MAX_SOURCES`].
    pub source: u8,
    /// The task's name, padded with zeros.
    pub comm: [u8; COMM_LEN],
    /// How the walk of the user stack ended.
    pub user_end: UserEnd,
    /// The kernel half, innermost frame first.
    pub kernel: Addresses<'a>,
    /// What an interpreter runs, if it is known of.
    pub interpreter: Interpreted<'a>,
    /// The user half, innermost frame first.
    pub user: Addresses<'a>,
    /// A copy of the stack, where the walk was not told in time what it needs.
    pub copy: Option<StackCopy<'a>>,
}

/// The frames of an interpreter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Interpreted<'a> {
    words: &'a [u8],
    /// How their walk ended.
    pub end: InterpreterEnd,
}

impl<'a> Interpreted<'a> {
    /// The frames, innermost first.
    pub fn iter(self) -> impl Iterator<Item = Frame> {
        let words = self.words.as_chunks::<8>().0.as_chunks::<{ wire::WORDS }>().0;
        words.iter().map(|words| Frame::from_wire(words.map(u64::from_ne_bytes)))
    }

    /// Where the evaluator's records are on the stack, innermost first.
    pub fn records(self) -> impl Iterator<Item = u64> {
        self.iter().filter_map(|frame| match frame {
            Frame::Entry { record } if record != 0 => Some(record),
            _ => None,
        })
    }

    /// The bytes as they came.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.words
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.words.is_empty()
    }
}

/// The registers of a sample, and its stack from a little below the stack pointer up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackCopy<'a> {
    registers: &'a [u8],
    stack: &'a [u8],
}

impl<'a> StackCopy<'a> {
    /// In these bytes, if they are as many as the registers take.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let (registers, stack) = bytes.split_at_checked(COPY_REGISTERS * 8)?;
        Some(Self { registers, stack })
    }

    /// Whether the stack goes on above: if not, it ended before as much was copied as may be.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.stack.len() > COPY_BYTES - COPY_REGISTERS * 8 - PAGE_BYTES
    }

    /// A register, by DWARF's number.
    #[must_use]
    pub fn register(&self, number: usize) -> Option<u64> {
        word(self.registers, number.checked_mul(8)?)
    }

    /// The eight bytes so far up from where the copy begins: [`COPY_BELOW`] below the stack pointer.
    #[must_use]
    pub fn word(&self, offset: u64) -> Option<u64> {
        word(self.stack, usize::try_from(offset).ok()?)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_ne_bytes(*word))
}

impl RawSample<'_> {
    /// The slot of the source that fired.
    #[must_use]
    pub fn slot(&self) -> usize {
        usize::from(self.source)
    }

    /// What the copy of the stack takes.
    #[must_use]
    pub fn copy_bytes(&self) -> usize {
        self.copy.map_or(0, |it| it.registers.len() + it.stack.len())
    }
}

/// A run of addresses, eight bytes each in the machine's byte order. As bytes they serve as a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Addresses<'a>(&'a [u8]);

impl<'a> Addresses<'a> {
    /// The addresses in these bytes, eight each; what is left over is not counted.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes as they came.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The addresses, innermost first.
    pub fn iter(self) -> impl ExactSizeIterator<Item = u64> {
        self.0.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

/// Why bytes are not a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the header has or says.
    #[error("a sample of {needed} bytes was cut at {got}")]
    Truncated {
        /// What the header needs or says.
        needed: usize,
        /// What there was.
        got: usize,
    },
    /// A number that stands for no [`UserEnd`].
    #[error("unknown end of the user stack: {0}")]
    UserEnd(u8),
    /// A number that stands for no [`InterpreterEnd`].
    #[error("unknown end of an interpreter's frames: {0}")]
    InterpreterEnd(u8),
    /// No slot of a source.
    #[error("unknown source: {0}")]
    Source(u8),
}

/// Decodes the first sample of `bytes`, and gives the bytes behind it.
pub fn decode(bytes: &[u8]) -> Result<(RawSample<'_>, &[u8]), DecodeError> {
    let got = bytes.len();
    let mut fields = Fields(bytes);
    let header =
        fields.header().ok_or(DecodeError::Truncated { needed: SampleHeader::BYTES, got })?;
    let (kernel_bytes, user_bytes) =
        (usize::from(header.kernel_frames) * 8, usize::from(header.user_frames) * 8);
    let interpreter_bytes = usize::from(header.interpreter_words) * 8;
    let copy_bytes = usize::from(header.copy_bytes);
    let needed = SampleHeader::BYTES + kernel_bytes + interpreter_bytes + user_bytes + copy_bytes;
    let parts = fields.0.split_at_checked(kernel_bytes).and_then(|(kernel, rest)| {
        let (interpreter, rest) = rest.split_at_checked(interpreter_bytes)?;
        let (user, rest) = rest.split_at_checked(user_bytes)?;
        let (copy, rest) = rest.split_at_checked(copy_bytes)?;
        Some((kernel, interpreter, user, copy, rest))
    });
    let (kernel, interpreter, user, copy, rest) =
        parts.ok_or(DecodeError::Truncated { needed, got })?;
    let user_end =
        UserEnd::from_wire(header.user_end).ok_or(DecodeError::UserEnd(header.user_end))?;
    let end = InterpreterEnd::from_wire(header.interpreter_end)
        .ok_or(DecodeError::InterpreterEnd(header.interpreter_end))?;
    if usize::from(header.source) >= MAX_SOURCES {
        return Err(DecodeError::Source(header.source));
    }
    let SampleHeader { time_ns, cgroup_id, period, tgid, tid, cpu, comm, source, .. } = header;
    let (kernel, user, copy) = (Addresses(kernel), Addresses(user), StackCopy::new(copy));
    let interpreter = Interpreted { words: interpreter, end };
    let sample = RawSample {
        time_ns,
        cgroup_id,
        period,
        tgid,
        tid,
        cpu,
        source,
        comm,
        user_end,
        kernel,
        interpreter,
        user,
        copy,
    };
    Ok((sample, rest))
}

/// The samples of `bytes`, one behind the other, up to what is none.
pub fn each(bytes: &[u8]) -> impl Iterator<Item = RawSample<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (sample, behind) = decode(rest).ok()?;
        rest = behind;
        Some(sample)
    })
}

/// Takes the copies of stacks out of samples that lie one behind the other. What is no sample stays.
pub fn leave_out_copies(samples: &mut Vec<u8>) {
    const COPY: usize = offset_of!(SampleHeader, copy_bytes);
    let mut kept = Vec::with_capacity(samples.len());
    let mut rest = samples.as_slice();
    while let Ok((sample, behind)) = decode(rest) {
        let bytes = rest.len() - behind.len() - sample.copy_bytes();
        let start = kept.len();
        kept.extend_from_slice(rest.get(..bytes).unwrap_or_default());
        let copy = kept.get_mut(start + COPY..start + COPY + size_of::<u16>());
        if let (Some(copy), Some(_)) = (copy, sample.copy) {
            copy.fill(0);
        }
        rest = behind;
    }
    kept.extend_from_slice(rest);
    *samples = kept;
}

/// Keeps those of the samples that lie one behind the other of which this says so. What is no sample stays.
pub fn retain(samples: &mut Vec<u8>, mut keep: impl FnMut(&RawSample<'_>) -> bool) {
    let mut kept = Vec::with_capacity(samples.len());
    let mut rest = samples.as_slice();
    while let Ok((sample, behind)) = decode(rest) {
        if keep(&sample) {
            let bytes = rest.len() - behind.len();
            kept.extend_from_slice(rest.get(..bytes).unwrap_or_default());
        }
        rest = behind;
    }
    kept.extend_from_slice(rest);
    *samples = kept;
}

/// Takes one field after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    /// The header's fields, in their order on the wire.
    fn header(&mut self) -> Option<SampleHeader> {
        Some(SampleHeader {
            time_ns: u64::from_ne_bytes(self.take()?),
            cgroup_id: u64::from_ne_bytes(self.take()?),
            period: u64::from_ne_bytes(self.take()?),
            tgid: u32::from_ne_bytes(self.take()?),
            tid: u32::from_ne_bytes(self.take()?),
            cpu: u32::from_ne_bytes(self.take()?),
            kernel_frames: u16::from_ne_bytes(self.take()?),
            user_frames: u16::from_ne_bytes(self.take()?),
            comm: self.take()?,
            user_end: u8::from_ne_bytes(self.take()?),
            source: u8::from_ne_bytes(self.take()?),
            copy_bytes: u16::from_ne_bytes(self.take()?),
            interpreter_words: u16::from_ne_bytes(self.take()?),
            interpreter_end: u8::from_ne_bytes(self.take()?),
            reserved: u8::from_ne_bytes(self.take()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Encodes as the eBPF side does: by the layout of the `#[repr(C)]` struct.
    fn encode(header: &SampleHeader, frames: &[u64]) -> Vec<u8> {
        let at: *const SampleHeader = header;
        // SAFETY: the struct has no padding, as `profiler-common` asserts.
        let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), SampleHeader::BYTES) };
        let frames = frames.iter().flat_map(|frame| frame.to_ne_bytes());
        bytes.iter().copied().chain(frames).collect()
    }

    fn header(kernel_frames: u16, user_frames: u16) -> SampleHeader {
        SampleHeader {
            time_ns: 1,
            cgroup_id: 2,
            period: 3,
            tgid: 4,
            tid: 5,
            cpu: 6,
            kernel_frames,
            user_frames,
            comm: *b"name\0\0\0\0\0\0\0\0\0\0\0\0",
            user_end: UserEnd::ChainEnded as u8,
            source: 3,
            copy_bytes: 0,
            interpreter_words: 0,
            interpreter_end: 0,
            reserved: 0,
        }
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let code = (0..=u64::MAX >> 1, 0..=wire::NO_INSTRUCTION, 0..1_u64 << 44);
        let code =
            code.prop_map(|(code, instruction, check)| Frame::Code { code, instruction, check });
        prop_oneof![code, any::<u64>().prop_map(|record| Frame::Entry { record })]
    }

    #[test]
    fn decodes_what_the_kernel_side_writes() {
        let mut bytes = encode(&header(1, 2), &[10, 20, 30]);
        bytes.extend(encode(&header(0, 0), &[]));
        let (sample, rest) = decode(&bytes).unwrap();
        assert_eq!(
            (sample.time_ns, sample.cgroup_id, sample.period, sample.tgid, sample.tid, sample.cpu),
            (1, 2, 3, 4, 5, 6)
        );
        assert_eq!(sample.source, 3);
        assert_eq!(sample.comm, *b"name\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(sample.user_end, UserEnd::ChainEnded);
        assert_eq!(sample.kernel.iter().collect::<Vec<_>>(), [10]);
        assert_eq!(sample.user.iter().collect::<Vec<_>>(), [20, 30]);
        let (sample, rest) = decode(rest).unwrap();
        assert!(sample.kernel.is_empty() && sample.user.is_empty() && rest.is_empty());
    }

    #[test]
    fn a_copy_of_the_stack_is_registers_and_what_lies_above() {
        let registers: Vec<u64> = (100..).take(COPY_REGISTERS).collect();
        let words = [&[10, 20][..], &registers, &[7, 8]].concat();
        let copy_bytes = u16::try_from(8 * (COPY_REGISTERS + 2)).unwrap();
        let bytes = encode(&SampleHeader { copy_bytes, ..header(1, 1) }, &words);
        let (sample, rest) = decode(&bytes).unwrap();
        assert!(rest.is_empty());
        let copy = sample.copy.unwrap();
        assert_eq!(
            [0, COPY_REGISTERS - 1].map(|it| copy.register(it)),
            [Some(100), registers.last().copied()]
        );
        assert_eq!(copy.register(COPY_REGISTERS), None);
        assert_eq!([0, 8, 9, u64::MAX].map(|it| copy.word(it)), [Some(7), Some(8), None, None]);
        let both = |copied: &[u8]| [copied, &encode(&header(1, 0), &[10]), &[1, 2]].concat();
        let mut samples = both(&bytes);
        leave_out_copies(&mut samples);
        assert_eq!(samples, both(&encode(&header(1, 1), &[10, 20])));
        // Too few for the registers.
        let bytes = encode(&SampleHeader { copy_bytes: 8, ..header(1, 1) }, &[10, 20, 30]);
        assert_eq!(decode(&bytes).unwrap().0.copy, None);
        assert_eq!(
            decode(&bytes[..bytes.len() - 1]),
            Err(DecodeError::Truncated { needed: 88, got: 87 })
        );
    }

    #[test]
    fn some_samples_are_kept() {
        let of = |tgid| encode(&SampleHeader { tgid, ..header(1, 1) }, &[10, 20]);
        let mut samples = [of(1), of(2), of(1), of(3), vec![9; 3]].concat();
        retain(&mut samples, |it| it.tgid != 1);
        assert_eq!(samples, [of(2), of(3), vec![9; 3]].concat());
        retain(&mut samples, |_| false);
        assert_eq!(samples, [9; 3]);
    }

    #[test]
    fn refuses_what_it_can_not_be() {
        let bytes = encode(&header(1, 2), &[10, 20, 30]);
        let cut = &bytes[..bytes.len() - 1];
        assert_eq!(decode(cut), Err(DecodeError::Truncated { needed: 88, got: 87 }));
        assert_eq!(decode(&[]), Err(DecodeError::Truncated { needed: 64, got: 0 }));
        let mut wrong = header(0, 0);
        wrong.user_end = 99;
        assert_eq!(decode(&encode(&wrong, &[])), Err(DecodeError::UserEnd(99)));
        let wrong = SampleHeader { interpreter_end: 4, ..header(0, 0) };
        assert_eq!(decode(&encode(&wrong, &[])), Err(DecodeError::InterpreterEnd(4)));
        let wrong = SampleHeader { source: 4, ..header(0, 0) };
        assert_eq!(decode(&encode(&wrong, &[])), Err(DecodeError::Source(4)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_sample_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok((sample, rest)) = decode(&bytes) {
                let frames = sample.kernel.iter().len() + sample.user.iter().len();
                let interpreted = sample.interpreter.as_bytes().len();
                prop_assert!(sample.interpreter.iter().count() == interpreted / 16);
                let copied = sample.copy.map_or(0, |it| it.registers.len() + it.stack.len());
                let known = SampleHeader::BYTES + 8 * frames + interpreted + copied + rest.len();
                prop_assert!(known <= bytes.len() && bytes.len() < known + 8 * COPY_REGISTERS);
            }
        }

        #[test]
        fn addresses_come_back(kernel in prop::collection::vec(any::<u64>(), 0..40),
                               interpreted in prop::collection::vec(frame(), 0..40),
                               user in prop::collection::vec(any::<u64>(), 0..40)) {
            let frames = |half: &[u64]| half.len().try_into().unwrap();
            let words: Vec<u64> = interpreted.iter().flat_map(|it| it.to_wire()).collect();
            let header = SampleHeader {
                interpreter_words: frames(&words),
                interpreter_end: InterpreterEnd::Depth as u8,
                ..header(frames(&kernel), frames(&user))
            };
            let bytes = encode(&header, &[&kernel[..], &words, &user].concat());
            let (sample, rest) = decode(&bytes).unwrap();
            prop_assert!(rest.is_empty());
            prop_assert_eq!(sample.kernel.iter().collect::<Vec<_>>(), kernel);
            prop_assert_eq!(sample.user.iter().collect::<Vec<_>>(), user);
            prop_assert_eq!(sample.interpreter.iter().collect::<Vec<_>>(), interpreted);
            prop_assert_eq!(sample.interpreter.end, InterpreterEnd::Depth);
        }
    }
}
