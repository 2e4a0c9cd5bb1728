//! What a configuration may hold: the JSON Schema of a Rust type in the form that the reader ([`super::fit()`]) and the
//! reference page work on.

use indexmap::IndexMap;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value as Json;

/// The shape of a type.
#[derive(Clone, Debug)]
pub struct Schema {
    /// Of the type itself.
    pub root: Shape,
    /// Shapes that contain themselves, by the name that [`Shape::Ref`] has.
    pub recursive: IndexMap<String, Shape>,
}

/// What values a key takes.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Text, of a named format where it is not just any.
    Text(Option<String>),
    /// One of these names.
    Choice(Vec<Choice>),
    /// True or false.
    Flag,
    /// A whole number.
    Whole {
        /// Minimum, if any.
        min: Option<i64>,
        /// Maximum, if any.
        max: Option<i64>,
    },
    /// A finite number.
    Number {
        /// Minimum, if any.
        min: Option<f64>,
        /// Maximum, if any.
        max: Option<f64>,
    },
    /// Values of one shape.
    List {
        /// Shape of each element.
        of: Box<Shape>,
        /// Minimum number of elements.
        min: usize,
        /// Maximum number of elements, if any.
        max: Option<usize>,
    },
    /// The first of these that fits.
    Either(Vec<Shape>),
    /// Keys that each have their own shape.
    Section(Section),
    /// A section whose keys depend on the name that its tag, such as `type:`, has.
    Kinds {
        /// The key that names the kind.
        tag: String,
        /// The kinds.
        kinds: Vec<Kind>,
    },
    /// Any keys, with values of one shape.
    Map(Box<Shape>),
    /// Anything.
    Any,
    /// A shape of [`Schema::recursive`].
    Ref(String),
}

/// A name that a key takes as its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// As written in the configuration.
    pub name: String,
    /// Other names for it that are accepted, the schema's `x-aliases`.
    pub aliases: Vec<String>,
    /// What it means.
    pub doc: String,
}

/// The keys of a section.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Section {
    /// What the section is about.
    pub doc: String,
    /// Its keys, in the order of the type's fields.
    pub keys: IndexMap<String, Key>,
}

/// One key.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// What it takes.
    pub shape: Shape,
    /// Its value where none is given; null where it has none, or follows from others.
    pub default: Json,
    /// What it does.
    pub doc: String,
    /// Whether it must be given.
    pub required: bool,
}

/// One of several sections, by its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// Value of the tag.
    pub name: String,
    /// Keys besides the tag; their `doc` says what the kind is.
    pub section: Section,
}

impl Schema {
    /// The shape of `T`.
    pub fn of<T: JsonSchema>() -> Self {
        let settings = SchemaSettings::default().with(|settings| settings.inline_subschemas = true);
        let schema = settings.into_generator().into_root_schema_for::<T>();
        let recursive = schema.get("$defs").and_then(Json::as_object).into_iter().flatten();
        let root = shape(schema.as_value());
        let mut recursive: IndexMap<_, _> = recursive.map(|(name, schema)| (name.clone(), shape(schema))).collect();
        // How a type that is the root itself is referred to.
        recursive.insert("#".into(), root.clone());
        Self { root, recursive }
    }

    /// The shape itself, where `shape` only refers to it.
    pub fn resolve<'a>(&'a self, shape: &'a Shape) -> &'a Shape {
        match shape {
            Shape::Ref(name) => self.recursive.get(name).unwrap_or(&Shape::Any),
            shape => shape,
        }
    }
}

impl Shape {
    /// What is allowed, as a message says it after "is not".
    pub fn expected(&self) -> String {
        match self {
            Self::Text(_) => "text".into(),

            Self::Choice(choices) => {
                let names: Vec<_> = choices.iter().map(|choice| choice.name.as_str()).collect();
                format!("one of {}", names.join(", "))
            }
            Self::Flag => "true or false".into(),
            Self::Whole { min, max } => format!("a whole number{}", range(*min, *max)),
            Self::Number { min, max } => format!("a number{}", range(*min, *max)),
            Self::List { of, min, max } => {
                let each = of.expected();
                match max {
                    Some(max) if max == min => format!("a list of {max}, each {each}"),
                    _ if *min > 0 => format!("a list of {min} or more, each element {each}"),
                    _ => format!("a list, each element {each}"),
                }
            }
            Self::Either(shapes) => shapes.iter().map(Self::expected).collect::<Vec<_>>().join(", or "),
            Self::Section(section) => {
                let names: Vec<_> = section.keys.keys().map(String::as_str).collect();
                format!("a section with the keys {}", names.join(", "))
            }
            Self::Kinds { tag, kinds } => {
                let names: Vec<_> = kinds.iter().map(|kind| kind.name.as_str()).collect();
                format!("a section whose `{tag}` is one of {}", names.join(", "))
            }
            Self::Map(of) => format!("a section of names, each with {}", of.expected()),
            Self::Any => "any value".into(),
            Self::Ref(name) => format!("a {name}"),
        }
    }
}

fn range(min: Option<impl std::fmt::Debug>, max: Option<impl std::fmt::Debug>) -> String {
    match (min, max) {
        (Some(min), Some(max)) => format!(" from {min:?} to {max:?}"),
        (Some(min), None) => format!(" of {min:?} or more"),
        (None, Some(max)) => format!(" of {max:?} or less"),
        (None, None) => String::new(),
    }
}

fn shape(schema: &Json) -> Shape {
    if let Some(reference) = schema["$ref"].as_str() {
        return Shape::Ref(reference.trim_start_matches("#/$defs/").to_owned());
    }
    if let Some(alternatives) = schema["anyOf"].as_array() {
        return either(alternatives);
    }
    if let Some(variants) = schema["oneOf"].as_array() {
        return variants_of(variants);
    }
    if let Some(names) = schema["enum"].as_array() {
        return Shape::Choice(names.iter().filter_map(Json::as_str).map(undocumented).collect());
    }
    // An optional key has the types `[T, "null"]`.
    let name = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    match name {
        Some("string") => Shape::Text(schema["format"].as_str().map(str::to_owned)),
        Some("boolean") => Shape::Flag,
        Some("integer") => Shape::Whole {
            min: schema["minimum"].as_i64(),
            max: schema["maximum"].as_i64(),
        },
        Some("number") => Shape::Number {
            min: schema["minimum"].as_f64(),
            max: schema["maximum"].as_f64(),
        },
        Some("array") => Shape::List {
            of: Box::new(shape(&schema["items"])),
            min: schema["minItems"].as_u64().unwrap_or(0) as usize,
            max: schema["maxItems"].as_u64().map(|max| max as usize),
        },
        Some("object") if schema["additionalProperties"].is_object() || schema["properties"].is_null() => {
            Shape::Map(Box::new(shape(&schema["additionalProperties"])))
        }
        Some("object") => Shape::Section(section(schema, "")),
        _ => Shape::Any,
    }
}

/// `anyOf`: an optional value, or values of several shapes.
fn either(alternatives: &[Json]) -> Shape {
    let mut shapes: Vec<_> = alternatives
        .iter()
        .filter(|schema| schema["type"] != "null")
        .map(shape)
        .collect();
    match shapes.len() {
        1 => shapes.remove(0),
        _ => Shape::Either(shapes),
    }
}

/// `oneOf`: names, or kinds of sections.
fn variants_of(variants: &[Json]) -> Shape {
    let tag = variants[0]["properties"].as_object().and_then(|properties| {
        let tag = properties.iter().find(|(_, schema)| schema["const"].is_string());
        tag.map(|(name, _)| name.clone())
    });
    match tag {
        Some(tag) => Shape::Kinds {
            kinds: variants.iter().map(|variant| kind(variant, &tag)).collect(),
            tag,
        },
        None => Shape::Choice(variants.iter().flat_map(choices).collect()),
    }
}

/// A documented name, or several without documentation.
fn choices(schema: &Json) -> Vec<Choice> {
    match schema["enum"].as_array() {
        Some(names) => names.iter().filter_map(Json::as_str).map(undocumented).collect(),
        None => vec![Choice {
            name: text(schema, "const"),
            aliases: aliases(schema),
            doc: text(schema, "description"),
        }],
    }
}

fn undocumented(name: &str) -> Choice {
    Choice {
        name: name.to_owned(),
        aliases: vec![],
        doc: String::new(),
    }
}

fn aliases(schema: &Json) -> Vec<String> {
    let names = schema["x-aliases"].as_array().into_iter().flatten();
    names.filter_map(Json::as_str).map(str::to_owned).collect()
}

fn kind(schema: &Json, tag: &str) -> Kind {
    Kind {
        name: text(&schema["properties"][tag], "const"),
        section: section(schema, tag),
    }
}

/// The keys of an object, `without` the tag.
fn section(schema: &Json, without: &str) -> Section {
    let is_required = |name: &str| {
        schema["required"]
            .as_array()
            .is_some_and(|names| names.iter().any(|n| n == name))
    };
    let properties = schema["properties"].as_object().into_iter().flatten();
    let keys = properties.filter(|(name, _)| *name != without).map(|(name, schema)| {
        let key = Key {
            shape: shape(schema),
            default: schema["default"].clone(),
            doc: text(schema, "description"),
            required: is_required(name),
        };
        (name.clone(), key)
    });
    Section {
        doc: text(schema, "description"),
        keys: keys.collect(),
    }
}

/// A field's text on one line.
fn text(schema: &Json, field: &str) -> String {
    schema[field].as_str().unwrap_or_default().replace('\n', " ")
}
