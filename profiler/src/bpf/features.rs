//! What this kernel has that not every kernel has.

use std::fs;

use aya::{
    programs::ProgramType,
    sys::{BpfHelper, is_helper_supported},
};

use super::btf;

/// The helpers that give the registers with which a task entered the kernel, with the kernel that
/// brought each.
pub const REGISTER_HELPERS: [(BpfHelper, &str, &str); 2] = [
    (BpfHelper::BPF_FUNC_get_current_task_btf, "bpf_get_current_task_btf", "5.11"),
    (BpfHelper::BPF_FUNC_task_pt_regs, "bpf_task_pt_regs", "5.15"),
];

/// How the walk of the user stack finds the registers with which a task entered the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryRegisters {
    /// By the helpers.
    Helpers,
    /// At the end of the task's kernel stack.
    OnStack {
        /// Where the task has the address of its stack.
        stack: u32,
        /// Where on the stack they are.
        registers: u32,
    },
}

impl EntryRegisters {
    /// That of this kernel; else what it lacks, for people to read.
    pub fn of_kernel() -> Result<Self, String> {
        let is_missing =
            |helper| !is_helper_supported(ProgramType::PerfEvent, helper).unwrap_or(true);
        let missing = REGISTER_HELPERS.iter().find(|(helper, ..)| is_missing(*helper));
        let Some((_, name, since)) = missing else { return Ok(Self::Helpers) };
        let layout = fs::read(btf::PATH).ok().as_deref().and_then(Self::by_layout);
        layout.ok_or_else(|| {
            format!("{name} (Linux {since}), and the layout of a task ({})", btf::PATH)
        })
    }

    /// What the program is told: where a task has its stack, and where on that the registers are; zeros where it
    /// asks the helpers.
    pub(super) fn offsets(self) -> (u32, u32) {
        match self {
            Self::Helpers => (0, 0),
            Self::OnStack { stack, registers } => (stack, registers),
        }
    }

    fn by_layout(btf: &[u8]) -> Option<Self> {
        let stack = btf::find(btf, "task_struct")?.offset_of("stack")?;
        let registers = stack_bytes().checked_sub(btf::find(btf, "pt_regs")?.size)?;
        Some(Self::OnStack { stack, registers })
    }
}

/// Where a `task_struct` has the thread pointer of user space; `None` if the kernel does not say.
///
/// <https://github.com/torvalds/linux/blob/v6.12/arch/x86/include/asm/processor.h>,
/// <https://github.com/torvalds/linux/blob/v6.12/arch/arm64/include/asm/processor.h>.
pub(crate) fn thread_pointer() -> Option<u32> {
    let btf = fs::read(btf::PATH).ok()?;
    let thread = btf::find(&btf, "task_struct")?.offset_of("thread")?;
    // On aarch64 it is the first member of a structure without a name.
    let within = if cfg!(target_arch = "aarch64") { "uw" } else { "fsbase" };
    thread.checked_add(btf::find(&btf, "thread_struct")?.offset_of(within)?)
}

/// The size of a task's kernel stack, `THREAD_SIZE`, but of kernels built with KASAN, where it is
/// twice as large; there, what is read is hardly ever taken for registers.
///
/// <https://github.com/torvalds/linux/blob/v5.10/arch/x86/include/asm/page_64_types.h>,
/// <https://github.com/torvalds/linux/blob/v5.10/arch/arm64/include/asm/memory.h>.
fn stack_bytes() -> u32 {
    const LEAST: u32 = 16 << 10;
    if cfg!(target_arch = "aarch64") {
        u32::try_from(rustix::param::page_size()).unwrap_or(LEAST).max(LEAST)
    } else {
        LEAST
    }
}
