//! What a snapshot of training code is: a zip with the sources of ajet-swarm below the top folder `ajet/`.

/// The folder in which the protocol wants all files.
pub const TOP: &str = "ajet";
/// Name of the package whose program is an engine.
pub const PACKAGE: &str = "ajet-swarm";
/// Maximum size of an archive in bytes.
pub const ARCHIVE_BYTES: u64 = 1024 * 1024 * 1024;

/// Returns the name in the `[package]` table of a `Cargo.toml`. Only as much TOML is read as distinguishes our crate
/// from others.
pub fn package_name(manifest: &str) -> Option<&str> {
    let lines = manifest.lines().map(str::trim);
    let in_package = lines
        .skip_while(|line| *line != "[package]")
        .skip(1)
        .take_while(|line| !line.starts_with('['));
    let names = in_package.filter_map(|line| line.strip_prefix("name")?.trim_start().strip_prefix('='));
    names.map(str::trim_start).find_map(|value| {
        let quote = value.chars().next().filter(|first| ['"', '\''].contains(first))?;
        value[1..].split(quote).next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_that_of_the_package_table() {
        for (manifest, name) in [
            ("[package]\nname = \"ajet-swarm\"\n", Some("ajet-swarm")),
            (
                "# x\n[package]\nversion = \"1\"\nname='ajet-swarm' # ours\n",
                Some("ajet-swarm"),
            ),
            ("[lib]\nname = \"ajet-swarm\"\n", None),
            ("[package]\n[lib]\nname = \"ajet-swarm\"\n", None),
            ("[package]\nname = 1\n", None),
            ("[package]\nnames = \"x\"\nname = \"y\"", Some("y")),
            ("[workspace]\nmembers = []\n", None),
            ("", None),
        ] {
            assert_eq!(package_name(manifest), name, "{manifest}");
        }
    }
}
