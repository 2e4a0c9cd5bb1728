//! The experiment's name and directory.

use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use super::error::Problem;
use super::schema::Ajet;

/// Name that stands for one made from project and time.
pub const NAME_FROM_TIME: &str = "read_yaml_name";

/// Directory of experiments unless one is given.
pub const BASE: &str = "saved_experiments";

/// File names end here on common file systems.
const LONGEST_NAME: usize = 255;

/// An experiment's name and where it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Experiment {
    /// As loggers show it.
    pub name: String,
    /// Checkpoints, journal and metrics; absolute.
    pub dir: PathBuf,
}

/// Name and directory of the experiment that starts at `now` in working directory `cwd`. `exists` returns whether a
/// directory is there, so that a name made from the time is unique.
///
/// # Errors
/// Fails for a name that is not valid for a directory.
pub fn resolve(
    ajet: &Ajet,
    cwd: &Path,
    now: SystemTime,
    exists: impl Fn(&Path) -> bool,
) -> Result<Experiment, Problem> {
    let given = ajet.experiment_name.as_str();
    check_name(given).map_err(|message| Problem::new("ajet.experiment_name", message))?;
    if given != NAME_FROM_TIME {
        let name = given.replace('|', "-");
        let dir = directory(&ajet.experiment_dir, &name, cwd);
        return Ok(Experiment { name, dir });
    }
    let project = ajet.project_name.replace(['|', '/', '\\'], "-");
    let stem = format!("{project}_{}", timestamp(now));
    let numbered = (2..).map(|number| format!("{stem}_{number}"));
    let mut names = std::iter::once(stem.clone()).chain(numbered);
    loop {
        // The names never end.
        let name = names.next().unwrap_or_default();
        let dir = directory(&ajet.experiment_dir, &name, cwd);
        if !exists(&dir) {
            return Ok(Experiment { name, dir });
        }
    }
}

/// Where an experiment of this name lives.
fn directory(given: &str, name: &str, cwd: &Path) -> PathBuf {
    let dir = match given {
        "auto" | "" => Path::new(BASE).join(name),
        given if given.contains(name) => PathBuf::from(given),
        base => Path::new(base).join(name),
    };
    cwd.join(dir)
}

/// Whether a name can be that of a directory right below another.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_one_component = matches!(
        Path::new(name).components().collect::<Vec<_>>().as_slice(),
        [Component::Normal(component)] if *component == name
    );
    if name.contains(['/', '\\']) || name.contains("..") || !is_one_component {
        return Err(format!("{name:?} is not a name without `/` and `..`"));
    }
    if name.chars().any(char::is_control) {
        return Err(format!("{name:?} is not a name without control characters"));
    }
    if name.len() > LONGEST_NAME {
        return Err(format!("a name of {} bytes is longer than {LONGEST_NAME}", name.len()));
    }
    Ok(())
}

/// UTC as `20260315_142233`.
pub fn timestamp(time: SystemTime) -> String {
    let utc = jiff::Timestamp::try_from(time).unwrap_or_default();
    utc.strftime("%Y%m%d_%H%M%S").to_string()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn at(name: &str, dir: &str, exists: impl Fn(&Path) -> bool) -> Result<Experiment, Problem> {
        let ajet = Ajet {
            project_name: "demo".into(),
            experiment_name: name.into(),
            experiment_dir: dir.into(),
            ..Ajet::default()
        };
        let now = UNIX_EPOCH + Duration::from_secs(1_773_584_553);
        resolve(&ajet, Path::new("/home"), now, exists)
    }

    #[test]
    fn directories() {
        let cases = [
            ("exp", "auto", "exp", "/home/saved_experiments/exp"),
            ("exp", "runs", "exp", "/home/runs/exp"),
            ("exp", "/data/runs", "exp", "/data/runs/exp"),
            ("exp", "/data/exp", "exp", "/data/exp"),
            ("exp", "/data/exp-v2", "exp", "/data/exp-v2"),
            ("a|b", "auto", "a-b", "/home/saved_experiments/a-b"),
            (
                "read_yaml_name",
                "auto",
                "demo_20260315_142233",
                "/home/saved_experiments/demo_20260315_142233",
            ),
        ];
        for (name, dir, want_name, want_dir) in cases {
            let experiment = at(name, dir, |_| false).unwrap();
            assert_eq!(
                (experiment.name.as_str(), experiment.dir.to_str().unwrap()),
                (want_name, want_dir)
            );
        }
    }

    #[test]
    fn a_name_made_from_the_time_is_unique() {
        let taken = |path: &Path| path.ends_with("demo_20260315_142233") || path.ends_with("demo_20260315_142233_2");
        assert_eq!(
            at("read_yaml_name", "auto", taken).unwrap().name,
            "demo_20260315_142233_3"
        );
        assert_eq!(at("exp", "auto", |_| true).unwrap().name, "exp");
    }

    #[test]
    fn names_that_leave_the_directory_are_errors() {
        let long = "x".repeat(256);
        for name in [
            "", ".", "..", "a/b", "../a", "a..b", "/a", "a/", "a\\b", "a\0b", "a\nb", &long,
        ] {
            let problem = at(name, "auto", |_| false).unwrap_err();
            assert_eq!(problem.key, "ajet.experiment_name", "{name:?}");
        }
        for name in ["a", "a.b", "实验 1", "1e5", "-x"] {
            assert!(at(name, "auto", |_| false).is_ok(), "{name:?}");
        }
    }
}
