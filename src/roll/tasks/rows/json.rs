//! JSON files that are one document: a list of objects, objects one after another, or a list below a key.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::bounded::{Bounded, Budget};
use super::{Row, Sink, TaskError};

/// Gives the rows of `reader` to `sink`; `path` names it in errors. With `field`, the rows are the list at that key of
/// the top-level object.
pub fn read(path: &Path, reader: impl BufRead, field: Option<&str>, sink: &mut Sink) -> Result<(), TaskError> {
    let budget = Budget::new();
    let bounded = Bounded::new(reader, budget.clone()).map_err(|reason| TaskError::File {
        path: path.to_path_buf(),
        reason,
    })?;
    let mut deserializer = serde_json::Deserializer::from_reader(BufReader::new(bounded));
    let mut reading = Reading {
        sink,
        budget,
        ended: None,
    };
    let mut found_field = false;
    while deserializer.end().is_err() {
        let document = Document {
            reading: &mut reading,
            field,
            found_field: &mut found_field,
        };
        let Err(error) = document.deserialize(&mut deserializer) else {
            continue;
        };
        let reason = match reading.ended {
            Some(End::Enough) => return Ok(()),
            Some(End::Wrong(reason)) => reason,
            None if error.is_io() => error.to_string(),
            None => format!("not JSON: {error}"),
        };
        return Err(TaskError::Line {
            path: path.to_path_buf(),
            line: error.line(),
            reason,
        });
    }
    match field {
        Some(field) if !found_field => Err(TaskError::Field {
            path: path.to_path_buf(),
            field: field.to_owned(),
        }),
        _ => Ok(()),
    }
}

struct Reading<'a, 'b> {
    sink: &'a mut Sink<'b>,
    budget: Budget,
    ended: Option<End>,
}

/// Why reading ended before the document did.
enum End {
    /// The sink has enough.
    Enough,
    /// A row is wrong.
    Wrong(String),
}

impl Reading<'_, '_> {
    /// Gives a row to the sink. An error ends the deserializer, and `ended` says why.
    fn take<E: Error>(&mut self, row: Row) -> Result<(), E> {
        self.budget.reset();
        match (self.sink)(row) {
            Ok(flow) if flow.is_continue() => Ok(()),
            Ok(_) => Err(self.end(End::Enough)),
            Err(reason) => Err(self.end(End::Wrong(reason))),
        }
    }

    fn take_list<'de, A: SeqAccess<'de>>(&mut self, mut list: A) -> Result<(), A::Error> {
        self.budget.reset();
        while let Some(element) = list.next_element()? {
            match element {
                Value::Object(row) => self.take(row)?,
                other => {
                    let shown: String = other.to_string().chars().take(80).collect();
                    return Err(self.end(End::Wrong(format!("not a JSON object: {shown}"))));
                }
            }
        }
        Ok(())
    }

    fn end<E: Error>(&mut self, end: End) -> E {
        self.ended = Some(end);
        E::custom("reading ended")
    }
}

/// A top-level value.
struct Document<'r, 'a, 'b, 'f> {
    reading: &'r mut Reading<'a, 'b>,
    field: Option<&'f str>,
    found_field: &'r mut bool,
}

impl<'de> DeserializeSeed<'de> for Document<'_, '_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document<'_, '_, '_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a list of objects or an object")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        match self.field {
            None => self.reading.take_list(list),
            Some(field) => {
                let reason = format!("the document is a list, so it has no field {field:?}");
                Err(self.reading.end(End::Wrong(reason)))
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        self.reading.budget.reset();
        let Some(field) = self.field else {
            let row = Row::deserialize(MapAccessDeserializer::new(object))?;
            return self.reading.take(row);
        };
        while let Some(key) = object.next_key::<String>()? {
            if key == field {
                *self.found_field = true;
                object.next_value_seed(List(self.reading))?;
            } else {
                // What is skipped takes no memory, so it may be of any length.
                self.reading.budget.lift();
                object.next_value::<IgnoredAny>()?;
            }
            self.reading.budget.reset();
        }
        Ok(())
    }
}

/// A list of rows.
struct List<'r, 'a, 'b>(&'r mut Reading<'a, 'b>);

impl<'de> DeserializeSeed<'de> for List<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        self.0.take_list(list)
    }
}
