//! The end of a run: the last samples are written, or nobody reads them.

use std::time::Duration;

use tokio::{sync::oneshot, time::sleep};

use crate::{error::Error, output::Blocked, shutdown::Signals, worker::Ended};

/// How long the end of a run waits for a reader of the output that takes nothing, and how often it looks.
const READ_WITHIN: Duration = Duration::from_secs(1);
const BLOCKED_STEP: Duration = Duration::from_millis(50);

/// Waits until the last samples are written, or it is clear that they will not be.
pub(super) async fn last_samples(
    ended: &mut oneshot::Receiver<Ended>,
    signals: &mut Signals,
    blocked: Vec<Blocked>,
) -> Ended {
    tokio::select! {
        result = ended => result.unwrap_or(Err(worker_died())),
        _ = signals.next() => Err(Error::Interrupted),
        to = nobody_reads(&blocked) => Err(Error::Blocked { to }),
    }
}

/// Waits until an output has taken nothing for long; what it is called.
async fn nobody_reads(blocked: &[Blocked]) -> String {
    loop {
        if let Some(it) = blocked.iter().find(|it| it.time() >= READ_WITHIN) {
            return it.to.clone();
        }
        sleep(BLOCKED_STEP).await;
    }
}

pub(super) fn worker_died() -> Error {
    Error::system("the symbolizing thread ended", "this is a defect of the profiler")
}
