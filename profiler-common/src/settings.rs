//! What the agent tells the eBPF program before it is loaded.
//!
//! Each setting is a read-only global of the program, patched by name in the object. The verifier
//! sees constants and drops the branches that a run does not need.

/// Names of the globals, as they stand in the object's symbol table.
pub mod global {
    /// `u32`: bits of [`super::flag`].
    pub const FLAGS: &str = "FLAGS";
    /// `u32`: how many frames each half of a stack may have, at most
    /// [`MAX_FRAMES`](crate::sample::MAX_FRAMES).
    pub const FRAME_LIMIT: &str = "FRAME_LIMIT";
    /// `u32`: where a `task_struct` has the address of its kernel stack; 0 to ask a helper for the
    /// registers with which a task entered the kernel (Linux 5.15).
    pub const TASK_STACK: &str = "TASK_STACK";
    /// `u32`: where these registers are on that stack.
    pub const TASK_REGISTERS: &str = "TASK_REGISTERS";
    /// `u64`: size of the ring's data area in bytes.
    pub const RING_BYTES: &str = "RING_BYTES";
    /// `u64`: unread bytes in the ring from which on the reader is woken.
    pub const WAKE_BYTES: &str = "WAKE_BYTES";
}

/// Bits of the `FLAGS` global.
pub mod flag {
    /// Keep samples of the idle task.
    pub const IDLE: u32 = 1 << 0;
    /// Take the kernel stack.
    pub const KERNEL_STACK: u32 = 1 << 1;
    /// Take the user stack.
    pub const USER_STACK: u32 = 1 << 2;
    /// Keep only the processes in the `PIDS` map.
    pub const ONLY_PIDS: u32 = 1 << 3;
    /// Walk the user stack by unwind information, not by frame pointers.
    pub const TABLES: u32 = 1 << 4;
    /// And by frame pointers where there is no unwind information.
    pub const OR_FRAME_POINTERS: u32 = 1 << 5;
}
