//! A container image with nothing but the agent, for all architectures, written without a daemon.
//!
//! Layout: <https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md>. `podman load` and `skopeo copy
//! oci-archive:` read it.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Agent, reproducible_tar};
use crate::command;

/// By which name it is loaded.
const NAME: &str = concat!("profiler:", env!("CARGO_PKG_VERSION"));

const OS: &str = "linux";

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A folder in the layout of an image.
struct Layout(PathBuf);

impl Layout {
    /// Keeps bytes by their digest, and describes them.
    fn blob(&self, kind: &str, bytes: &[u8]) -> Result<Value> {
        let digest = digest(bytes);
        let path = self.0.join("blobs/sha256").join(&digest);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len()}))
    }

    fn json(&self, kind: &str, value: &Value) -> Result<Value> {
        self.blob(kind, value.to_string().as_bytes())
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// Writes the image of these agents as `profiler-VERSION.oci.tar`.
pub(super) fn build(agents: &[Agent], dir: &Path) -> Result<PathBuf> {
    let scratch = tempfile::tempdir().context("cannot make a folder")?;
    let layout = Layout(scratch.path().join("image"));
    fs::create_dir_all(layout.0.join("blobs/sha256"))?;
    let mut manifests = Vec::new();
    for agent in agents {
        manifests.push(manifest(agent, &layout, scratch.path())?);
    }
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    let name = json!({"org.opencontainers.image.ref.name": NAME});
    let index = with(layout.json(INDEX, &index)?, "annotations", name);
    let top = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [index]});
    fs::write(layout.0.join("index.json"), top.to_string())?;
    fs::write(layout.0.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
    let packed = dir.join(format!("profiler-{}.oci.tar", env!("CARGO_PKG_VERSION")));
    command::run(reproducible_tar(&layout.0).arg("--file").arg(&packed).arg("."))?;
    Ok(packed)
}

/// The image of one architecture: a layer, and how it is run.
fn manifest(agent: &Agent, layout: &Layout, scratch: &Path) -> Result<Value> {
    let root = scratch.join(format!("root-{}", agent.arch));
    fs::create_dir_all(root.join("usr/bin"))?;
    // Perf maps are in a process's own /tmp, but outputs may go here.
    fs::create_dir(root.join("tmp"))?;
    fs::copy(&agent.path, root.join("usr/bin/profiler"))?;
    let tar = scratch.join(format!("layer-{}.tar", agent.arch));
    command::run(reproducible_tar(&root).arg("--file").arg(&tar).arg("."))?;
    let mut layer = Vec::new();
    File::open(&tar)?.read_to_end(&mut layer)?;
    let mut packer = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    packer.write_all(&layer)?;
    let packed = layout.blob(LAYER, &packer.finish()?)?;
    let config = json!({
        "architecture": agent.arch.debian(),
        "os": OS,
        "config": {"Entrypoint": ["/usr/bin/profiler"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", digest(&layer))]},
    });
    let config = layout.json(CONFIG, &config)?;
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [packed],
    });
    let platform = json!({"architecture": agent.arch.debian(), "os": OS});
    Ok(with(layout.json(MANIFEST, &manifest)?, "platform", platform))
}

/// An object with one more value.
fn with(mut object: Value, key: &str, value: Value) -> Value {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
    object
}
