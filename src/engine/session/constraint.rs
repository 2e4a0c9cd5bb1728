//! The grammar of an answer: what its request's format and tools allow.

use std::sync::Arc;

use serde_json::{Value, json};

use super::backend::ChatBackend;
use super::error::ChatError;
use super::request::{ForcedCall, Request};
use crate::grammar::{
    AnswerGrammar, Calls, Content, Function, GrammarError, Grammars, Matcher, Opened, Reasoning, check_schema,
};
use crate::timeline::Prompt;

/// Grammar of an answer.
#[derive(Clone)]
pub struct AnswerConstraint {
    /// The grammar as a text, for the record.
    pub grammar: Arc<str>,
    /// The grammar at the beginning of the answer.
    pub matcher: Matcher,
}

/// A function of a request.
struct Tool {
    /// Index among the request's tools.
    index: usize,
    function: Function,
    /// Whether calls must have valid arguments.
    strict: bool,
}

impl Request {
    /// Returns whether a grammar constrains the answer.
    pub fn is_constrained(&self) -> bool {
        let strict = |tool: &Value| tool["function"]["strict"] == true;
        self.schema.is_some() || self.forced_call.is_some() || self.conversation.tools.iter().any(strict)
    }

    /// Returns whether the model may think before the answer, even if its template cannot say so.
    fn thinks(&self) -> bool {
        self.conversation.template_kwargs.get("enable_thinking") != Some(&Value::Bool(false))
    }

    /// Returns the functions that the answer may call.
    fn callable(&self) -> Vec<Tool> {
        let tools = self.conversation.tools.iter().enumerate().filter_map(|(index, tool)| {
            let function = &tool["function"];
            let arguments = match &function["parameters"] {
                Value::Null => json!({"type": "object"}),
                schema => schema.clone(),
            };
            Some(Tool {
                index,
                function: Function {
                    name: function["name"].as_str()?.to_owned(),
                    arguments,
                },
                strict: function["strict"] == true,
            })
        });
        let named = |tool: &Tool| match &self.forced_call {
            Some(ForcedCall::Named(name)) => tool.function.name == *name,
            Some(ForcedCall::Any) | None => true,
        };
        tools.filter(named).collect()
    }
}

impl ChatBackend {
    /// Returns the grammar of the answer to a prompt; `None` if the answer may be anything. Computes for milliseconds if
    /// the grammar is new.
    ///
    /// # Errors
    /// Names the schema, and the place in it, that cannot be enforced.
    pub(super) fn constraint(&self, request: &Request, prompt: &Prompt) -> Result<Option<AnswerConstraint>, ChatError> {
        if !request.is_constrained() {
            return Ok(None);
        }
        let grammars = self.model.grammars();
        let mut tools = request.callable();
        let constraint = |tools: &[Tool]| {
            let grammar = self.answer_grammar(request, prompt, tools).text();
            let matcher = grammars.matcher(&grammar)?;
            Ok(AnswerConstraint {
                grammar: grammar.into(),
                matcher,
            })
        };
        if let Ok(found) = constraint(&tools) {
            return Ok(Some(found));
        }
        check_request(grammars, request, &tools)?;
        for tool in tools.iter_mut().filter(|tool| !tool.strict) {
            if check_schema(grammars, &tool.function.arguments).is_err() {
                tool.function.arguments = json!({"type": "object"});
            }
        }
        let refused = |error: GrammarError| ChatError::InvalidRequest {
            param: None,
            message: error.to_string(),
        };
        constraint(&tools).map(Some).map_err(refused)
    }

    fn answer_grammar(&self, request: &Request, prompt: &Prompt, tools: &[Tool]) -> AnswerGrammar {
        let begun = request.forced_call.is_some() || request.opening.is_some();
        let calls = self
            .tool_format
            .syntax()
            .filter(|_| !tools.is_empty())
            .map(|syntax| Calls {
                functions: tools.iter().map(|tool| tool.function.clone()).collect(),
                syntax,
                parallel: request.parallel_tool_calls && !matches!(request.forced_call, Some(ForcedCall::Named(_))),
                opened: request.forced_call.as_ref().map(|call| match call {
                    ForcedCall::Any => Opened::Name,
                    ForcedCall::Named(_) => Opened::Arguments,
                }),
            });
        AnswerGrammar {
            reasoning: match self.reasoning_format.of_answer(&prompt.rendered) {
                _ if begun => Reasoning::None,
                Reasoning::Allowed if !request.thinks() => Reasoning::None,
                reasoning => reasoning,
            },
            content: match (&request.schema, &request.forced_call) {
                (_, Some(_)) => Content::None,
                (Some(schema), None) => Content::Json(schema.clone()),
                (None, None) => Content::Text,
            },
            calls,
        }
    }
}

/// Checks the schemas that must be enforced.
fn check_request(grammars: &Grammars, request: &Request, tools: &[Tool]) -> Result<(), ChatError> {
    if let Some(schema) = &request.schema {
        let refused = |error| ChatError::invalid("response_format", format!("JSON schema of the answer: {error}"));
        check_schema(grammars, schema).map_err(refused)?;
    }
    for tool in tools.iter().filter(|tool| tool.strict) {
        let refused = |error| {
            let message = format!("parameters of the strict function `{}`: {error}", tool.function.name);
            ChatError::invalid(format!("tools[{}]", tool.index), message)
        };
        check_schema(grammars, &tool.function.arguments).map_err(refused)?;
    }
    Ok(())
}
