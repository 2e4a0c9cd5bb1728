//! What a misspelt name was probably meant to be.

/// Similarity below which two names have nothing to do with each other.
const SIMILAR: f64 = 0.6;

/// The candidate that a misspelt dotted path was most likely meant to be: the same name in another section, or else
/// the most similar path, if any is similar.
pub fn nearest<'a>(path: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let similarity = |candidate: &str| {
        let names = strsim::normalized_damerau_levenshtein(leaf(path), leaf(candidate));
        let paths = strsim::normalized_damerau_levenshtein(path, candidate);
        if names < SIMILAR { 0.0 } else { names + paths }
    };
    candidates
        .map(|candidate| (similarity(candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.0)
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map(|(_, candidate)| candidate)
}

fn leaf(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}
