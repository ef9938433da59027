//! `cargo xtask generate`: the man page and the shell completions, written by the agent itself from
//! the definition of its command line.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};

use crate::{command, run, workspace};

/// What prints it, and the file that each shell or man looks for.
const FILES: [(&[&str], &str); 4] = [
    (&["man"], "profiler.1"),
    (&["completions", "bash"], "profiler.bash"),
    (&["completions", "fish"], "profiler.fish"),
    (&["completions", "zsh"], "_profiler"),
];

pub(crate) fn run() -> Result<()> {
    for file in write()? {
        println!("{}", file.display());
    }
    Ok(())
}

/// Writes them, and says where each is, in the order of [`FILES`].
pub(crate) fn write() -> Result<[PathBuf; FILES.len()]> {
    let agent = run::build_agent()?;
    let dir = workspace::target().join("generated");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for (what, name) in FILES {
        let text = command::output(&agent, what)
            .with_context(|| format!("`profiler {}` failed", what.join(" ")))?;
        let file = dir.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(FILES.map(|(_, name)| dir.join(name)))
}
