//! The offsets of 3.8 to 3.12, which say nothing of themselves. They are the same on x86-64 and aarch64, and in
//! every patch of a minor version: `Include/cpython/code.h`, `frameobject.h`, `pystate.h`, `unicodeobject.h` and
//! `Include/internal/pycore_{runtime,interp,frame}.h` of each, with the values that a compiler gives for them.
//!
//! <https://github.com/python/cpython/tree/3.12/Include>

use profiler_common::python::{NONE, entry};

use crate::{
    offsets::{CodeOffsets, Encoding, FrameOffsets, Offsets, TextOffsets, ThreadOffsets},
    version::Version,
};

/// The offsets of a version, if they are known.
pub(crate) fn of(version: Version) -> Option<Offsets> {
    let eight = Offsets {
        version,
        is_free_threaded: false,
        // _PyRuntimeState.interpreters.head
        interpreters: 32,
        // PyInterpreterState.next, .tstate_head
        next_interpreter: 0,
        threads: 8,
        // PyThreadState.next, .interp, .thread_id
        thread: ThreadOffsets { next: 8, interpreter: 16, id: 176 },
        // PyThreadState.frame; PyFrameObject.f_code, .f_back, .f_lasti
        frames: FrameOffsets {
            state_frame: 24,
            state_cframe: NONE,
            cframe_frame: NONE,
            cframe_back: NONE,
            code: 32,
            back: 24,
            instruction: 104,
            owner: NONE,
            entry_owner: 0,
            entry: entry::EACH,
        },
        // PyCodeObject.co_filename, .co_name, .co_firstlineno, .co_lnotab. Behind them is a frame that comes and
        // goes, and before them .co_cell2arg, which stays.
        code: CodeOffsets {
            file: 104,
            name: 112,
            first_line: 40,
            line_table: 120,
            encoding: Encoding::Lnotab,
            first_instruction: 0,
            check: 96,
            checked_name: 112,
        },
        // PyObject.ob_type, PyTypeObject.tp_name
        object_type: 8,
        type_name: 24,
        // PyASCIIObject.length, .state, its size, and that of PyCompactUnicodeObject
        text: TextOffsets { len: 16, state: 32, kind_bit: 2, ascii: 48, wide: 72 },
        // PyBytesObject.ob_size, .ob_sval
        bytes_len: 16,
        bytes_data: 32,
    };
    Some(match version.minor()? {
        8 | 9 => eight,
        10 => Offsets {
            // PyThreadState.cframe, CFrame.previous
            frames: FrameOffsets {
                state_cframe: 48,
                cframe_back: 8,
                instruction: 96,
                entry: entry::EACH_CFRAME,
                ..eight.frames
            },
            code: CodeOffsets { encoding: Encoding::LineTable, ..eight.code },
            ..eight
        },
        11 => Offsets {
            interpreters: 40,
            // PyInterpreterState.threads.head
            threads: 16,
            thread: ThreadOffsets { id: 152, ..eight.thread },
            // PyThreadState.cframe; _PyCFrame.current_frame, .previous; _PyInterpreterFrame.f_code, .previous,
            // .prev_instr, .is_entry
            frames: FrameOffsets {
                state_frame: NONE,
                state_cframe: 56,
                cframe_frame: 8,
                cframe_back: 16,
                code: 32,
                back: 48,
                instruction: 56,
                owner: 68,
                entry_owner: 1,
                entry: entry::CFRAME,
            },
            code: eleven_code(),
            ..eight
        },
        12 => Offsets {
            interpreters: 40,
            threads: 72,
            thread: ThreadOffsets { id: 136, ..eight.thread },
            // As in 3.11, but .owner in place of .is_entry: FRAME_OWNED_BY_CSTACK.
            frames: FrameOffsets {
                state_frame: NONE,
                state_cframe: 56,
                cframe_frame: 0,
                cframe_back: 8,
                code: 0,
                back: 8,
                instruction: 56,
                owner: 70,
                entry_owner: 3,
                entry: entry::FRAME,
            },
            // .co_version is in the word before .co_localsplusnames.
            code: CodeOffsets {
                first_line: 68,
                first_instruction: 192,
                check: 88,
                checked_name: NONE,
                ..eleven_code()
            },
            text: TextOffsets { ascii: 40, wide: 56, ..eight.text },
            ..eight
        },
        _ => return None,
    })
}

/// `PyCodeObject.co_filename`, `.co_qualname`, `.co_firstlineno`, `.co_linetable`, `.co_code_adaptive` of 3.11.
fn eleven_code() -> CodeOffsets {
    CodeOffsets {
        file: 112,
        name: 128,
        first_line: 72,
        line_table: 136,
        encoding: Encoding::Locations,
        first_instruction: 184,
        check: 112,
        // PyCodeObject.co_name: the hash of .co_qualname is not known.
        checked_name: 120,
    }
}
