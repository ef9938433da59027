//! What a run may not do without, as far as the user grants it.

use crate::{
    error::{Error, Result},
    hardening::capabilities::{NEEDED, USEFUL, missing},
};

/// The command that lets this program run without root.
pub(super) fn setcap() -> String {
    let program = std::env::current_exe().map(|path| path.display().to_string());
    let all = NEEDED.iter().chain(&USEFUL);
    let names: Vec<String> = all.map(|(_, name)| name.to_lowercase()).collect();
    let program = program.unwrap_or_else(|_| "profiler".into());
    // Whoever runs it sees what root sees. A change of owner takes capabilities away, so setcap comes last.
    format!(
        "sudo chown root:GROUP {program} && sudo chmod 750 {program} && sudo setcap {}+ep {program} \
         (GROUP's members then see what every user's programs do, and nobody else)",
        names.join(",")
    )
}

/// Refuses to start without the privileges that loading and sampling need.
pub(super) fn require() -> Result<()> {
    let missing = missing(&NEEDED);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::system_with(
        "not permitted to sample this machine",
        format!("it lacks {}", missing.join(" and ")),
        format!("run it as root (sudo profiler …), or once: {}", setcap()),
    ))
}
