//! The source tree: its files as modules, and which file uses what of which other file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree, Visibility};

/// Names from the crate's root, such as `["server", "http", "auth"]`.
pub type ModulePath = Vec<String>;

/// A file and what it names.
pub struct SourceFile {
    /// Below `src`.
    pub path: PathBuf,
    pub text: String,
    /// Modules that it declares for tests only.
    test_modules: Vec<ModulePath>,
    uses: Vec<Use>,
    /// Name → what `pub use` makes it stand for.
    reexports: BTreeMap<String, ModulePath>,
    /// First names of its paths, those of crates among them.
    first_names: BTreeSet<String>,
}

/// One path that a file names.
struct Use {
    path: ModulePath,
    in_test: bool,
    /// `pub use`: it passes the name on and does not depend on it.
    is_reexport: bool,
}

/// Every file under `src`.
pub struct SourceTree(BTreeMap<ModulePath, SourceFile>);

impl SourceTree {
    pub fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut paths = vec![];
        let mut directories = vec![root.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => directories.push(path),
                    false if path.extension().is_some_and(|extension| extension == "rs") => paths.push(path),
                    false => {}
                }
            }
        }
        let modules: BTreeSet<_> = paths.iter().map(|path| module_of(path, &root)).collect();
        let files = paths.iter().map(|path| {
            let module = module_of(path, &root);
            let below = path.strip_prefix(&root).unwrap().to_owned();
            let file = SourceFile::parse(below, fs::read_to_string(path).unwrap(), &module, &modules);
            (module, file)
        });
        Self(files.collect())
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        let module = |path: &str| module_of(Path::new(path), Path::new(""));
        let modules = files.iter().map(|(path, _)| module(path)).collect();
        let parse = |(path, text): &(&str, &str)| {
            let module = module(path);
            let file = SourceFile::parse(path.into(), (*text).into(), &module, &modules);
            (module, file)
        };
        Self(files.iter().map(parse).collect())
    }

    pub fn files(&self) -> impl Iterator<Item = (&ModulePath, &SourceFile)> {
        self.0.iter()
    }

    /// Pairs of a file and a layer (a folder or file right below `src`) that it names, tests included.
    pub fn layers_named(&self) -> Vec<(&Path, &str)> {
        let uses = self
            .0
            .values()
            .flat_map(|file| file.uses.iter().map(move |used| (file, used)));
        let named = uses.filter_map(|(file, used)| Some((file.path.as_path(), used.path.first()?.as_str())));
        named.collect()
    }

    /// For each file the files that its code needs, tests aside. A folder's `mod.rs` may name its children.
    pub fn dependencies(&self) -> BTreeMap<&ModulePath, BTreeSet<&ModulePath>> {
        let test_modules: Vec<_> = self.0.values().flat_map(|file| &file.test_modules).collect();
        let is_test = |module: &ModulePath| test_modules.iter().any(|test| module.starts_with(test));
        let files = self.0.iter().filter(|(module, _)| !is_test(module));
        let with_needed = files.map(|(module, file)| {
            let needed = file.uses.iter().filter(|used| !used.in_test && !used.is_reexport);
            let needed = needed.filter_map(|used| self.defining(&used.path, 0));
            let others = needed.filter(|other| !other.starts_with(module));
            (module, others.collect())
        });
        with_needed.collect()
    }

    /// The file in which what a path names is defined.
    fn defining(&self, path: &[String], depth: usize) -> Option<&ModulePath> {
        let longest = (0..=path.len()).rev().find_map(|n| self.0.get_key_value(&path[..n]))?;
        let (module, file) = longest;
        match path.get(module.len()).and_then(|name| file.reexports.get(name)) {
            // Glob imports of one another would go round and round.
            Some(original) if depth < 8 => {
                let whole: Vec<_> = original.iter().chain(&path[module.len() + 1..]).cloned().collect();
                self.defining(&whole, depth + 1)
            }
            _ => Some(module),
        }
    }
}

fn module_of(path: &Path, root: &Path) -> ModulePath {
    let below = path.strip_prefix(root).unwrap().with_extension("");
    let mut names: Vec<_> = below.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|name| name == "mod") || names == ["lib"] {
        names.pop();
    }
    names
}

impl SourceFile {
    fn parse(path: PathBuf, text: String, module: &ModulePath, modules: &BTreeSet<ModulePath>) -> Self {
        let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut names = Names {
            modules,
            at: module.clone(),
            in_test: false,
            uses: vec![],
            reexports: BTreeMap::new(),
            first_names: BTreeSet::new(),
            test_modules: vec![],
        };
        names.visit_file(&syntax);
        Self {
            path,
            text,
            test_modules: names.test_modules,
            uses: names.uses,
            reexports: names.reexports,
            first_names: names.first_names,
        }
    }

    pub fn names_crate(&self, name: &str) -> bool {
        self.first_names.contains(name)
    }
}

/// Gathers what a file names.
struct Names<'a> {
    modules: &'a BTreeSet<ModulePath>,
    /// The module that is read, inline ones included.
    at: ModulePath,
    in_test: bool,
    uses: Vec<Use>,
    reexports: BTreeMap<String, ModulePath>,
    first_names: BTreeSet<String>,
    test_modules: Vec<ModulePath>,
}

impl Names<'_> {
    /// A path from the crate's root; `None` for other crates and for names of the file itself.
    fn absolute(&self, path: &[String]) -> Option<ModulePath> {
        let mut base = self.at.clone();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" | "ajet_swarm" => return Some(rest[1..].to_vec()),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            child => {
                base.push(child.to_owned());
                let is_child = self.modules.contains(&base);
                base.pop();
                if !is_child {
                    return None;
                }
            }
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }

    fn note(&mut self, path: &[String], is_reexport: bool) {
        self.first_names.extend(path.first().cloned());
        if let Some(path) = self.absolute(path) {
            let in_test = self.in_test;
            self.uses.push(Use {
                path,
                in_test,
                is_reexport,
            });
        }
    }
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let was = self.in_test;
        self.in_test |= attributes(item).iter().any(is_for_tests);
        visit::visit_item(self, item);
        self.in_test = was;
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        self.at.push(module.ident.to_string());
        if self.in_test && module.content.is_none() {
            self.test_modules.push(self.at.clone());
        }
        visit::visit_item_mod(self, module);
        self.at.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_reexport = !matches!(item.vis, Visibility::Inherited);
        let mut leaves = vec![];
        unfold(&item.tree, &mut vec![], &mut leaves);
        for (path, name) in leaves {
            self.note(&path, is_reexport);
            if is_reexport && let Some(original) = self.absolute(&path) {
                self.reexports.insert(name, original);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1 {
            self.note(&names, false);
        }
        visit::visit_path(self, path);
    }
}

/// Every path of a `use` with the name that it gets.
fn unfold(tree: &UseTree, before: &mut ModulePath, leaves: &mut Vec<(ModulePath, String)>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            unfold(&path.tree, before, leaves);
            before.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| unfold(tree, before, leaves)),
        UseTree::Glob(_) => leaves.push((before.clone(), "*".into())),
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            let itself = name == "self";
            let whole: Vec<_> = before.iter().cloned().chain((!itself).then(|| name.clone())).collect();
            let name = whole.last().cloned().unwrap_or(name);
            leaves.push((whole, name));
        }
        UseTree::Rename(rename) => {
            let whole = before.iter().cloned().chain([rename.ident.to_string()]).collect();
            leaves.push((whole, rename.rename.to_string()));
        }
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        _ => &[],
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    let is_cfg = attribute.path().is_ident("cfg");
    is_cfg
        && attribute
            .parse_args::<syn::Ident>()
            .is_ok_and(|condition| condition == "test")
}

#[test]
fn what_files_need_of_each_other_is_found_in_every_form() {
    let tree = SourceTree::of(&[
        ("lib.rs", "pub mod a; pub mod b;"),
        (
            "a/mod.rs",
            "pub mod one; mod two; pub use two::Two as Renamed; use one::f;",
        ),
        (
            "a/one.rs",
            "use super::{two::{self, Two}, Renamed}; fn f() { crate::b::g(); }",
        ),
        (
            "a/two.rs",
            "pub struct Two; #[cfg(test)] mod tests { use super::super::one::f; }",
        ),
        ("b.rs", "use crate::a::Renamed; pub fn g() {}"),
    ]);
    let found: Vec<_> = tree.dependencies().into_iter().collect();
    let path = |text: &str| text.split("::").map(str::to_owned).collect::<ModulePath>();
    let expected = [
        (path("a::one"), vec![path("a::two"), path("b")]),
        (path("b"), vec![path("a::two")]),
    ];
    let found = found.into_iter().filter(|(_, needed)| !needed.is_empty());
    let found: Vec<_> = found
        .map(|(module, needed)| (module.clone(), needed.into_iter().cloned().collect::<Vec<_>>()))
        .collect();
    assert_eq!(found, expected);
}
