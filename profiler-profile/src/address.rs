//! An address of a stack, and what it says of its function.

/// An address, and how it came to be on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The address in the process, or in the kernel.
    pub value: u64,
    /// How it came to be on the stack.
    pub kind: AddressKind,
}

/// How an address came to be on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressKind {
    /// The instruction that the CPU was at.
    Sampled,
    /// Where a call returns to.
    Return,
    /// The instruction that a signal interrupted.
    Interrupted,
    /// Where a signal handler returns to: the first instruction of code that has called nothing.
    Trampoline,
}

impl Address {
    /// The instruction that was sampled.
    #[must_use]
    pub const fn sampled(value: u64) -> Self {
        Self { value, kind: AddressKind::Sampled }
    }

    /// The address behind a call.
    #[must_use]
    pub const fn returned_to(value: u64) -> Self {
        Self { value, kind: AddressKind::Return }
    }

    /// How many bytes before the address to look up: a call may be the last instruction of its function, and then
    /// the address behind it belongs to another.
    #[must_use]
    pub fn lookup_back(self) -> u64 {
        u64::from(self.kind == AddressKind::Return)
    }

    /// The address to look up in place of this one.
    ///
    /// ```
    /// use profiler_profile::address::Address;
    /// assert_eq!(Address::sampled(0x1000).lookup(), 0x1000);
    /// assert_eq!(Address::returned_to(0x1000).lookup(), 0xfff);
    /// ```
    #[must_use]
    pub fn lookup(self) -> u64 {
        self.value.wrapping_sub(self.lookup_back())
    }
}
