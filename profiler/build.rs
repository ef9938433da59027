//! Finds the eBPF object that `cargo xtask build-ebpf` leaves in the target folder, for the agent to
//! embed.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(no_ebpf_object)");
    println!("cargo::rerun-if-env-changed=PROFILER_EBPF_OBJECT");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let name = format!("ebpf/profiler-{arch}.bpf.o");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let object = env::var_os("PROFILER_EBPF_OBJECT").map_or_else(
        // OUT_DIR lies some folders below the target folder, how many depends on the target.
        || out_dir.ancestors().map(|dir| dir.join(&name)).find(|path| path.is_file()),
        |path| Some(PathBuf::from(path)),
    );
    let Some(object) = object else {
        // A path that does not exist makes cargo ask again next time.
        println!("cargo::rerun-if-changed={}", out_dir.join("no-object").display());
        println!("cargo::rustc-cfg=no_ebpf_object");
        return;
    };
    println!("cargo::rerun-if-changed={}", object.display());
    println!("cargo::rustc-env=PROFILER_EBPF_OBJECT={}", object.display());

    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let sources = ["profiler-ebpf/src", "profiler-common/src"].map(|dir| workspace.join(dir));
    let newest = sources.iter().filter_map(|dir| newest(dir)).max();
    for dir in &sources {
        println!("cargo::rerun-if-changed={}", dir.display());
    }
    let built = fs::metadata(&object).and_then(|metadata| metadata.modified()).ok();
    if newest > built {
        println!(
            "cargo::warning=the eBPF object is older than its source: run `cargo xtask build-ebpf`"
        );
    }
}

/// When the newest file of a folder was changed.
fn newest(dir: &Path) -> Option<SystemTime> {
    let files = fs::read_dir(dir).ok()?.flatten();
    files.filter_map(|file| file.metadata().ok()?.modified().ok()).max()
}
