//! A test: the walk of any chain of calls finds the registers that each caller had.
//!
//! A made-up machine calls one function after the other, each with a frame of another kind, and saves
//! what code would save; signals come in between. The walk has the registers of the last function, the
//! stack, and a rule for each function. Words in which nothing was saved look like return addresses.

extern crate std;

use std::{collections::BTreeMap, marker::PhantomData, vec::Vec};

use proptest::prelude::*;

use super::{
    aarch64::Aarch64,
    quick::Quick,
    rule::{Cfa, Rule, Saved},
    step::{Arch, Caller, Memory, NO_LINK, Registers, Stop, UNSURE, step},
    x86_64::X86_64,
};

/// Behind the last word of the stack.
const STACK_END: u64 = 0x7fff_0000_0000;
const STACK_BYTES: u64 = 1 << 20;
const CODE: u64 = 0x40_0000;
/// In words in which nothing was saved: code of no function.
const NO_CODE: u64 = 0x66_0000;
/// The frame pointer of a function that uses it for something else.
const NUMBER: u64 = 7;
/// On aarch64, above a return address.
const SIGNATURE: u64 = 0xac << 48;

/// What a function does with the frame pointer of its caller.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fp {
    Kept,
    /// Saved, and found from there: a [`Saved`].
    Saved(u8),
    /// Saved below the return address, and the frame pointer leads to both.
    Record,
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Function {
    /// How its rule finds the CFA: a [`Cfa`].
    cfa: u8,
    fp: Fp,
    /// Words between those in which it saves something.
    gaps: [i16; 4],
    /// Where its frame pointer leads to, and whatever else may be anything.
    any: u8,
    /// Whether the return address is in a register, if it can be.
    in_register: bool,
    /// Whether it does not call the next, but a signal comes.
    is_interrupted: bool,
}

/// Why the first function has no caller.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Such a rule stops there.
    Rule(u8, Stop),
    /// Its CFA would lie below its stack pointer.
    Below,
    /// Its return address is zero.
    Zero,
    /// Its return address is where nothing can be read.
    Unreadable,
}

impl End {
    fn stop(self) -> Stop {
        match self {
            Self::Rule(_, stop) => stop,
            Self::Zero => Stop::Complete,
            Self::Below | Self::Unreadable => Stop::Unreadable,
        }
    }
}

#[derive(Clone)]
struct Stack {
    words: BTreeMap<u64, u64>,
    end: u64,
    /// Registers of the last function, as long as they are known.
    registers: Option<[u64; 4]>,
}

impl Memory for Stack {
    fn word(&mut self, address: u64) -> Option<u64> {
        if !address.is_multiple_of(8) || !(STACK_END - STACK_BYTES..self.end).contains(&address) {
            return None;
        }
        Some(self.words.get(&address).copied().unwrap_or(NO_CODE | (address & 0xffff)))
    }

    fn register(&self, number: u8) -> Option<u64> {
        self.registers?.get(usize::from(number)).copied()
    }
}

/// What a function really does, where it is called.
struct Code {
    /// A [`Cfa`].
    cfa: u8,
    fp: Fp,
    /// A [`Saved`]: the return address.
    ra: u8,
    /// That of the rule.
    register: u8,
    /// From its begin, where it is.
    at: u64,
    /// Where it has what, in words below its CFA: that of the return address, of the frame pointer, and of
    /// the CFA itself; then its stack pointer, and its frame pointer.
    words: [i16; 5],
    addend: i16,
}

impl Code {
    fn sets_fp(&self) -> bool {
        matches!(self.cfa, Cfa::FP | Cfa::AT_FP)
    }

    fn rule(&self) -> Rule {
        let [ra, fp, cfa, sp_base, fp_base] = self.words;
        let cfa_words = match self.cfa {
            Cfa::UNKNOWN => return Rule::of(Cfa::UNKNOWN),
            Cfa::FP => fp_base,
            Cfa::AT_FP => fp_base - cfa,
            Cfa::AT_SP => sp_base - cfa,
            Cfa::PLT => 0,
            _ => sp_base,
        };
        let (fp, fp_words) = match self.fp {
            Fp::Kept => (Saved::SAME, 0),
            Fp::Lost => (Saved::LOST, 0),
            Fp::Saved(Saved::AT_SP) => (Saved::AT_SP, sp_base - fp),
            Fp::Saved(Saved::AT_FP) => (Saved::AT_FP, fp_base - fp),
            Fp::Saved(_) | Fp::Record => (Saved::AT_CFA, -fp),
        };
        Rule {
            fp,
            ra: self.ra,
            register: self.register,
            cfa_offset: i32::from(cfa_words) * 8,
            cfa_addend: self.addend,
            fp_words,
            ra_words: if self.ra == Saved::AT_CFA { -ra } else { 0 },
            ..Rule::of(self.cfa)
        }
    }
}

/// Runs the functions, and keeps what the walk has to find.
struct Machine<A> {
    /// Of the function that runs.
    frame: Registers,
    stack: Stack,
    rules: BTreeMap<u64, Rule>,
    /// The registers with which each function called or was interrupted, the first one's first.
    callers: Vec<(Caller, Registers)>,
    /// Whether a function's frame is found by what the frame pointer is now.
    needs_fp: bool,
    /// Whether that of the function that runs is found by its stack pointer.
    needs_sp: bool,
    arch: PhantomData<A>,
}

impl<A: Arch> Machine<A> {
    fn run(functions: &[Function], end: End) -> Self {
        let mut machine = Self {
            frame: Registers { pc: 0, sp: STACK_END, fp: NUMBER, lr: NO_LINK },
            stack: Stack { words: BTreeMap::new(), end: STACK_END, registers: None },
            rules: BTreeMap::new(),
            callers: Vec::new(),
            needs_fp: false,
            needs_sp: true,
            arch: PhantomData,
        };
        for (at, function) in functions.iter().enumerate() {
            if at > 0 {
                machine.callers.push((Caller::Called, Registers { lr: NO_LINK, ..machine.frame }));
            }
            let is_last = at + 1 == functions.len();
            let code = machine.settle(function, at == 0, is_last);
            machine.call(&code, function.any);
            match at {
                0 => machine.end(end, &code),
                _ if is_last => {}
                _ if function.is_interrupted => machine.signal(),
                _ => {}
            }
        }
        machine
    }

    /// What the function can do here of what it would.
    fn settle(&self, function: &Function, is_first: bool, is_last: bool) -> Code {
        let Function { gaps, any, .. } = *function;
        let cfa = match function.cfa {
            // A call changes the register, and stubs do not call.
            Cfa::REGISTER if !is_last => Cfa::SP,
            Cfa::PLT if !is_last || !A::CALL_PUSHES => Cfa::SP,
            cfa => cfa,
        };
        let is_leaf = !is_first && (is_last || function.is_interrupted);
        let may_lack_ra = ![Cfa::UNKNOWN, Cfa::REGISTER, Cfa::PLT].contains(&cfa);
        let ra = match function.in_register && is_leaf && may_lack_ra {
            true if !A::CALL_PUSHES && any % 4 > 0 => Saved::SAME,
            true if is_last => Saved::REGISTER,
            _ => Saved::AT_CFA,
        };
        let fp = match function.fp {
            _ if cfa == Cfa::UNKNOWN => Fp::Record,
            _ if cfa == Cfa::PLT => Fp::Kept,
            Fp::Kept if matches!(cfa, Cfa::FP | Cfa::AT_FP) => Fp::Saved(Saved::AT_CFA),
            Fp::Saved(Saved::AT_FP) if !matches!(cfa, Cfa::FP | Cfa::AT_FP) => Fp::Record,
            Fp::Lost if self.needs_fp => Fp::Saved(Saved::AT_CFA),
            fp => fp,
        };
        // Without a rule the stack pointer of the caller is known only if the record is at the top.
        let at_top = A::CALL_PUSHES || (cfa == Cfa::UNKNOWN && self.needs_sp);
        let ra_at = if at_top { 1 } else { 1 + gaps[0] };
        let fp_at = ra_at + 1 + if fp == Fp::Record { 0 } else { gaps[1] };
        let cfa_at = fp_at + 1 + gaps[2];
        let saves_nothing = ra != Saved::AT_CFA && cfa == Cfa::SP && fp == Fp::Kept;
        let (mut at, mut register) = (32, 0);
        let sp_base = match cfa {
            Cfa::PLT => {
                (at, register) = (1 + any % 14, 1 + any % 14 + any / 128);
                if at >= register { 2 } else { 1 }
            }
            _ if saves_nothing => gaps[3] / 3,
            _ => cfa_at + gaps[3],
        };
        if cfa == Cfa::REGISTER || ra == Saved::REGISTER {
            register = any % 4;
        }
        let fp_base = if fp == Fp::Record { fp_at } else { i16::from(any) % (sp_base + 1) };
        let in_memory = matches!(cfa, Cfa::AT_SP | Cfa::AT_FP);
        let addend = if in_memory { i16::from(any) - 128 } else { 0 };
        let words = [ra_at, fp_at, cfa_at, sp_base, fp_base];
        Code { cfa, fp, ra, register, at: at.into(), words, addend }
    }

    fn call(&mut self, code: &Code, any: u8) {
        let caller = self.frame;
        let signature = if A::CALL_PUSHES { 0 } else { SIGNATURE | u64::from(any) << 56 };
        let return_address = signature | caller.pc;
        let [ra, fp, cfa, sp_base, fp_base] = code.words.map(|it| below(caller.sp, it));
        let mut save = |at, value| {
            self.stack.words.insert(at, value);
        };
        if code.ra == Saved::AT_CFA {
            save(ra, return_address);
        }
        if matches!(code.fp, Fp::Saved(_) | Fp::Record) {
            save(fp, caller.fp);
        }
        if matches!(code.cfa, Cfa::AT_SP | Cfa::AT_FP) {
            save(cfa, caller.sp.wrapping_add_signed(-i64::from(code.addend)));
        }
        // What else is in registers leads nowhere.
        let mut registers = [NO_CODE; 4];
        let in_register = if code.cfa == Cfa::REGISTER { sp_base } else { return_address };
        if let Some(register) = registers.get_mut(usize::from(code.register)) {
            *register = in_register;
        }
        self.stack.registers = Some(registers);
        let new_fp = match code.fp {
            _ if code.sets_fp() => fp_base,
            Fp::Record => fp,
            Fp::Kept => caller.fp,
            Fp::Saved(_) | Fp::Lost => NUMBER,
        };
        let lr = if code.ra == Saved::SAME { return_address } else { NO_CODE };
        let pc = CODE + self.rules.len() as u64 * 64 + code.at;
        self.frame = Registers { pc, sp: sp_base, fp: new_fp, lr };
        self.rules.insert(pc, code.rule());

        let has_record = code.fp == Fp::Record && matches!(code.cfa, Cfa::SP | Cfa::UNKNOWN);
        let by_sp = code.fp == Fp::Saved(Saved::AT_SP);
        self.needs_sp = by_sp || (!code.sets_fp() && !has_record);
        self.needs_fp = match code.fp {
            _ if code.sets_fp() => true,
            Fp::Kept => self.needs_fp,
            fp => fp == Fp::Record,
        };
    }

    /// Interrupts the function that runs, and has the next one called by what ends the signal.
    fn signal(&mut self) {
        let mut interrupted = self.frame;
        if A::SIGNAL_LR.is_none() {
            interrupted.lr = NO_LINK;
        }
        self.callers.push((Caller::Interrupted, interrupted));
        let sp = (interrupted.sp - 1024) & !15;
        let Registers { pc, fp, lr, .. } = interrupted;
        let places = [(A::SIGNAL_PC, pc), (A::SIGNAL_SP, interrupted.sp), (A::SIGNAL_FP, fp)];
        let link_register = A::SIGNAL_LR.map(|at| (at, lr));
        for (at, value) in places.into_iter().chain(link_register) {
            self.stack.words.insert(sp + at, value);
        }
        self.frame =
            Registers { pc: CODE + self.rules.len() as u64 * 64, sp, fp: NUMBER, lr: NO_LINK };
        self.rules.insert(self.frame.pc, Rule::of(Cfa::SIGNAL));
        (self.needs_fp, self.needs_sp) = (false, true);
    }

    /// Leaves the function that runs, the first one, without a caller.
    fn end(&mut self, end: End, code: &Code) {
        let rule = match end {
            End::Rule(cfa, _) => Rule::of(cfa),
            End::Below => Rule { ra: Saved::AT_CFA, cfa_offset: -8, ..Rule::of(Cfa::SP) },
            End::Unreadable => {
                self.stack.end = below(STACK_END, code.words[0]);
                return;
            }
            End::Zero => return,
        };
        self.rules.insert(self.frame.pc, rule);
    }

    /// Walks to the first function.
    fn walk(mut self, stop: Stop) {
        let mut frame = self.frame;
        let mut is_fp_known = true;
        loop {
            let rule = self.rules[&frame.pc];
            let mut same = frame;
            let stepped = step::<A>(&rule, &mut frame, &mut self.stack);
            // The kernel steps so.
            let quick = Quick::of::<A>(0, &rule);
            if quick.number().is_none() {
                assert_eq!(quick.step::<A>(&mut same, &mut self.stack), stepped, "{rule:?}");
                assert_eq!(same, frame, "{rule:?}");
            }
            self.stack.registers = None;
            let Some((caller, expected)) = self.callers.pop() else {
                assert_eq!(stepped, Err(stop), "{rule:?}");
                return;
            };
            is_fp_known = rule.fp != Saved::LOST && (is_fp_known || rule.fp != Saved::SAME);
            is_fp_known |= matches!(rule.cfa, Cfa::UNKNOWN | Cfa::SIGNAL);
            let fp = if is_fp_known { expected.fp } else { 0 };
            let is_unsure = !A::CALL_PUSHES && frame.sp & UNSURE != 0;
            // It is at least that, and found again where it matters.
            let sp = if is_unsure { frame.sp.min(expected.sp | UNSURE) } else { expected.sp };
            assert_eq!(stepped, Ok(caller), "{rule:?}");
            assert_eq!(frame, Registers { sp, fp, ..expected }, "{rule:?}");
        }
    }
}

fn below(cfa: u64, words: i16) -> u64 {
    cfa.wrapping_add_signed(-8 * i64::from(words))
}

fn function() -> impl Strategy<Value = Function> {
    let fp = prop_oneof![
        Just(Fp::Kept),
        Just(Fp::Record),
        Just(Fp::Lost),
        (Saved::AT_CFA..=Saved::AT_SP).prop_map(Fp::Saved),
    ];
    let gaps = prop::array::uniform4(0_i16..6);
    let is_interrupted = prop::bool::weighted(0.1);
    (Cfa::UNKNOWN..=Cfa::PLT, fp, gaps, any::<u8>(), any::<bool>(), is_interrupted).prop_map(
        |(cfa, fp, gaps, any, in_register, is_interrupted)| Function {
            cfa,
            fp,
            gaps,
            any,
            in_register,
            is_interrupted,
        },
    )
}

fn functions() -> impl Strategy<Value = Vec<Function>> {
    prop::collection::vec(function(), 2..24)
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        Just(End::Zero),
        Just(End::Unreadable),
        Just(End::Below),
        Just(End::Rule(Cfa::END, Stop::Complete)),
        Just(End::Rule(Cfa::REGISTER, Stop::Unsupported)),
        Just(End::Rule(Cfa::UNSUPPORTED, Stop::Unsupported)),
    ]
}

proptest! {
    // Some of what the last function can be is rare.
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn are_walked_where_calls_push(functions in functions(), end in end()) {
        Machine::<X86_64>::run(&functions, end).walk(end.stop());
    }

    #[test]
    fn are_walked_where_there_is_a_link_register(functions in functions(), end in end()) {
        Machine::<Aarch64>::run(&functions, end).walk(end.stop());
    }
}
