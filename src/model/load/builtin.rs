//! Models that the binary carries.

use super::files::Files;

/// The files of one model by name.
type Embedded = (&'static str, &'static [(&'static str, &'static [u8])]);

const MODELS: &[Embedded] = &[];

/// Names of the models, as in `builtin:NAME`.
pub(super) fn names() -> Vec<&'static str> {
    MODELS.iter().map(|(name, _)| *name).collect()
}

/// The files of the model of that name.
pub(super) fn files(name: &str) -> Option<Files> {
    let (name, files) = MODELS.iter().find(|(known, _)| *known == name)?;
    Some(Files::Embedded { name, files })
}
