//! Patterns of file names in the header of a data set's README, as `datasets` reads them.

/// Whether a path below the data set fits a pattern: `*`, `?` and `[…]` within a name, `**` for any directories.
/// Hidden files and directories named `__…__` fit only a pattern that names them.
pub fn fits(pattern: &str, path: &str) -> bool {
    let pattern = pattern.trim_start_matches("./");
    let names: Vec<&str> = path.split('/').collect();
    let parts: Vec<&str> = pattern.split('/').collect();
    let both = |count: fn(&[&str]) -> usize| count(&names) == count(&parts);
    match_wildcards(&parts, &names, |part| *part == "**", |part, name| name_fits(part, name))
        && both(hidden)
        && both(special)
}

/// How many of the names are hidden.
fn hidden(names: &[&str]) -> usize {
    names
        .iter()
        .filter(|name| name.starts_with('.') && !name.trim_matches('.').is_empty())
        .count()
}

/// How many of the directories are such as `__pycache__`.
fn special(names: &[&str]) -> usize {
    let directories = names.split_last().map_or(&[][..], |(_, directories)| directories);
    directories.iter().filter(|name| name.starts_with("__")).count()
}

/// Whether one name fits one part of a pattern.
fn name_fits(pattern: &str, name: &str) -> bool {
    let units = units(pattern);
    let characters: Vec<char> = name.chars().collect();
    match_wildcards(
        &units,
        &characters,
        |unit| *unit == Unit::Any,
        |unit, character| unit.fits(*character),
    )
}

/// What stands for one character, or for any number of them.
#[derive(Debug, PartialEq, Eq)]
enum Unit {
    Any,
    One,
    Exactly(char),
    Class { members: Vec<(char, char)>, inverted: bool },
}

impl Unit {
    fn fits(&self, character: char) -> bool {
        match self {
            Self::Any => false,
            Self::One => true,
            Self::Exactly(known) => *known == character,
            Self::Class { members, inverted } => {
                members.iter().any(|(from, to)| (*from..=*to).contains(&character)) != *inverted
            }
        }
    }
}

fn units(pattern: &str) -> Vec<Unit> {
    let characters: Vec<char> = pattern.chars().collect();
    let mut units = vec![];
    let mut at = 0;
    while let Some(&character) = characters.get(at) {
        at += 1;
        units.push(match character {
            '*' => Unit::Any,
            '?' => Unit::One,
            '[' => match class(&characters[at..]) {
                Some((class, length)) => {
                    at += length;
                    class
                }
                None => Unit::Exactly('['),
            },
            other => Unit::Exactly(other),
        });
    }
    units
}

/// The class that begins after a `[`, and its length; `None` where it is not closed.
fn class(characters: &[char]) -> Option<(Unit, usize)> {
    let inverted = matches!(characters.first(), Some('!' | '^'));
    let start = usize::from(inverted);
    // A `]` right at the beginning is a member.
    let end = (start + 1..characters.len()).find(|at| characters[*at] == ']')?;
    let mut members = vec![];
    let mut at = start;
    while at < end {
        match (characters[at], characters.get(at + 1), characters.get(at + 2)) {
            (from, Some('-'), Some(&to)) if at + 2 < end => {
                members.push((from, to));
                at += 3;
            }
            (one, ..) => {
                members.push((one, one));
                at += 1;
            }
        }
    }
    Some((Unit::Class { members, inverted }, end + 1))
}

/// Whether all items fit the pattern, whose wildcards stand for any number of items. Takes time proportional to the
/// product of the lengths at most.
fn match_wildcards<P, T>(
    pattern: &[P],
    items: &[T],
    is_wildcard: impl Fn(&P) -> bool,
    fits: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut part, mut item) = (0, 0);
    // The last wildcard, and the item after those that it stands for so far.
    let mut retry: Option<(usize, usize)> = None;
    while item < items.len() {
        match pattern.get(part) {
            Some(wildcard) if is_wildcard(wildcard) => {
                retry = Some((part, item));
                part += 1;
            }
            Some(one) if fits(one, &items[item]) => {
                part += 1;
                item += 1;
            }
            _ => {
                let Some((wildcard, after)) = retry else {
                    return false;
                };
                retry = Some((wildcard, after + 1));
                part = wildcard + 1;
                item = after + 1;
            }
        }
    }
    pattern[part..].iter().all(is_wildcard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_what_they_fit_in_python() {
        for (pattern, path, expected) in [
            ("data/train-*", "data/train-00000-of-00001.parquet", true),
            ("data/train-*", "data/test-00000-of-00001.parquet", false),
            ("*.csv", "a.csv", true),
            ("*.csv", "b/a.csv", false),
            ("**", "a.csv", true),
            ("**", "b/c/a.csv", true),
            ("**/*.csv", "a.csv", true),
            ("data/**", "data/b/c.csv", true),
            ("**/train/**", "x/train/y/z.csv", true),
            ("**/train/**", "train.csv", false),
            ("./data/a.json", "data/a.json", true),
            ("**/train[-._ 0-9]*", "train.jsonl", true),
            ("**/train[-._ 0-9]*", "a/train-1.jsonl", true),
            ("**/train[-._ 0-9]*", "training.jsonl", false),
            ("**/*[-._ 0-9]test[-._ 0-9]*", "my_test.csv", true),
            ("**/*[-._ 0-9]test[-._ 0-9]*", "mytest.csv", false),
            ("data/*-[0-9][0-9].x", "data/a-07.x", true),
            ("data/*-[0-9][0-9].x", "data/a-7.x", false),
            ("a[!b]c", "axc", true),
            ("a[!b]c", "abc", false),
            ("a[]]c", "a]c", true),
            ("a[b", "a[b", true),
            ("?.csv", "ä.csv", true),
            ("**", ".git/config.json", false),
            (".git/**", ".git/config.json", true),
            ("**", "__pycache__/a.json", false),
            ("__pycache__/*", "__pycache__/a.json", true),
            ("*a*a*a*a*a*a*a*a*b", &"a".repeat(200), false),
        ] {
            assert_eq!(fits(pattern, path), expected, "{pattern} {path}");
        }
    }
}
