//! From columns to rows: how the groups and lists of a Parquet schema are reassembled.

use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::schema::types::Type;
use serde_json::Value;

use super::Row;
use super::parquet_column::Column;

/// Deepest nesting of groups and lists.
const MOST_DEPTH: usize = 64;

/// A part of a row: a column, or a group or list of columns.
#[derive(Debug)]
pub struct Node {
    /// Definition level from which on it is not null.
    present: i16,
    /// Its first column.
    first: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// A value of the column `first`.
    Leaf,
    /// An object.
    Group(Vec<(String, Node)>),
    /// A list, which a value with this repetition level continues.
    List { element: Box<Node>, repetition: i16 },
    /// An object of any keys.
    Map {
        key: Box<Node>,
        value: Box<Node>,
        repetition: i16,
    },
}

/// Definition and repetition level of a place in the schema.
#[derive(Clone, Copy, Default)]
struct Levels {
    definition: i16,
    repetition: i16,
}

/// Builds the tree of a schema. Columns are numbered as in the file.
pub struct Builder {
    columns: usize,
    depth: usize,
}

impl Node {
    /// The rows of a file with this schema; only the columns that `is_needed` names.
    ///
    /// # Errors
    /// Fails if the schema is invalid or nested too deeply.
    pub fn root(schema: &Type, is_needed: impl Fn(&str) -> bool) -> Result<Self, String> {
        let mut builder = Builder { columns: 0, depth: 0 };
        let mut fields = vec![];
        for field in schema.get_fields() {
            let node = builder.field(field, Levels::default())?;
            if is_needed(field.name()) {
                fields.push((field.name().to_owned(), node));
            }
        }
        Ok(Self {
            present: 0,
            first: 0,
            kind: Kind::Group(fields),
        })
    }

    /// Calls `visit` with the number of every column below.
    pub fn each_column(&self, visit: &mut dyn FnMut(usize)) {
        match &self.kind {
            Kind::Leaf => visit(self.first),
            Kind::Group(fields) => fields.iter().for_each(|(_, field)| field.each_column(visit)),
            Kind::List { element, .. } => element.each_column(visit),
            Kind::Map { key, value, .. } => {
                key.each_column(visit);
                value.each_column(visit);
            }
        }
    }

    /// Puts the next row together.
    ///
    /// # Errors
    /// Fails if the columns do not fit each other.
    pub fn row(&self, columns: &mut Columns) -> Result<Row, String> {
        match self.read(columns)? {
            Value::Object(row) => Ok(row),
            _ => Err("the schema's root is not a group".into()),
        }
    }

    fn read(&self, columns: &mut Columns) -> Result<Value, String> {
        if let Kind::Leaf = self.kind {
            return columns.at(self.first)?.take();
        }
        // The root has no level and may have no column.
        let definition = match self.present {
            0 => 0,
            _ => columns.at(self.first)?.definition()?,
        };
        if definition < self.present {
            self.skip(columns)?;
            return Ok(Value::Null);
        }
        match &self.kind {
            Kind::Leaf => Ok(Value::Null),
            Kind::Group(fields) => {
                let mut object = Row::new();
                for (name, field) in fields {
                    object.insert(name.clone(), field.read(columns)?);
                }
                Ok(Value::Object(object))
            }
            Kind::List { element, repetition } => {
                let mut list = vec![];
                self.each_element(columns, *repetition, |columns| {
                    list.push(element.read(columns)?);
                    Ok(())
                })?;
                Ok(Value::Array(list))
            }
            Kind::Map { key, value, repetition } => {
                let mut object = Row::new();
                self.each_element(columns, *repetition, |columns| {
                    let key = match key.read(columns)? {
                        Value::String(text) => text,
                        other => other.to_string(),
                    };
                    object.insert(key, value.read(columns)?);
                    Ok(())
                })?;
                Ok(Value::Object(object))
            }
        }
    }

    /// Calls `read` for every element of a list that is not null.
    fn each_element(
        &self,
        columns: &mut Columns,
        repetition: i16,
        mut read: impl FnMut(&mut Columns) -> Result<(), String>,
    ) -> Result<(), String> {
        if columns.at(self.first)?.definition()? <= self.present {
            return self.skip(columns);
        }
        loop {
            read(columns)?;
            if columns.at(self.first)?.repetition() < repetition {
                return Ok(());
            }
        }
    }

    /// Takes the one entry that every column below has for something null or empty.
    fn skip(&self, columns: &mut Columns) -> Result<(), String> {
        let mut result = Ok(());
        self.each_column(&mut |column| {
            if result.is_ok() {
                result = columns.at(column).and_then(|column| column.take().map(drop));
            }
        });
        result
    }
}

/// The columns of a row group; those that are not needed are absent.
pub struct Columns(pub Vec<Option<Column>>);

impl Columns {
    fn at(&mut self, index: usize) -> Result<&mut Column, String> {
        let column = self.0.get_mut(index).and_then(Option::as_mut);
        column.ok_or_else(|| format!("the row group has no column {index}"))
    }

    /// Gets the next row ready.
    ///
    /// # Errors
    /// Fails if a column is damaged, or has no further row.
    pub fn begin_row(&mut self) -> Result<(), String> {
        self.0.iter_mut().flatten().try_for_each(Column::begin_row)
    }
}

impl Builder {
    /// A field of a group.
    fn field(&mut self, field: &Type, mut levels: Levels) -> Result<Node, String> {
        match repetition(field) {
            Repetition::REQUIRED => self.node(field, levels),
            Repetition::OPTIONAL => {
                levels.definition += 1;
                self.node(field, levels)
            }
            // A repeated field that is no list's is a list without null.
            Repetition::REPEATED => self.list(levels, |builder, levels| builder.node(field, levels)),
        }
    }

    /// A field whose own repetition is part of `levels` already.
    fn node(&mut self, field: &Type, levels: Levels) -> Result<Node, String> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(format!("the schema nests deeper than {MOST_DEPTH} levels"));
        }
        let first = self.columns;
        let kind = match field.is_primitive() {
            true => {
                self.columns += 1;
                Ok(Kind::Leaf)
            }
            false => self.group(field, levels),
        };
        self.depth -= 1;
        Ok(Node {
            present: levels.definition,
            first,
            kind: kind?,
        })
    }

    fn group(&mut self, group: &Type, levels: Levels) -> Result<Kind, String> {
        let fields = group.get_fields();
        let repeated = match fields {
            [] => return Err(format!("group {:?} has no field", group.name())),
            [only] if repetition(only) == Repetition::REPEATED => Some(only),
            _ => None,
        };
        match (annotation(group), repeated) {
            (Annotation::List, Some(repeated)) => Ok(self
                .list(levels, |builder, levels| builder.element(repeated, levels))?
                .kind),
            (Annotation::Map, Some(entry)) if !entry.is_primitive() => self.map(entry, levels),
            _ => {
                let mut named = vec![];
                for field in fields {
                    named.push((field.name().to_owned(), self.field(field, levels)?));
                }
                Ok(Kind::Group(named))
            }
        }
    }

    /// A list at `levels`, whose elements `build` makes.
    fn list(
        &mut self,
        levels: Levels,
        build: impl FnOnce(&mut Self, Levels) -> Result<Node, String>,
    ) -> Result<Node, String> {
        let first = self.columns;
        let below = Levels {
            definition: levels.definition + 1,
            repetition: levels.repetition + 1,
        };
        Ok(Node {
            present: levels.definition,
            first,
            kind: Kind::List {
                element: Box::new(build(self, below)?),
                repetition: below.repetition,
            },
        })
    }

    /// The element of a list: what the repeated field holds, or in older files the repeated field itself.
    fn element(&mut self, repeated: &Type, levels: Levels) -> Result<Node, String> {
        match (repeated.is_primitive(), repeated) {
            (false, group) if group.get_fields().len() == 1 && !is_old_element(group.name()) => {
                self.field(&group.get_fields()[0], levels)
            }
            _ => self.node(repeated, levels),
        }
    }

    fn map(&mut self, entry: &Type, levels: Levels) -> Result<Kind, String> {
        let below = Levels {
            definition: levels.definition + 1,
            repetition: levels.repetition + 1,
        };
        match entry.get_fields() {
            [key, value] => Ok(Kind::Map {
                key: Box::new(self.field(key, below)?),
                value: Box::new(self.field(value, below)?),
                repetition: below.repetition,
            }),
            // A map without values is a list of its keys.
            [key] => Ok(Kind::List {
                element: Box::new(self.field(key, below)?),
                repetition: below.repetition,
            }),
            fields => Err(format!("a map has {} fields in place of key and value", fields.len())),
        }
    }
}

/// Names that the format gives to repeated groups that are themselves the elements.
fn is_old_element(name: &str) -> bool {
    name == "array" || name.ends_with("_tuple")
}

#[derive(PartialEq, Eq)]
enum Annotation {
    List,
    Map,
    None,
}

fn annotation(group: &Type) -> Annotation {
    let info = group.get_basic_info();
    match (info.logical_type_ref(), info.converted_type()) {
        (Some(LogicalType::List), _) | (_, ConvertedType::LIST) => Annotation::List,
        (Some(LogicalType::Map), _) | (_, ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE) => Annotation::Map,
        _ => Annotation::None,
    }
}

fn repetition(field: &Type) -> Repetition {
    let info = field.get_basic_info();
    match info.has_repetition() {
        true => info.repetition(),
        false => Repetition::REQUIRED,
    }
}
