//! The architectures that the profiler runs on, by all the names that they have.

use std::fmt;

use clap::ValueEnum;

/// An architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Arch {
    /// Also called amd64.
    #[value(name = "x86_64")]
    X86_64,
    /// Also called arm64.
    Aarch64,
}

impl Arch {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// The one of this machine.
    pub(crate) const HOST: Self =
        if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };

    /// Rust's and the kernel's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Debian's name.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// Rust's name of the Linux target.
    pub(crate) fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// What the GNU tools for it start with, and where Debian keeps its libraries.
    pub(crate) fn gnu(self) -> String {
        format!("{}-linux-gnu", self.name())
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
