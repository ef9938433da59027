//! What this kernel has that not every kernel has.

use aya::{
    programs::ProgramType,
    sys::{BpfHelper, is_helper_supported},
};

/// The helpers that our own walk of the user stack calls, with the kernel that brought each.
pub const WALK_HELPERS: [(BpfHelper, &str, &str); 3] = [
    (BpfHelper::BPF_FUNC_get_current_task_btf, "bpf_get_current_task_btf", "5.11"),
    (BpfHelper::BPF_FUNC_task_pt_regs, "bpf_task_pt_regs", "5.15"),
    (BpfHelper::BPF_FUNC_loop, "bpf_loop", "5.17"),
];

/// What our own walk of the user stack needs and this kernel lacks, for people to read.
#[must_use]
pub fn missing_for_walk() -> Option<String> {
    let missing = WALK_HELPERS
        .iter()
        .find(|(helper, ..)| !is_helper_supported(ProgramType::PerfEvent, *helper).unwrap_or(true));
    missing.map(|(_, name, since)| format!("{name} (Linux {since})"))
}
