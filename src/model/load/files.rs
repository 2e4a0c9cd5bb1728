//! The files of a model, on disk or in the binary.

use std::collections::BTreeMap;
use std::io::{Cursor, ErrorKind, Read, Seek};
use std::path::PathBuf;

use serde_json::Value;

use crate::config::small_file::{TABLE_BYTES, open_regular, read_text};
use crate::model::error::ModelError;

/// Location of a model's files.
pub(super) enum Files {
    /// A directory.
    Directory(PathBuf),
    /// Bytes in the binary, by file name.
    Embedded {
        name: &'static str,
        files: &'static [(&'static str, &'static [u8])],
    },
}

/// A readable, seekable file.
pub(super) trait Source: Read + Seek {}

impl<T: Read + Seek> Source for T {}

impl Files {
    /// Opens a file; returns `None` if it does not exist.
    pub(super) fn open(&self, file: &str) -> Result<Option<Box<dyn Source>>, ModelError> {
        match self {
            Self::Directory(directory) => match open_regular(&directory.join(file)) {
                Ok(open) => Ok(Some(Box::new(open))),
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
                Err(source) => Err(ModelError::Io {
                    path: directory.join(file),
                    source,
                }),
            },
            Self::Embedded { files, .. } => {
                let found = files.iter().find(|(name, _)| *name == file);
                Ok(found.map(|(_, bytes)| Box::new(Cursor::new(*bytes)) as Box<dyn Source>))
            }
        }
    }

    /// Returns the text of a file; `None` if it does not exist.
    pub(super) fn text(&self, file: &str) -> Result<Option<String>, ModelError> {
        match self {
            Self::Directory(directory) => match read_text(&directory.join(file), TABLE_BYTES) {
                Ok(text) => Ok(Some(text)),
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
                Err(source) => Err(ModelError::file(self.place(file), source)),
            },
            Self::Embedded { files, .. } => {
                let found = files.iter().find(|(name, _)| *name == file);
                Ok(found.map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned()))
            }
        }
    }

    /// The texts of the files in a directory whose names end so, by the rest of the name; none where there is no such
    /// directory.
    pub(super) fn texts(&self, directory: &str, ending: &str) -> Result<BTreeMap<String, String>, ModelError> {
        let Self::Directory(model) = self else {
            return Ok(BTreeMap::new());
        };
        let path = model.join(directory);
        let entries = match path.read_dir() {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(source) => return Err(ModelError::Io { path, source }),
        };
        let mut texts = BTreeMap::new();
        for entry in entries {
            let entry = entry.map_err(ModelError::io(&path))?;
            let file = entry.file_name().to_string_lossy().into_owned();
            if let Some(name) = file.strip_suffix(ending)
                && let Some(text) = self.text(&format!("{directory}/{file}"))?
            {
                texts.insert(name.to_owned(), text);
            }
        }
        Ok(texts)
    }

    /// Parses a JSON file; returns `None` if it does not exist.
    pub(super) fn json(&self, file: &str) -> Result<Option<Value>, ModelError> {
        let parse = |text: String| serde_json::from_str(&text).map_err(|e| ModelError::file(self.place(file), e));
        self.text(file)?.map(parse).transpose()
    }

    /// Returns the name of a file for messages.
    pub(super) fn place(&self, file: &str) -> String {
        match self {
            Self::Directory(directory) => directory.join(file).display().to_string(),
            Self::Embedded { name, .. } => format!("builtin:{name}/{file}"),
        }
    }
}
