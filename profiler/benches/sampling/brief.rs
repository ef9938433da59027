//! A program that starts short processes.

use std::{
    path::Path,
    process::{Child, Command},
};

use crate::Result;

/// One that starts one process after the other, each of which lives for some milliseconds of CPU
/// time; ended when dropped.
pub(crate) struct Load(Child);

impl Load {
    pub(crate) fn start(program: &Path, milliseconds: u32) -> Result<Self> {
        Self::spawn(&mut Command::new(program), milliseconds)
    }

    /// The same with each process at the same addresses.
    pub(crate) fn start_at_fixed_addresses(program: &Path, milliseconds: u32) -> Result<Self> {
        Self::spawn(Command::new("setarch").arg("-R").arg(program), milliseconds)
    }

    fn spawn(command: &mut Command, milliseconds: u32) -> Result<Self> {
        let child = command.arg(milliseconds.to_string()).spawn();
        let name = command.get_program().display();
        Ok(Self(child.map_err(|error| format!("cannot run {name}: {error}"))?))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
