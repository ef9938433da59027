//! Rules for aarch64's vDSO, from its instructions, where it has no unwind information.
//!
//! The kernel says nothing of the code that ends a signal, and leaves that to be known by its two
//! instructions. Of all other code it says nothing either since its linker script leaves `.eh_frame`
//! out: <https://github.com/torvalds/linux/blob/v6.12/arch/arm64/kernel/vdso/vdso.lds.S>. There, what
//! changes neither the stack pointer nor the link register is told from what may: the few functions
//! that do keep a frame pointer.

use object::{Endianness, Object as _, ObjectSymbol as _, SymbolKind, read::elf::ElfFile64};
use profiler_common::unwind::rule::{Cfa, Rule};

use crate::{source::Source, table::Rows};

/// `mov x8, #__NR_rt_sigreturn` and `svc #0`:
/// <https://github.com/torvalds/linux/blob/v6.12/arch/arm64/kernel/vdso/sigreturn.S>.
const ENDS_SIGNAL: [u32; 2] = [0xd280_1168, 0xd400_0001];
const SP: u32 = 31;
const LR: u32 = 30;

/// The rules that its code gives away, by offsets in the vDSO.
pub(crate) fn rows(bytes: &[u8], source: &Source<'_>) -> Rows {
    let mut rows = Vec::new();
    for place in source.code.in_file() {
        let Some(code) = part(bytes, place.start, place.end) else { continue };
        for (at, pair) in (place.start..).step_by(4).zip(words(code).windows(2)) {
            if pair == ENDS_SIGNAL {
                // A handler returns to its first instruction, and return addresses are looked up one
                // byte before; while the kernel is at the call, the program counter is behind it.
                rows.push((at.saturating_sub(1)..at.saturating_add(9), Rule::of(Cfa::SIGNAL)));
            }
        }
    }
    if source.sections.is_empty() {
        rows.extend(leaves(bytes, source));
    }
    rows
}

/// The functions whose caller's frame is where they were entered, all the way.
fn leaves(bytes: &[u8], source: &Source<'_>) -> Rows {
    let Ok(elf) = ElfFile64::<Endianness>::parse(bytes) else { return Vec::new() };
    let functions = elf.dynamic_symbols().filter(|it| it.kind() == SymbolKind::Text);
    let leaves = functions.filter_map(|it| {
        let addresses = it.address()..it.address().checked_add(it.size())?;
        let (start, len) = source.code.offsets(&addresses)?;
        let end = start.checked_add(len).filter(|_| len > 0)?;
        let is_leaf = words(part(bytes, start, end)?).into_iter().all(leaves_frame);
        is_leaf.then(|| (start..end, Rule::of(Cfa::SP)))
    });
    leaves.collect()
}

fn part(bytes: &[u8], start: u64, end: u64) -> Option<&[u8]> {
    bytes.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?.min(bytes.len()))
}

fn words(code: &[u8]) -> Vec<u32> {
    code.as_chunks().0.iter().map(|it| u32::from_le_bytes(*it)).collect()
}

/// Whether an instruction leaves the stack pointer and the link register as they are, but for the
/// signature of the latter. One that may name them elsewhere counts as one that does not. By the classes
/// of <https://developer.arm.com/documentation/ddi0602/latest/Index-by-Encoding>.
fn leaves_frame(word: u32) -> bool {
    let is = |mask: u32, bits: u32| word & mask == bits;
    let [to, base, second] = [word & 31, (word >> 5) & 31, (word >> 10) & 31];
    // Sums, and the logical operations with a constant, can have it as their result; those that set
    // flags have the register in its place that is always zero.
    let is_sum = is(0x1f00_0000, 0x1100_0000) || is(0x1fe0_0000, 0x0b20_0000);
    let is_logical = is(0x1f80_0000, 0x1200_0000);
    let sets_flags = if is_sum { is(1 << 29, 1 << 29) } else { is(3 << 29, 3 << 29) };
    let makes_sp = (is_sum || is_logical) && !sets_flags && to == SP;
    // Loads and stores that move the register that they go by: of two registers, of one, of vectors.
    let is_pair = is(0x3a00_0000, 0x2800_0000);
    let moves = is_pair && is(1 << 23, 1 << 23)
        || is(0x3b00_0400, 0x3800_0400)
        || is(0xbe80_0000, 0x0c80_0000);
    let moves_sp = moves && base == SP;
    let calls = is(0xfc00_0000, 0x9400_0000) || is(0xfee0_0000, 0xd620_0000);
    // Branches have a part of their distance there.
    let branches = is(0xfc00_0000, 0x1400_0000) || is(0xff00_0000, 0x5400_0000);
    let names_lr = !branches && (to == LR || is_pair && second == LR);
    !(makes_sp || moves_sp || calls || names_lr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rules, Table, source::Machine};

    /// Where the image has its code.
    const CODE: usize = 0x100;

    /// A vDSO with functions of these instructions, one behind the other, and no other information. Of
    /// those with a name its symbols tell.
    fn image(functions: &[(bool, &[u32])]) -> Vec<u8> {
        fn words<const N: usize>(fields: [u64; N]) -> Vec<u8> {
            fields.into_iter().flat_map(u64::to_le_bytes).collect()
        }
        let mut code = Vec::new();
        let mut symbols = vec![0; 24];
        for (has_name, instructions) in functions {
            let (at, bytes) = (CODE + code.len(), instructions.len() * 4);
            code.extend(instructions.iter().flat_map(|it| it.to_le_bytes()));
            if *has_name {
                // The name "f", a global function in section 1.
                symbols.extend([1, 0, 0, 0, 0x12, 0, 1, 0]);
                symbols.extend(words([at as u64, bytes as u64]));
            }
        }
        let symbols_at = (CODE + code.len()).next_multiple_of(8);
        let names_at = symbols_at + symbols.len();
        let headers_at = (names_at + 3).next_multiple_of(8);
        // For aarch64, with one segment and three sections.
        let mut image = b"\x7fELF\x02\x01\x01".to_vec();
        image.resize(16, 0);
        image.extend([3, 0, 183, 0, 1, 0, 0, 0]);
        image.extend(words([0, 64, headers_at as u64]));
        image.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 3, 0, 2, 0]);
        let size = headers_at as u64 + 3 * 64;
        image.extend([1, 0, 0, 0, 5, 0, 0, 0]);
        image.extend(words([0, 0, 0, size, size, 16]));
        image.resize(CODE, 0);
        image.extend(code);
        image.resize(symbols_at, 0);
        image.extend(&symbols);
        image.extend(b"\0f\0");
        image.resize(headers_at + 64, 0);
        // SHT_DYNSYM with its names in section 2, and SHT_STRTAB
        image.extend([0, 0, 0, 0, 11, 0, 0, 0]);
        image.extend(words([2, symbols_at as u64, symbols_at as u64, symbols.len() as u64]));
        image.extend([2, 0, 0, 0, 1, 0, 0, 0]);
        image.extend(words([8, 24]));
        image.extend([0, 0, 0, 0, 3, 0, 0, 0]);
        image.extend(words([2, names_at as u64, names_at as u64, 3, 0, 1, 0]));
        image
    }

    /// The rules at each byte of the code, as `(bytes, rule)`.
    fn rules_of(functions: &[(bool, &[u32])]) -> Vec<(usize, Rule)> {
        let image = image(functions);
        let mut rules = Rules::new();
        let table = Table::of_any_vdso(&image, Machine::Aarch64, &mut rules).unwrap();
        let len: usize = functions.iter().map(|(_, it)| it.len() * 4).sum();
        let mut found: Vec<(usize, Rule)> = Vec::new();
        for offset in CODE..CODE + len {
            let rule = *rules.get(table.find(offset as u64).unwrap()).unwrap();
            match found.last_mut() {
                Some((bytes, last)) if *last == rule => *bytes += 1,
                _ => found.push((1, rule)),
            }
        }
        found
    }

    const NOP: u32 = 0xd503_201f;
    const RET: u32 = 0xd65f_03c0;
    const LEAF: Rule = Rule::of(Cfa::SP);

    #[test]
    fn what_ends_a_signal_is_known_by_its_instructions() {
        // ldr x0, [x0]; ret, and what stands there in Linux 6.1 behind it
        let getres = [0xf940_0000, RET];
        let functions =
            [(true, &getres[..]), (false, &[NOP, NOP]), (true, &ENDS_SIGNAL), (false, &[NOP, NOP])];
        let (unknown, signal) = (Rule::of(Cfa::UNKNOWN), Rule::of(Cfa::SIGNAL));
        // The byte before is where a handler's return address is looked up; behind the last
        // instruction is the program counter of the call.
        assert_eq!(rules_of(&functions), [(8, LEAF), (7, unknown), (10, signal), (7, unknown)]);
        assert_eq!(rules_of(&[(false, &[NOP]), (false, &ENDS_SIGNAL)])[1], (9, signal));
    }

    #[test]
    fn a_function_that_may_have_a_frame_is_left_to_its_frame_pointer() {
        let leaf = [
            0xd503_233f, // paciasp
            0x8b24_63e4, // add x4, sp, x4
            0xeb1f_03ff, // cmp xzr, xzr
            0xf100_041f, // cmp x0, #1
            0xf940_03e0, // ldr x0, [sp]
            0xa940_0c02, // ldp x2, x3, [x0]
            0xf840_8402, // ldr x2, [x0], #8
            0x1400_001e, // b +120
            0x5400_03ce, // b.al
            0xd400_0001, // svc #0
            0xd503_23bf, // autiasp
            RET,
        ];
        assert_eq!(rules_of(&[(true, &leaf)]), [(4 * leaf.len(), LEAF)]);
        for changes in [
            0xa9b8_7bfd, // stp x29, x30, [sp, #-128]!
            0xa8c8_7bfd, // ldp x29, x30, [sp], #128
            0xa940_7bfd, // ldp x29, x30, [sp]
            0xd100_43ff, // sub sp, sp, #16
            0x9100_43ff, // add sp, sp, #16
            0x8b24_63ff, // add sp, sp, x4
            0x927c_ec1f, // and sp, x0, #~15
            0xf81f_0fe0, // str x0, [sp, #-16]!
            0xf841_07fe, // ldr x30, [sp], #16
            0xf940_07fe, // ldr x30, [sp, #8]
            0x4c9f_a3e0, // st1 {v0, v1}, [sp], #32
            0xaa00_03fe, // mov x30, x0
            0x9400_0001, // bl +4
            0xd63f_0000, // blr x0
        ] {
            let rules = rules_of(&[(true, &[NOP, changes, RET]), (true, &[RET])]);
            assert_eq!(rules, [(12, Rule::of(Cfa::UNKNOWN)), (4, LEAF)], "{changes:#x}");
        }
    }
}
