//! From rows to tasks: which rows are kept, and what of a row is which field of the task.

use std::ops::ControlFlow;

use serde_json::Value;

use super::rows::{Needed, Row};
use super::{Task, TaskError};
use crate::config::schema::TaskReader;
use crate::roll::template::Template;

/// The fields of a task that a row may have; anything else is reached through `metadata`.
const FIELDS: [&str; 5] = ["task_id", "main_query", "init_messages", "env_type", "metadata"];

/// Maximum number of tasks of a set, since all of them are kept.
const MOST_TASKS: usize = 10_000_000;

/// The column that is asked where there is no `main_query`.
const QUESTION: &str = "question";

/// What a job says about the choice of rows, for all readers.
#[derive(Clone, Debug)]
pub struct Selection {
    limit: Option<usize>,
    filter: Option<Filter>,
    columns: Vec<(String, Mapping)>,
}

/// Keeps the rows that an expression is true of.
#[derive(Clone, Debug)]
struct Filter {
    source: String,
    template: Template,
}

/// Makes a field of a task from a row.
#[derive(Clone, Debug)]
enum Mapping {
    /// Text with values in it.
    Text(Template),
    /// A single expression, whose value keeps its type: a template of its JSON.
    Value(Template),
}

impl Selection {
    /// From `limit`, `filter` and `columns`.
    ///
    /// # Errors
    /// Fails if a template does not parse.
    pub fn new(reader: &TaskReader) -> Result<Self, TaskError> {
        let filter = reader.filter.trim();
        let columns = reader.columns.iter();
        Ok(Self {
            limit: reader.limit,
            filter: match filter {
                "" => None,
                filter => Some(Filter::new(filter)?),
            },
            columns: columns
                .map(|(name, source)| Ok((name.clone(), Mapping::new(name, source)?)))
                .collect::<Result<_, TaskError>>()?,
        })
    }

    /// The columns that tasks are made of; `None` where the whole row is kept.
    pub fn needed_columns(&self) -> Option<Needed> {
        let keeps_row = self.columns.iter().all(|(name, _)| FIELDS.contains(&name.as_str()));
        let templates = self.columns.iter().map(|(_, mapping)| mapping.template());
        let templates = templates.chain(self.filter.iter().map(|filter| &filter.template));
        (!keeps_row).then(|| Needed {
            named: templates.flat_map(Template::names).collect(),
            optional: FIELDS.into_iter().chain([QUESTION]).map(str::to_owned).collect(),
        })
    }

    /// Whether every row is kept as it is.
    pub fn is_everything(&self) -> bool {
        self.limit.is_none() && self.filter.is_none() && self.columns.is_empty()
    }

    /// Begins a set of tasks.
    pub fn begin(&self) -> Collector<'_> {
        Collector {
            selection: self,
            index: 0,
            rows: 0,
            tasks: vec![],
        }
    }

    /// The task of a row, which is the `index`th of its set.
    fn task(&self, index: usize, row: Row) -> Result<Task, String> {
        let row = Value::Object(row);
        let mut mapped = Row::new();
        for (name, mapping) in &self.columns {
            mapped.insert(name.clone(), mapping.value(&row)?);
        }
        let field = |name: &str| {
            let value = mapped.get(name).or_else(|| row.get(name));
            value.filter(|value| !value.is_null())
        };
        let init_messages = match field("init_messages") {
            None => vec![],
            Some(Value::String(json)) => serde_json::from_str(json).map_err(|error| wrong("init_messages", error))?,
            Some(messages) => {
                serde_json::from_value(messages.clone()).map_err(|error| wrong("init_messages", error))?
            }
        };
        let question = || row.get(QUESTION).filter(|_| init_messages.is_empty());
        let text = |name: &str, value: Option<&Value>| match value {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(other) => Err(format!("{name} is {}, but it must be text", shown(other))),
        };
        let main_query = match field("main_query") {
            None => text(QUESTION, question())?,
            given => text("main_query", given)?,
        };
        let env_type = text("env_type", field("env_type"))?;
        let task_id = match field("task_id") {
            None => format!("task_{index}"),
            Some(Value::String(id)) if !id.is_empty() => id.clone(),
            Some(Value::Number(id)) => id.to_string(),
            Some(other) => {
                return Err(format!(
                    "task_id is {}, but it must be text that is not empty",
                    shown(other)
                ));
            }
        };
        let own_metadata = field("metadata").cloned();
        mapped.retain(|name, _| !FIELDS.contains(&name.as_str()));
        let metadata = match (mapped.is_empty(), own_metadata) {
            (true, None) => row,
            (true, Some(metadata)) => metadata,
            (false, Some(Value::Object(mut metadata))) => {
                metadata.extend(mapped);
                Value::Object(metadata)
            }
            (false, _) => Value::Object(mapped),
        };
        Ok(Task {
            task_id,
            main_query,
            init_messages,
            env_type,
            metadata,
        })
    }
}

impl Filter {
    fn new(source: &str) -> Result<Self, TaskError> {
        let expression = single_expression(source).unwrap_or(source);
        let template = format!("{{% if {expression} %}}keep{{% endif %}}");
        Ok(Self {
            source: source.to_owned(),
            template: Template::wrapping("ajet.task_reader.filter", source, &template)?,
        })
    }
}

impl Mapping {
    fn new(name: &str, source: &str) -> Result<Self, TaskError> {
        let key = format!("ajet.task_reader.columns.{name}");
        let is_text = ["main_query", "task_id", "env_type"].contains(&name);
        Ok(match single_expression(source) {
            Some(expression) if !is_text => {
                let json = format!("{{{{ ({expression}) | tojson }}}}");
                Self::Value(Template::wrapping(&key, source, &json)?)
            }
            _ => Self::Text(Template::new(&key, source)?),
        })
    }

    fn template(&self) -> &Template {
        let (Self::Text(template) | Self::Value(template)) = self;
        template
    }

    fn value(&self, row: &Value) -> Result<Value, String> {
        let rendered = self.template().render(row).map_err(|error| error.to_string())?;
        match self {
            Self::Text(_) => Ok(Value::String(rendered)),
            Self::Value(_) => serde_json::from_str(&rendered).map_err(|error| error.to_string()),
        }
    }
}

/// The expression of a template that is nothing but one: `{{ answer }}`.
fn single_expression(source: &str) -> Option<&str> {
    let expression = source.trim().strip_prefix("{{")?.strip_suffix("}}")?;
    let is_single = !["{{", "}}", "{%", "{#"].iter().any(|mark| expression.contains(mark));
    is_single.then(|| expression.trim_matches('-').trim())
}

fn wrong(name: &str, error: impl std::fmt::Display) -> String {
    format!("{name}: {error}")
}

/// A value as an error shows it.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Gathers the tasks of a set.
#[derive(Debug)]
pub struct Collector<'a> {
    selection: &'a Selection,
    /// Number of the next row.
    index: usize,
    /// Rows that were looked at.
    rows: usize,
    tasks: Vec<Task>,
}

impl Collector<'_> {
    /// Passes over a row, so that those after it keep their numbers.
    pub fn skip(&mut self) {
        self.index += 1;
    }

    /// Takes a row; breaks when there are enough tasks.
    ///
    /// # Errors
    /// Fails with what is wrong with the row.
    pub fn take(&mut self, row: Row) -> Result<ControlFlow<()>, String> {
        let index = self.index;
        self.index += 1;
        self.rows += 1;
        if let Some(filter) = &self.selection.filter {
            let kept = filter.template.render(&row).map_err(|error| error.to_string())?;
            if kept.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
        }
        if self.tasks.len() >= MOST_TASKS {
            return Err(format!(
                "there are more than {MOST_TASKS} tasks; set ajet.task_reader.limit"
            ));
        }
        self.tasks.push(self.selection.task(index, row)?);
        match self.selection.limit.is_some_and(|limit| self.tasks.len() >= limit) {
            true => Ok(ControlFlow::Break(())),
            false => Ok(ControlFlow::Continue(())),
        }
    }

    /// The tasks; `what` names where they came from.
    ///
    /// # Errors
    /// Fails if there are none.
    pub fn finish(self, what: &str) -> Result<Vec<Task>, TaskError> {
        match &self.selection.filter {
            _ if !self.tasks.is_empty() => Ok(self.tasks),
            Some(filter) if self.rows > 0 => Err(TaskError::FilteredOut {
                what: what.to_owned(),
                rows: self.rows,
                filter: filter.source.clone(),
            }),
            _ => Err(TaskError::Empty { what: what.to_owned() }),
        }
    }
}
