//! A program that keeps every CPU busy with a deep stack.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use profiler_profile::cpus::CpuList;

use crate::Result;

/// The program's name, which is the `comm` of its samples.
pub(crate) const NAME: &str = "bench-load";
/// How deep its stack is where nothing else is said: `main` and what it calls.
pub(crate) const FRAMES: usize = 29;

/// How C is compiled, beside `-O`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    FramePointers,
    NoFramePointers,
}

impl Build {
    pub(crate) fn flags(self) -> [&'static str; 2] {
        // Optimized, gcc leaves the frame pointer out of a leaf on x86-64 whatever the first says.
        match self {
            Self::FramePointers => ["-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"],
            Self::NoFramePointers => ["-fomit-frame-pointer", "-momit-leaf-frame-pointer"],
        }
    }
}

/// The compiled program.
pub(crate) struct Program {
    path: PathBuf,
    cpus: CpuList,
}

/// Some processes; killed when dropped.
pub(crate) struct Running(Vec<Child>);

/// What some work has taken, in seconds: the mean of the CPUs.
#[derive(Clone, Copy)]
pub(crate) struct Took {
    /// By the clock.
    pub(crate) clock: f64,
    /// Of the CPU, in user mode and in the kernel; interrupts on top of the program count.
    pub(crate) cpu: f64,
}

/// Compiles one file of C; the program is `path`.
pub(crate) fn compile(source: &str, path: &Path, flags: &[&str]) -> Result<()> {
    fs::create_dir_all(path.parent().ok_or("no folder to compile into")?)?;
    let file = path.with_extension("c");
    fs::write(&file, source)?;
    let status = Command::new("cc").args(flags).arg("-o").arg(path).arg(&file).status();
    let status = status.map_err(|error| format!("cannot run cc: {error}"))?;
    if !status.success() {
        return Err(format!("cc ended with {status}, compiling {}", file.display()).into());
    }
    Ok(())
}

impl Program {
    /// Compiles it into the folder; with another `salt`, as another file with a build id of its own.
    pub(crate) fn compile(dir: &Path, build: Build, salt: usize, cpus: &CpuList) -> Result<Self> {
        let path = dir.join(format!("{build:?}-{salt}")).join(NAME);
        let source = format!("{}\nconst int salt = {salt};\n", include_str!("load.c"));
        let [first, second] = build.flags();
        // Not every compiler asks for one.
        let flags = ["-O1", first, second, "-fno-optimize-sibling-calls", "-Wl,--build-id"];
        compile(&source, &path, &flags)?;
        Ok(Self { path, cpus: cpus.clone() })
    }

    /// Keeps all CPUs busy until what it returns is dropped.
    pub(crate) fn run(&self, frames: usize) -> Result<Running> {
        self.start(self.cpus.iter(), frames, 0)
    }

    /// The same on one CPU.
    pub(crate) fn run_on(&self, cpu: u32) -> Result<Running> {
        self.start([cpu], FRAMES, 0)
    }

    /// How a shell starts one that spins on a CPU.
    pub(crate) fn command_line(&self, cpu: u32) -> String {
        format!("{} {cpu} {FRAMES} 0", self.path.display())
    }

    /// Does this much work on each CPU.
    pub(crate) fn work(&self, units: u64) -> Result<Took> {
        let mut running = self.start(self.cpus.iter(), FRAMES, units)?;
        let processes = running.0.len() as f64;
        let mut sum = Took { clock: 0.0, cpu: 0.0 };
        while let Some(process) = running.0.pop() {
            let output = Running::output_of(process)?;
            let (clock, cpu) = output.trim().split_once(' ').ok_or("the load printed no times")?;
            sum.clock += clock.parse::<f64>()?;
            sum.cpu += cpu.parse::<f64>()?;
        }
        Ok(Took { clock: sum.clock / processes / 1e9, cpu: sum.cpu / processes / 1e9 })
    }

    fn start(
        &self,
        cpus: impl IntoIterator<Item = u32>,
        frames: usize,
        units: u64,
    ) -> Result<Running> {
        let mut running = Running(Vec::with_capacity(self.cpus.len()));
        for cpu in cpus {
            let mut command = Command::new(&self.path);
            command.args([cpu.to_string(), frames.to_string(), units.to_string()]);
            running.0.push(command.stdout(Stdio::piped()).spawn()?);
        }
        Ok(running)
    }
}

impl Running {
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(Child::id)
    }

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
