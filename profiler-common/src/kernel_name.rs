//! How the kernel names its own code for the agent.

/// Room for a name and its end: a symbol of up to 511 bytes, two numbers, and a module of up to 55.
/// <https://github.com/torvalds/linux/blob/v6.12/include/linux/kallsyms.h>.
pub const NAME_BYTES: usize = 640;
