//! What a tracepoint's record has, as tracefs describes it:
//! <https://docs.kernel.org/trace/events.html#event-formats>.

use std::ops::Range;

use profiler_common::hit_filter;

/// The kernel puts a pointer of its own there before it runs a program: `perf_trace_run_bpf_submit` in
/// <https://github.com/torvalds/linux/blob/v6.12/kernel/events/core.c>.
const NOT_GIVEN: Range<u64> = 0..8;
/// Of system calls, a program gets the number and six arguments, and no more:
/// <https://github.com/torvalds/linux/blob/v6.12/kernel/trace/trace_syscalls.c>, `perf_call_bpf_enter`.
const SYSCALL_BYTES: u64 = 64;

/// One field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) offset: u16,
    pub(super) bytes: u16,
    /// What it is; else why it can't be compared.
    pub(super) kind: Result<hit_filter::Field, &'static str>,
}

/// The fields that the text describes, in its order. What is not understood is left out.
pub(super) fn fields(system: &str, text: &str) -> Vec<Field> {
    text.lines().filter_map(|line| field(system, line)).collect()
}

fn field(system: &str, line: &str) -> Option<Field> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declaration = parts.next()?.strip_prefix("field:")?;
    let (mut offset, mut bytes, mut signed) = (None, None, false);
    for part in parts {
        let Some((what, number)) = part.split_once(':') else { continue };
        match what {
            "offset" => offset = number.parse::<u16>().ok(),
            "size" => bytes = number.parse::<u16>().ok(),
            "signed" => signed = number == "1",
            _ => {}
        }
    }
    let (offset, bytes) = (offset?, bytes?);
    let (kind, name) = declaration.rsplit_once([' ', '*'])?;
    let (name, is_array) = match name.split_once('[') {
        Some((name, _)) => (name, true),
        None => (name, false),
    };
    let kind = declaration.strip_suffix(name).unwrap_or(kind);
    let end = u64::from(offset) + u64::from(bytes);
    let kind = if NOT_GIVEN.contains(&u64::from(offset)) {
        Err("the kernel keeps it from eBPF programs")
    } else if system == "syscalls" && (end > SYSCALL_BYTES || kind.contains("_loc ")) {
        Err("of system calls, eBPF programs get the numbers only")
    } else {
        of_type(kind, bytes, signed, is_array)
    };
    Some(Field { name: name.to_owned(), offset, bytes, kind })
}

fn of_type(
    kind: &str,
    bytes: u16,
    signed: bool,
    is_array: bool,
) -> Result<hit_filter::Field, &'static str> {
    let is_chars = |kind: &str| kind.trim().trim_start_matches("const ").starts_with("char");
    if let Some(kind) = kind.strip_prefix("__data_loc ") {
        return if is_chars(kind) { Ok(hit_filter::Field::DataLoc) } else { Err(ARRAY) };
    }
    if let Some(kind) = kind.strip_prefix("__rel_loc ") {
        return if is_chars(kind) { Ok(hit_filter::Field::RelLoc) } else { Err(ARRAY) };
    }
    if is_array {
        let is_text = is_chars(kind) && !kind.contains('*');
        return if is_text { Ok(hit_filter::Field::Text) } else { Err(ARRAY) };
    }
    if kind.contains('*') && is_chars(kind) {
        return Err("it is a pointer to text that is elsewhere");
    }
    hit_filter::Field::number(bytes.into(), signed).ok_or("it is no number of 1, 2, 4 or 8 bytes")
}

const ARRAY: &str = "it is a list of numbers";

#[cfg(test)]
mod tests {
    use super::*;
    use hit_filter::Field as Kind;
    use proptest::prelude::*;

    fn kinds(system: &str, text: &str) -> Vec<(String, u16, Option<Kind>)> {
        let fields = fields(system, text).into_iter();
        fields.map(|it| (it.name, it.offset, it.kind.ok())).collect()
    }

    #[test]
    fn fields_are_as_the_kernel_describes_them() {
        let text = "name: x\nID: 5\nformat:\n\
            \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
            \tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;\n\
            \tfield:u64 cgrp_id;\toffset:32;\tsize:8;\tsigned:0;\n\
            \tfield:__data_loc char[] name;\toffset:40;\tsize:4;\tsigned:0;\n\
            \tfield:__rel_loc char[] other;\toffset:44;\tsize:4;\tsigned:0;\n\
            \tfield:__data_loc unsigned long[] mask;\toffset:48;\tsize:4;\tsigned:0;\n\
            \tfield:const char * path;\toffset:56;\tsize:8;\tsigned:0;\n\
            \tfield:const void *ptr;\toffset:64;\tsize:8;\tsigned:0;\n\
            \tfield:u32 words[4];\toffset:72;\tsize:16;\tsigned:0;\n\n\
            print fmt: \"comm=%s\", REC->comm\n";
        let expected = [
            ("common_type", 0, None),
            ("common_pid", 4, None),
            ("comm", 8, Some(Kind::Text)),
            ("pid", 24, Some(Kind::I32)),
            ("cgrp_id", 32, Some(Kind::U64)),
            ("name", 40, Some(Kind::DataLoc)),
            ("other", 44, Some(Kind::RelLoc)),
            ("mask", 48, None),
            ("path", 56, None),
            ("ptr", 64, Some(Kind::U64)),
            ("words", 72, None),
        ];
        let expected = expected.map(|(name, offset, kind)| (name.to_owned(), offset, kind));
        assert_eq!(kinds("any", text), expected);
    }

    #[test]
    fn of_system_calls_there_are_numbers_only() {
        let text = "\tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;\n\
            \tfield:const char * filename;\toffset:16;\tsize:8;\tsigned:0;\n\
            \tfield:int flags;\toffset:24;\tsize:8;\tsigned:0;\n\
            \tfield:__data_loc char[] __filename_val;\toffset:48;\tsize:4;\tsigned:0;\n";
        let kinds = kinds("syscalls", text).into_iter().map(|it| it.2).collect::<Vec<_>>();
        assert_eq!(kinds, [Some(Kind::I32), None, Some(Kind::U64), None]);
    }

    proptest! {
        #[test]
        fn any_text_is_no_harm(text in "(field:|offset:|size:|signed:|[a-z0-9 ;*\\[\\]\n]){0,40}") {
            let _ = fields("any", &text);
        }
    }
}
