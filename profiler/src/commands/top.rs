//! `top`: what is hot now, on a screen.

use std::{path::Path, process::ExitCode};

use profiler_profile::{
    export::{
        about::About,
        format::{Export, Format},
    },
    live::{Live, Window},
    profile::Profile,
};

use super::{command, destination::resolve, session::Session};
use crate::{
    cli::{CommandArgs, TopArgs},
    error::{Error, Result},
    hardening::capabilities,
    invoker::Invoker,
    kernel,
    launch::Launch,
    shutdown::Signals,
    stderr, top,
};

/// Samples and shows that until the user or a signal ends it, prints the ledger, and gives the exit code of the command,
/// if there is one.
pub(super) fn run(args: TopArgs, verbose: u8) -> Result<ExitCode> {
    top::Prepared::check()?;
    let TopArgs { window, sampling, command: CommandArgs { as_root, command: typed } } = args;
    let invoker = Invoker::find();
    // Before limits are raised, which are not for the command.
    let mut launch = if typed.is_empty() {
        None
    } else {
        command::check(&sampling)?;
        Some(Launch::prepare_apart(&typed, invoker.as_ref().filter(|_| !as_root))?)
    };
    let sampling = command::followed(sampling, launch.as_ref());
    let mut session = Session::prepare(&sampling, Vec::new(), verbose)?;
    if launch.is_some() {
        command::settle(&mut session.config, invoker.is_some() && !as_root);
    }
    // The command lines of processes, and what they run in, are shown.
    session.config.process.metadata = true;
    let output = &mut session.config.worker.output;
    let live = Live::new(Window::new(window, output.profile_bytes, kernel::monotonic_ns()));
    output.live = Some(live.clone());
    // While it can still become what it is to be.
    let saver = top::Saver::start(move || use_files_as(invoker.as_ref()), Box::new(save))?;
    session.screen = Some(top::Prepared::new(live, saver));
    let shown = session.run(Vec::new(), launch.as_mut(), |_, _| Ok(()));
    // From here on signals end us, too.
    let heeded = Signals::end_again();
    let code = launch.map_or(Ok(0), |mut launch| {
        if !launch.has_ended() && !launch.is_cancelled() {
            launch.signal(libc::SIGTERM);
        }
        launch.wait()
    });
    heeded.again();
    shown?;
    code.map(ExitCode::from)
}

/// Has the thread that saves be one of this user, if one has typed sudo, and in any case without capabilities.
fn use_files_as(invoker: Option<&Invoker>) {
    if let Some(Err(error)) = invoker.map(Invoker::use_files_as_them) {
        stderr::notice(&format!("files that are saved are root's: {error}"));
    }
    if let Err(error) = capabilities::give_up() {
        stderr::notice(&format!("the thread that saves keeps its capabilities: {error}"));
    }
}

/// Writes what is shown to a file, as `record` writes one.
fn save(path: &Path, profile: &Profile, about: &About<'_>) -> Result<String> {
    // A pipe would keep others waiting that want to save.
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
    let (mut sink, replacement) = output.open(None)?;
    let written = write(profile, about, &mut sink).and_then(|()| std::io::Write::flush(&mut sink));
    written.map_err(|error| Error::write(path, &error))?;
    replacement.map_or(Ok(()), super::replacement::Replacement::commit)?;
    Ok(format!("wrote {}, for {}", path.display(), output.format.viewers))
}

fn named(format: &Format) -> String {
    format!("{} keeps the time of each sample", format.name)
}
