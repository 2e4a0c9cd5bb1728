//! Copies of the training code, one for each variant, with the variant's patch.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::ResearchError;
use super::plan::{Plan, Variant};
use crate::client::Sources;

/// Makes the copies below `dir`; returns that of each variant, in order. Empty if the plan names no code.
///
/// # Errors
/// The checkout has no training code, a patch does not apply, or the disk fails.
pub fn copies(plan: &Plan, dir: &Path) -> Result<Vec<PathBuf>, ResearchError> {
    let Some(code) = &plan.code else {
        return Ok(Vec::new());
    };
    let sources = Sources::find(code)?;
    let all = dir.join("code");
    plan.variants
        .iter()
        .map(|variant| copy(&sources, variant, &all))
        .collect()
}

fn copy(sources: &Sources, variant: &Variant, all: &Path) -> Result<PathBuf, ResearchError> {
    let dir = all.join(&variant.name);
    let failed = |error| ResearchError::file(&dir, error);
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(failed)?;
    }
    for file in &sources.files {
        let target = dir.join(file);
        fs::create_dir_all(target.parent().unwrap_or(&dir)).map_err(failed)?;
        fs::copy(sources.root.join(file), target).map_err(failed)?;
    }
    let patched = |patch: &Path, reason: String| ResearchError::Patch {
        patch: patch.to_owned(),
        reason,
    };
    // A work tree of its own, since what is sent is what git tracks.
    git(&dir, ["init", "-q"]).map_err(|reason| patched(&dir, reason))?;
    if let Some(patch) = &variant.patch {
        let path = patch
            .canonicalize()
            .map_err(|error| ResearchError::file(patch, error))?;
        git(&dir, [OsStr::new("apply"), path.as_os_str()]).map_err(|reason| patched(patch, reason))?;
    }
    git(&dir, ["add", "--all", "--force"]).map_err(|reason| patched(&dir, reason))?;
    Ok(dir)
}

fn git<const N: usize>(dir: &Path, args: [impl AsRef<OsStr>; N]) -> Result<(), String> {
    let output = Command::new("git").arg("-C").arg(dir).args(args).output();
    let output = output.map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_variant_has_its_own_copy_with_its_patch() {
        let dir = tempfile::tempdir().unwrap();
        let code = dir.path().join("code");
        fs::create_dir_all(code.join("src")).unwrap();
        fs::write(code.join("Cargo.toml"), "[package]\nname = \"ajet-swarm\"\n").unwrap();
        fs::write(code.join("src/a.rs"), "one\ntwo\n").unwrap();
        git(&code, ["init", "-q"]).unwrap();
        git(&code, ["add", "."]).unwrap();
        fs::write(code.join("untracked.rs"), "").unwrap();
        let patch = dir.path().join("a.patch");
        fs::write(
            &patch,
            "--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n",
        )
        .unwrap();
        let text = "{job: j, steps: 1, seeds: [1], code: c, variants: [{name: base}, {name: new, patch: p}]}";
        let mut plan = Plan::parse(text).unwrap();
        plan.code = Some(code);
        plan.variants[1].patch = Some(patch.clone());
        let out = dir.path().join("out");
        for _ in 0..2 {
            let copies = copies(&plan, &out).unwrap();
            let text = |copy: &Path| fs::read_to_string(copy.join("src/a.rs")).unwrap();
            assert_eq!(
                (text(&copies[0]), text(&copies[1])),
                ("one\ntwo\n".into(), "one\nthree\n".into())
            );
            assert_eq!(Sources::find(&copies[1]).unwrap().files, ["Cargo.toml", "src/a.rs"]);
        }
        fs::write(&patch, "--- a/src/b.rs\n+++ b/src/b.rs\n@@ -1 +1 @@\n-x\n+y\n").unwrap();
        assert!(matches!(copies(&plan, &out), Err(ResearchError::Patch { .. })));
    }
}
