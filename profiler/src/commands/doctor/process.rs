//! What the agent and its parser processes may do, and may not.

use std::{sync::Arc, time::Duration};

use super::{Check, Verdict, bad, ok};
use crate::{
    commands::privileges::setcap,
    hardening::{
        self,
        capabilities::{NEEDED, USEFUL, missing},
    },
    parser::{Budget, Parser, probe::Probe},
    realtime::Role,
};

pub(super) fn privileges() -> Check {
    let (needed, useful) = (missing(&NEEDED), missing(&USEFUL));
    let fix = format!("sudo profiler …, or once: {}", setcap());
    if !needed.is_empty() {
        return bad("privileges", Verdict::Fail, format!("no {}", needed.join(", ")), fix);
    }
    if !useful.is_empty() {
        let found = format!("no {}: names are missing", useful.join(", "));
        return bad("privileges", Verdict::Warn, found, fix);
    }
    ok("privileges", "all")
}

/// What a run gives up once it has started, asked of the kernel.
pub(super) fn hardening() -> Check {
    let name = "hardening";
    let found = match hardening::probe() {
        Ok(found) => found,
        Err(error) => {
            return bad(
                name,
                Verdict::Fail,
                error.to_string(),
                "run it outside of what confines it",
            );
        }
    };
    let kept = format!("keeps {}; no new privileges", found.capabilities.join(", "));
    if found.is_filtered && found.no_new_privs {
        return ok(name, format!("{kept}; system calls filtered"));
    }
    let found = format!("{kept}; system calls are not filtered");
    bad(name, Verdict::Warn, found, "a kernel with CONFIG_SECCOMP_FILTER")
}

/// What really holds of the process that parses other people's files: it is started, and tries what it must
/// not be able to do.
pub(super) fn parser_process() -> Check {
    let name = "parser process";
    let second = Duration::from_secs(1);
    let mut parser =
        Parser::start(Arc::default(), Budget { cpu: second, wall: 10 * second }, Role::Tables);
    if parser.prevents(Probe::Nothing) != Ok(false) {
        let fix = "see whether this program may be executed again, and has /proc";
        return bad(name, Verdict::Fail, "can't be started", fix);
    }
    let allowed = Probe::FORBIDDEN.into_iter().filter(|it| parser.prevents(*it) != Ok(true));
    let allowed: Vec<String> = allowed.map(|it| it.to_string()).collect();
    if !allowed.is_empty() {
        let fix = "a kernel with CONFIG_SECCOMP_FILTER and Landlock";
        return bad(name, Verdict::Warn, format!("can {}", allowed.join(", ")), fix);
    }
    let lacks: Vec<String> = parser.lacks().iter().map(|(step, _)| step.to_string()).collect();
    let all = Probe::FORBIDDEN.map(|it| it.to_string()).join(", ");
    let without =
        if lacks.is_empty() { String::new() } else { format!("; without {}", lacks.join(", ")) };
    ok(name, format!("can't {all}{without}"))
}
