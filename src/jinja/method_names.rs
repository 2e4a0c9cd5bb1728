//! Names of the methods that values have in Python.

pub(super) const OF_DICTIONARIES: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
pub(super) const OF_LISTS: [&str; 3] = ["copy", "count", "index"];
/// Methods that change a dictionary or list, which Jinja2's sandbox hides.
pub(super) const HIDDEN: [&str; 11] = [
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
];
pub(super) const OF_STRINGS: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
pub(super) const OF_NUMBERS: [&str; 11] = [
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "denominator",
    "from_bytes",
    "hex",
    "imag",
    "is_integer",
    "numerator",
    "real",
];

/// Whether a value of some type has a method or attribute of this name.
pub(super) fn is_method(name: &str) -> bool {
    [&OF_DICTIONARIES[..], &OF_LISTS, &HIDDEN, &OF_STRINGS, &OF_NUMBERS]
        .iter()
        .any(|names| names.contains(&name))
}
