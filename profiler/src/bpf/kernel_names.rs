//! Names of the kernel's code, each asked of the kernel when it is needed.
//!
//! Reading `/proc/kallsyms` has the kernel write more than a hundred thousand lines, of which a run needs some
//! hundred.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::{
    Ebpf,
    maps::{Array, MapData},
    programs::{ProgramFd, RawTracePoint},
};
use profiler_common::kernel_name::NAME_BYTES;

use super::load::take_map;

/// What the kernel says of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelName {
    /// The symbol, as in `/proc/kallsyms`.
    pub symbol: String,
    /// How many bytes the address is behind the symbol's start.
    pub offset: u64,
}

/// The program that tells names. It is attached to nothing: this runs it.
pub struct KernelNames {
    program: ProgramFd,
    answer: Array<MapData, [u8; NAME_BYTES]>,
}

/// The part of `union bpf_attr` for `BPF_PROG_TEST_RUN`.
/// <https://github.com/torvalds/linux/blob/v5.13/include/uapi/linux/bpf.h>.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
}

const BPF_PROG_TEST_RUN: libc::c_long = 10;

/// Of the one argument, an address.
const ARGUMENTS_BYTES: u32 = 8;

impl KernelNames {
    /// Loads the program, and tries it. Fails with the reason where the kernel can't tell names so: that needs
    /// `bpf_snprintf` (Linux 5.13), CAP_BPF and CAP_PERFMON.
    pub(super) fn load(ebpf: &mut Ebpf) -> Result<Self, String> {
        let answer = take_map(ebpf, "KERNEL_NAME").map_err(|error| error.to_string())?;
        let program = ebpf.program_mut("kernel_name").ok_or("no program `kernel_name`")?;
        let program: &mut RawTracePoint =
            program.try_into().map_err(|_| "`kernel_name` is another kind of program")?;
        program.load().map_err(|error| error.to_string())?;
        let program = program.fd().map_err(|error| error.to_string())?;
        let program = program.try_clone().map_err(|error| error.to_string())?;
        let names = Self { program, answer };
        // Nothing is there, but the kernel says that.
        names.find(0).map_err(|error| format!("bpf(BPF_PROG_TEST_RUN): {error}"))?;
        Ok(names)
    }

    /// What is at the address; `None` if that is not the kernel's code. Fails if the kernel was not asked.
    pub fn find(&self, address: u64) -> io::Result<Option<KernelName>> {
        self.ask(address)?;
        let answer = self.answer.get(&0, 0).map_err(io::Error::other)?;
        let text = answer.split(|&byte| byte == 0).next().unwrap_or_default();
        if text.is_empty() {
            return Err(io::Error::other("no answer"));
        }
        Ok(parse(&String::from_utf8_lossy(text)))
    }

    fn ask(&self, address: u64) -> io::Result<()> {
        let arguments = [address];
        let mut attributes = TestRun {
            prog_fd: self.program.as_fd().as_raw_fd().cast_unsigned(),
            ctx_in: arguments.as_ptr() as u64,
            ctx_size_in: ARGUMENTS_BYTES,
            ..TestRun::default()
        };
        // SAFETY: the attributes and the arguments that they point to outlive the call, and have the sizes given.
        let result = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                BPF_PROG_TEST_RUN,
                &raw mut attributes,
                size_of::<TestRun>(),
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// `symbol+0x1d/0x60 [module]`, where the module may be missing; `None` of an address, which has no symbol.
///
/// <https://github.com/torvalds/linux/blob/v6.12/kernel/kallsyms.c#L440-L476>.
fn parse(text: &str) -> Option<KernelName> {
    let text = match text.rsplit_once(" [") {
        Some((text, module)) if module.ends_with(']') => text,
        _ => text,
    };
    let (text, _size) = text.rsplit_once("/0x")?;
    let (symbol, offset) = text.rsplit_once("+0x")?;
    let offset = u64::from_str_radix(offset, 16).ok()?;
    Some(KernelName { symbol: symbol.to_owned(), offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(symbol: &str, offset: u64) -> KernelName {
        KernelName { symbol: symbol.into(), offset }
    }

    #[test]
    fn names_are_told_with_their_offset() {
        assert_eq!(parse("do_syscall_64+0x71/0x120"), Some(name("do_syscall_64", 0x71)));
        assert_eq!(parse("nft_do_chain+0x0/0x5b0 [nf_tables]"), Some(name("nft_do_chain", 0)));
        assert_eq!(
            parse("bpf_prog_0123456789abcdef_f+0x7/0x9"),
            Some(name("bpf_prog_0123456789abcdef_f", 7))
        );
        // Symbols of clang and of Rust.
        assert_eq!(parse("f.llvm.1+0x2/0x3/0x4+0x5/0x6"), Some(name("f.llvm.1+0x2/0x3/0x4", 5)));
    }

    #[test]
    fn what_has_no_symbol_has_no_name() {
        for text in ["0xffffffffc0201000", "", "(null)", "f", "f+0x1", "f+0xzz/0x10", "0x0 [m]"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
