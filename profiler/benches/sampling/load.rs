//! A program that keeps every CPU busy with a deep stack.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use profiler::perf::cpus::CpuList;

use crate::Result;

/// The program's name, which is the `comm` of its samples.
pub(crate) const NAME: &str = "bench-load";

/// The compiled program.
pub(crate) struct Program {
    path: PathBuf,
    cpus: CpuList,
}

/// One process on each CPU; killed when dropped.
pub(crate) struct Running(Vec<Child>);

impl Program {
    pub(crate) fn compile(dir: &Path, cpus: &CpuList) -> Result<Self> {
        let (source, path) = (dir.join("load.c"), dir.join(NAME));
        fs::write(&source, include_str!("load.c"))?;
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"]);
        cc.args(["-fno-optimize-sibling-calls", "-o"]).arg(&path).arg(&source);
        let status = cc.status().map_err(|error| format!("cannot run cc: {error}"))?;
        if !status.success() {
            return Err(format!("cc ended with {status}").into());
        }
        Ok(Self { path, cpus: cpus.clone() })
    }

    /// Keeps all CPUs busy until what it returns is dropped.
    pub(crate) fn run(&self) -> Result<Running> {
        self.start(0)
    }

    /// Does this much work on each CPU and returns the mean of the times taken, in seconds.
    pub(crate) fn work(&self, units: u64) -> Result<f64> {
        let mut running = self.start(units)?;
        let mut total_ns = 0_f64;
        let processes = running.0.len() as f64;
        while let Some(process) = running.0.pop() {
            let output = Running::output_of(process)?;
            total_ns += output.trim().parse::<f64>()?;
        }
        Ok(total_ns / processes / 1e9)
    }

    fn start(&self, units: u64) -> Result<Running> {
        let mut running = Running(Vec::with_capacity(self.cpus.len()));
        for cpu in self.cpus.iter() {
            let mut command = Command::new(&self.path);
            command.args([cpu.to_string(), units.to_string()]).stdout(Stdio::piped());
            running.0.push(command.spawn()?);
        }
        Ok(running)
    }
}

impl Running {
    fn output_of(process: Child) -> Result<String> {
        let output = process.wait_with_output()?;
        if !output.status.success() {
            return Err(format!("the load ended with {}", output.status).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
