//! Fetching transcripts into a directory of this machine: a file for each step, with an episode a line.
//!
//! Lines are appended, so a repeated fetch continues where the last one ended, and a later one adds the new episodes, or
//! the tokens that an earlier one did not ask for.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Result, io};
use crate::client::SwarmClient;
use crate::config::small_file::open_regular;
use crate::protocol::run_files::step_dir;
use crate::protocol::status::{EpisodeDetail, EpisodeSummary};

/// Episodes of a page of the list, the most that servers send.
const PAGE: u64 = 500;

/// Transcripts that are read at once.
const PARALLEL: usize = 8;

/// What a fetch of transcripts did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Number of transcripts that were written.
    pub new: u64,
    /// Number of transcripts that were present without tokens, and have them now.
    pub completed: u64,
    /// Number of transcripts that were present already.
    pub present: u64,
    /// Number of episodes of which the server keeps no transcript.
    pub without: u64,
}

/// Fetches the transcripts of an experiment's episodes, without a name of the current or last one, to
/// `DIR/train/step_3.jsonl` and its kin. `progress` receives what was done so far.
///
/// # Errors
/// Fails if the server knows no such experiment or cannot be reached, or a file cannot be read or written.
pub async fn fetch_transcripts(
    swarm: &SwarmClient,
    run: Option<&str>,
    dir: &Path,
    with_tokens: bool,
    progress: &mut (dyn FnMut(Fetched) + Send),
) -> Result<Fetched> {
    let (mut steps, mut fetched, mut offset) = (Steps::new(dir), Fetched::default(), 0);
    loop {
        let page = swarm.finished_episodes(run, offset, PAGE).await?.episodes;
        if page.is_empty() {
            steps.remove_superseded()?;
            return Ok(fetched);
        }
        offset += page.len() as u64;
        let mut wanted = vec![];
        for summary in page {
            match () {
                () if !summary.has_transcript => fetched.without += 1,
                () if steps.of(&summary)?.has(&summary.episode_uuid, with_tokens) => fetched.present += 1,
                () => wanted.push(summary.episode_uuid),
            }
        }
        let read = |uuid: String| async move { swarm.transcript(run, &uuid, with_tokens).await };
        let mut details = stream::iter(wanted).map(read).buffered(PARALLEL);
        while let Some(detail) = details.try_next().await? {
            match detail.summary.has_transcript {
                true => match steps.of(&detail.summary)?.add(&detail)? {
                    Added::New => fetched.new += 1,
                    Added::Tokens => fetched.completed += 1,
                    Added::Nothing => fetched.present += 1,
                },
                // Removed since it was listed.
                false => fetched.without += 1,
            }
            progress(fetched);
        }
    }
}

/// The files of a directory.
struct Steps {
    dir: PathBuf,
    files: HashMap<String, StepFile>,
}

impl Steps {
    fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            files: HashMap::new(),
        }
    }

    /// Returns the file of an episode's step.
    fn of(&mut self, summary: &EpisodeSummary) -> Result<&mut StepFile> {
        let name = step_dir(summary.episode_type, summary.global_step);
        if !self.files.contains_key(&name) {
            let file = StepFile::open(self.dir.join(format!("{name}.jsonl")))?;
            self.files.insert(name.clone(), file);
        }
        // Inserted above.
        Ok(self.files.entry(name).or_default())
    }

    /// Leaves one line of each episode. An interrupted fetch leaves both; the next one removes the older.
    fn remove_superseded(&self) -> Result<()> {
        let mut files = self.files.values();
        files.try_for_each(|file| match file.has_superseded {
            true => file.remove_superseded(),
            false => Ok(()),
        })
    }
}

/// What a transcript added to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Added {
    New,
    Tokens,
    Nothing,
}

/// The transcripts of a step.
#[derive(Default)]
struct StepFile {
    path: PathBuf,
    /// Ids of its episodes.
    ids: HashSet<String>,
    /// Ids of those with tokens.
    with_tokens: HashSet<String>,
    /// Whether an episode has a line with tokens and an older one without.
    has_superseded: bool,
}

/// The part of a line that names the episode.
#[derive(Deserialize)]
struct Line {
    summary: Named,
    #[serde(default)]
    rows: Vec<IgnoredAny>,
}

#[derive(Deserialize)]
struct Named {
    episode_uuid: String,
}

impl StepFile {
    /// Reads which episodes a file has. A line that was cut, as a fetch that was killed leaves it, is removed.
    fn open(path: PathBuf) -> Result<Self> {
        let mut step = Self {
            path: path.clone(),
            ..Self::default()
        };
        if !path.exists() {
            return Ok(step);
        }
        let file = open_regular(&path).map_err(io(&path))?;
        let size = file.metadata().map_err(io(&path))?.len();
        let (mut lines, mut complete) = (BufReader::new(file), 0);
        let mut line = vec![];
        while lines.read_until(b'\n', &mut line).map_err(io(&path))? > 0 && line.ends_with(b"\n") {
            complete += line.len() as u64;
            if let Ok(line) = serde_json::from_slice::<Line>(&line) {
                step.count(&line.summary.episode_uuid, !line.rows.is_empty());
            }
            line.clear();
        }
        if complete < size {
            let file = File::options().write(true).open(&path).map_err(io(&path))?;
            file.set_len(complete).map_err(io(&path))?;
        }
        Ok(step)
    }

    fn has(&self, uuid: &str, with_tokens: bool) -> bool {
        match with_tokens {
            true => self.with_tokens.contains(uuid),
            false => self.ids.contains(uuid),
        }
    }

    fn count(&mut self, uuid: &str, with_tokens: bool) {
        self.has_superseded |= !self.ids.insert(uuid.to_owned());
        if with_tokens {
            self.with_tokens.insert(uuid.to_owned());
        }
    }

    /// Appends an episode, unless the file has all of it: some have no tokens.
    fn add(&mut self, detail: &EpisodeDetail) -> Result<Added> {
        let (uuid, has_rows) = (&detail.summary.episode_uuid, !detail.rows.is_empty());
        let added = match self.has(uuid, false) {
            true if !has_rows => return Ok(Added::Nothing),
            true => Added::Tokens,
            false => Added::New,
        };
        self.append(detail)?;
        self.count(uuid, has_rows);
        Ok(added)
    }

    /// Removes the lines without tokens of episodes that have one with them.
    fn remove_superseded(&self) -> Result<()> {
        let path = &self.path;
        let mut lines = BufReader::new(open_regular(path).map_err(io(path))?);
        let beside = path.with_extension("jsonl.new");
        let mut kept = BufWriter::new(File::create(&beside).map_err(io(&beside))?);
        let mut line = vec![];
        while lines.read_until(b'\n', &mut line).map_err(io(path))? > 0 {
            let is_superseded = serde_json::from_slice::<Line>(&line)
                .is_ok_and(|line| line.rows.is_empty() && self.with_tokens.contains(&line.summary.episode_uuid));
            if !is_superseded {
                kept.write_all(&line).map_err(io(&beside))?;
            }
            line.clear();
        }
        kept.flush().map_err(io(&beside))?;
        fs::rename(&beside, path).map_err(io(path))
    }

    /// Appends an episode, in one write.
    fn append(&self, detail: &EpisodeDetail) -> Result<()> {
        let path = &self.path;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(io(parent))?;
        }
        let mut line = serde_json::to_vec(detail).map_err(|error| io(path)(error.into()))?;
        line.push(b'\n');
        let mut file = File::options().append(true).create(true).open(path).map_err(io(path))?;
        file.write_all(&line).map_err(io(path))
    }
}
