//! `top`: what is hot now, on a screen.

use std::path::Path;

use profiler_profile::{
    export::{
        about::About,
        format::{Export, Format},
    },
    live::{Live, Window},
    profile::Profile,
};
use rustix::thread::CapabilitySet;

use super::{destination::resolve, session::Session};
use crate::{
    cli::TopArgs,
    error::{Error, Result},
    hardening::capabilities::{self, FILES_OF_OTHERS},
    invoker::Invoker,
    kernel, top,
};

/// Giving a new file to the user who typed sudo, in a folder that only they may write to.
const FILES_FOR_OTHERS: CapabilitySet = FILES_OF_OTHERS.union(CapabilitySet::CHOWN);

/// Samples and shows that until the user or a signal ends it, and prints the ledger.
pub(super) fn run(args: &TopArgs, verbose: u8) -> Result<()> {
    top::Prepared::check()?;
    let invoker = Invoker::find();
    let mut session = Session::prepare(&args.sampling, Vec::new(), verbose)?;
    // The command lines of processes, and what they run in, are shown.
    session.config.process.metadata = true;
    if invoker.is_some() {
        session.config.set_aside |= FILES_FOR_OTHERS;
    }
    let output = &mut session.config.worker.output;
    let live = Live::new(Window::new(args.window, output.profile_bytes, kernel::monotonic_ns()));
    output.live = Some(live.clone());
    let save = move |path: &Path, profile: &Profile, about: &About<'_>| {
        save(path, profile, about, invoker.as_ref())
    };
    session.screen = Some(top::Prepared::new(live, Box::new(save)));
    session.run(Vec::new(), None, |_, _| Ok(()))
}

/// Writes what is shown to a file, as `record` writes one.
fn save(
    path: &Path,
    profile: &Profile,
    about: &About<'_>,
    owner: Option<&Invoker>,
) -> Result<String> {
    // What may keep the screen waiting.
    if path.metadata().is_ok_and(|it| !it.is_file()) {
        return Err(Error::Usage(format!("{}: this is no regular file", path.display())));
    }
    let outputs = resolve(vec![path.to_owned()], None, "")?;
    let Some(output) = outputs.first().filter(|it| it.path.is_some()) else {
        return Err(Error::Usage("the screen has the terminal: give a file".into()));
    };
    let Export::Whole(write) = output.format.export else {
        return Err(Error::Usage(format!("{}: only `record` writes it", named(output.format))));
    };
    let (mut sink, replacement) = capabilities::having(FILES_FOR_OTHERS, || output.open(owner))?;
    let written = write(profile, about, &mut sink).and_then(|()| std::io::Write::flush(&mut sink));
    written.map_err(|error| Error::write(path, &error))?;
    replacement.map_or(Ok(()), super::replacement::Replacement::commit)?;
    Ok(format!("wrote {}, for {}", path.display(), output.format.viewers))
}

fn named(format: &Format) -> String {
    format!("{} keeps the time of each sample", format.name)
}
