//! `roll.reward` as a job file has it, and the scorer that is made of it.

use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::command::Command;
use super::compare::Comparison;
use super::error::RewardError;
use super::json_path::JsonPathMatch;
use super::judge::{
    GROUP_PROMPT, GroupJudge, GroupPrompt, Judge, JudgeModel, LLM_PROMPT, LlmJudge, LlmPrompt, RUBRIC, Scale,
    ScoreFormat, ScoreRange,
};
use super::regex_match::{Flags, RegexMatch};
use super::scorer::{Kind, Part, Scorer};
use super::weighted::Weight;
use crate::config::Problem;
use crate::roll::expression::Expression;
use crate::roll::template::Template;

/// `roll.reward`: what an answer is worth.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "a job has a few")]
pub enum Reward {
    /// The reward that the agent itself gives.
    FromAgent,
    /// 1 for the same text, white space at the ends aside, else 0.
    ExactMatch(TextMatch),
    /// 1 where the answer occurs in the output, else 0.
    Contains(TextMatch),
    /// 1 for the same number, else 0.
    NumberMatch(NumberMatch),
    /// From 0 to 1 by edit distance.
    Similarity(Similarity),
    /// 1 where a pattern matches, or captures the answer, else 0.
    Regex(RegexReward),
    /// 1 where a value in the output's JSON is the answer, else 0.
    JsonPath(JsonPathReward),
    /// The value of an expression.
    Expression(ExpressionReward),
    /// The reward that a program gives.
    Command(CommandReward),
    /// The score that another model gives.
    LlmJudge(LlmJudgeReward),
    /// How another model ranks the answers to a task.
    GroupJudge(GroupJudgeReward),
    /// The weighted sum of several rewards.
    Weighted(WeightedReward),
}

/// Texts that are compared.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextMatch {
    /// The right answer, a template such as `{{ metadata.answer }}`.
    answer: Template,
    /// Take upper and lower case as the same.
    #[serde(default)]
    ignore_case: bool,
}

/// Numbers that are compared.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NumberMatch {
    /// The right answer, a template such as `{{ metadata.answer }}`.
    answer: Template,
    /// Largest difference, relative to the right answer. Default: half a unit of the last decimal of the right answer,
    /// and none for whole numbers.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1e6))]
    tolerance: Option<f64>,
}

/// Texts whose edit distance is measured.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Similarity {
    /// The right answer, a template such as `{{ metadata.answer }}`.
    answer: Template,
}

/// A pattern over the output.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegexReward {
    /// Regular expression in the syntax of Rust's `regex` crate. It may match anywhere, unless it has `^` and `$`.
    pattern: String,
    /// The right answer, a template. It is compared with what the last match captured: the group named `answer`, or the
    /// first group, or the whole match. Default: it is enough that the pattern matches.
    #[serde(default)]
    answer: Option<Template>,
    /// Take upper and lower case as the same, in the pattern and in the comparison.
    #[serde(default)]
    ignore_case: bool,
    /// Let `^` and `$` match at the ends of lines.
    #[serde(default)]
    multi_line: bool,
    /// Let `.` match a newline.
    #[serde(default)]
    dot_all: bool,
}

/// A value in JSON that the agent wrote.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JsonPathReward {
    /// Path of the value by RFC 9535, such as `$.answer`. Where it selects several, all of them have to be the answer.
    path: String,
    /// The right answer, a template. Numbers are compared by value, lists and objects with the answer's JSON.
    answer: Template,
    /// Take upper and lower case of texts as the same.
    #[serde(default)]
    ignore_case: bool,
    /// Largest difference of a number, relative to the right answer. Default: as of `number_match`.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1e6))]
    tolerance: Option<f64>,
}

/// A value that is computed.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpressionReward {
    /// Expression of a template over the task's fields, `task`, `output`, `messages`, `reward` and `is_success`, such
    /// as `output | length < 200`. A number is the reward; true is 1, false 0.
    expression: String,
}

/// A program that scores.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandReward {
    /// The program and its arguments, templates over the task.
    #[schemars(length(min = 1))]
    argv: Vec<Template>,
    /// Working directory. Default: that of `roll`.
    #[serde(default)]
    cwd: Option<PathBuf>,
    /// Maximum seconds, after which its processes are killed.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 0.001, max = 31_536_000.0))]
    timeout: f64,
}

fn default_timeout() -> f64 {
    60.0
}

/// A model that judges.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JudgeConfig {
    /// Name of the model.
    model: String,
    /// Base URL of an OpenAI-compatible API.
    #[serde(default = "default_base_url")]
    base_url: String,
    /// Environment variable that holds the API key. Default: `OPENAI_API_KEY` for OpenAI's own API, no key for any
    /// other.
    #[serde(default)]
    api_key_env: Option<String>,
    /// Further fields of the request, such as `reasoning_effort`; null leaves a field out. `temperature` is 0 and
    /// `max_tokens` 2048 unless they are given here.
    #[serde(default)]
    request: Map<String, Value>,
    /// Number of times that the judge is asked again where a request fails or its answer has no score. It waits as long
    /// as `Retry-After` says.
    #[serde(default = "default_retries")]
    #[schemars(range(min = 0, max = 100))]
    retries: u32,
    /// Maximum seconds of one request.
    #[serde(default = "default_timeout")]
    #[schemars(range(min = 0.001, max = 86_400.0))]
    timeout: f64,
    /// Maximum number of requests at once.
    #[serde(default = "default_concurrency")]
    #[schemars(range(min = 1, max = 10_000))]
    max_concurrency: usize,
}

const OPENAI_URL: &str = "https://api.openai.com/v1";

fn default_base_url() -> String {
    OPENAI_URL.into()
}

fn default_retries() -> u32 {
    3
}

fn default_concurrency() -> usize {
    8
}

/// A model that judges one answer.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LlmJudgeReward {
    /// The model that judges.
    judge: JudgeConfig,
    /// System message, a template. Default: none.
    #[serde(default)]
    system: Option<Template>,
    /// User message, a template over the task's fields, `task`, `output`, `messages`, `reward`, `is_success`,
    /// `score_min` and `score_max`. Default: a question about task and output that ends with `Score: <number>`.
    #[serde(default)]
    prompt: Option<Template>,
    /// Regular expression that captures the score, in the group named `score` or the first one; the last match counts.
    /// Default: a line that is `Score: <number>` and nothing else.
    #[serde(default)]
    score_pattern: Option<String>,
    /// The worst score, a reward of 0.
    #[serde(default)]
    #[schemars(range(min = -1e9, max = 1e9))]
    score_min: f64,
    /// The best score, a reward of 1.
    #[serde(default = "default_score_max")]
    #[schemars(range(min = -1e9, max = 1e9))]
    score_max: f64,
    /// Reward from which on the goal counts as reached. Default: it is not known whether it is.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 1.0))]
    success_at: Option<f64>,
}

fn default_score_max() -> f64 {
    10.0
}

/// A model that judges the answers to a task against each other.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupJudgeReward {
    /// The model that judges.
    judge: JudgeConfig,
    /// What counts, a template over the task. Default: reaching the goal, then few and sure steps.
    #[serde(default)]
    rubric: Option<Template>,
    /// System message, a template over the task. Default: none.
    #[serde(default)]
    system: Option<Template>,
    /// User message, a template over the task's fields, `task`, `rubric`, `prefix` (the messages that all conversations
    /// begin with) and `answers` (each with `id`, `messages`, `output`). It has to ask for
    /// `{"scores": [{"id": …, "score": 0 to 1}]}`. Default: such a question.
    #[serde(default)]
    prompt: Option<Template>,
    /// How the judge's scores become rewards.
    #[serde(default)]
    scale: Scale,
    /// Seed of the order in which answers are shown.
    #[serde(default)]
    #[schemars(range(min = 0, max = i64::MAX))]
    seed: u64,
}

/// Rewards that are added up.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WeightedReward {
    /// The parts by name. Each is reported as `reward/NAME`, before it is multiplied by its weight.
    parts: IndexMap<String, PartConfig>,
    /// The part that says whether the goal was reached. Default: it is not known.
    #[serde(default)]
    success: Option<String>,
}

/// One part of a weighted sum.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PartConfig {
    /// What its reward is multiplied by.
    #[serde(default = "default_weight")]
    #[schemars(range(min = -1e6, max = 1e6))]
    weight: f64,
    /// The reward.
    reward: Box<Reward>,
}

fn default_weight() -> f64 {
    1.0
}

/// Why a reward cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SetupError {
    /// Its configuration is wrong.
    #[error("{0}")]
    Config(Problem),
    /// Something outside the job is missing, such as a judge's key.
    #[error(transparent)]
    Environment(#[from] RewardError),
}

impl Reward {
    /// Problems that the schema cannot express, at the dotted path of the reward.
    pub(in crate::roll) fn problems(&self, path: &str) -> Vec<Problem> {
        match self {
            Self::Weighted(weighted) => weighted.problems(path),
            other => match other.scorer(path) {
                Err(SetupError::Config(problem)) => vec![problem],
                // Where it is only checked, a job's environment may be another.
                Ok(_) | Err(SetupError::Environment(_)) => vec![],
            },
        }
    }

    /// The reward, ready to score. `path` is where it stands.
    ///
    /// # Errors
    /// Fails if a pattern, path or expression is invalid, or a judge's key is not in the environment.
    pub fn scorer(&self, path: &str) -> Result<Scorer, SetupError> {
        let problem = |key: &str, reason: String| SetupError::Config(Problem::new(format!("{path}.{key}"), reason));
        Ok(match self {
            Self::FromAgent => Kind::FromAgent,
            Self::ExactMatch(text) => compare(
                Comparison::Exact {
                    ignore_case: text.ignore_case,
                },
                &text.answer,
            ),
            Self::Contains(text) => compare(
                Comparison::Contains {
                    ignore_case: text.ignore_case,
                },
                &text.answer,
            ),
            Self::NumberMatch(number) => compare(
                Comparison::Number {
                    tolerance: number.tolerance,
                },
                &number.answer,
            ),
            Self::Similarity(text) => compare(Comparison::Similarity, &text.answer),
            Self::Regex(regex) => Kind::Regex(regex.matcher().map_err(|reason| problem("pattern", reason))?),
            Self::JsonPath(json) => Kind::JsonPath(json.matcher().map_err(|reason| problem("path", reason))?),
            Self::Expression(expression) => {
                let key = format!("{path}.expression");
                let parsed = Expression::new(&key, &expression.expression);
                Kind::Expression(parsed.map_err(|error| problem("expression", error.reason))?)
            }
            Self::Command(command) => Kind::Command(Command {
                argv: command.argv.clone(),
                cwd: command.cwd.clone(),
                timeout: Duration::from_secs_f64(command.timeout),
            }),
            Self::LlmJudge(reward) => {
                let prompt = reward.prompt().map_err(|reason| problem("score_pattern", reason))?;
                Kind::LlmJudge(LlmJudge::new(reward.judge.judge()?, prompt))
            }
            Self::GroupJudge(reward) => Kind::GroupJudge(GroupJudge::new(reward.judge.judge()?, reward.prompt())),
            Self::Weighted(weighted) => weighted.kind(path)?,
        }
        .into())
    }
}

fn compare(how: Comparison, answer: &Template) -> Kind {
    let answer = answer.clone();
    Kind::Compare { how, answer }
}

impl RegexReward {
    fn matcher(&self) -> Result<RegexMatch, String> {
        let flags = Flags {
            ignore_case: self.ignore_case,
            multi_line: self.multi_line,
            dot_all: self.dot_all,
        };
        RegexMatch::new(&self.pattern, flags, self.answer.clone())
    }
}

impl JsonPathReward {
    fn matcher(&self) -> Result<JsonPathMatch, String> {
        JsonPathMatch::new(&self.path, self.answer.clone(), self.ignore_case, self.tolerance)
    }
}

impl JudgeConfig {
    fn judge(&self) -> Result<Judge, RewardError> {
        // A key of OpenAI's is not sent to another server unless the job says so.
        let openai = (self.base_url == OPENAI_URL).then(|| "OPENAI_API_KEY".to_owned());
        Ok(Judge::new(JudgeModel {
            model: self.model.clone(),
            base_url: self.base_url.clone(),
            api_key_env: self.api_key_env.clone().or(openai),
            request: self.request.clone(),
            retries: self.retries,
            timeout: Duration::from_secs_f64(self.timeout),
            max_concurrency: self.max_concurrency,
        })?)
    }
}

impl LlmJudgeReward {
    fn prompt(&self) -> Result<LlmPrompt, String> {
        let range = ScoreRange {
            min: self.score_min,
            max: self.score_max,
        };
        Ok(LlmPrompt {
            system: self.system.clone(),
            prompt: self.prompt.clone().unwrap_or_else(|| built_in(LLM_PROMPT)),
            format: ScoreFormat::new(self.score_pattern.as_deref(), range)?,
            success_at: self.success_at,
        })
    }
}

impl GroupJudgeReward {
    fn prompt(&self) -> GroupPrompt {
        GroupPrompt {
            system: self.system.clone(),
            prompt: self.prompt.clone().unwrap_or_else(|| built_in(GROUP_PROMPT)),
            rubric: self.rubric.clone().unwrap_or_else(|| built_in(RUBRIC)),
            scale: self.scale,
            seed: self.seed,
        }
    }
}

/// A template of our own.
#[expect(clippy::expect_used, reason = "a test renders each of them")]
fn built_in(source: &str) -> Template {
    Template::new("roll.reward", source).expect("the built-in prompts are templates")
}

impl WeightedReward {
    fn problems(&self, path: &str) -> Vec<Problem> {
        let mut problems = vec![];
        if self.parts.is_empty() {
            problems.push(Problem::new(format!("{path}.parts"), "has no part; name at least one"));
        }
        if let Some(success) = self
            .success
            .as_ref()
            .filter(|success| !self.parts.contains_key(*success))
        {
            let known: Vec<&str> = self.parts.keys().map(String::as_str).collect();
            let message = format!("{success:?} is none of the parts {}", known.join(", "));
            problems.push(Problem::new(format!("{path}.success"), message));
        }
        for (name, part) in &self.parts {
            problems.extend(part.reward.problems(&part_path(path, name)));
        }
        problems
    }

    fn kind(&self, path: &str) -> Result<Kind, SetupError> {
        let parts = self.parts.iter().map(|(name, part)| {
            Ok(Part {
                weight: Weight {
                    name: name.clone(),
                    weight: part.weight,
                },
                scorer: part.reward.scorer(&part_path(path, name))?,
            })
        });
        Ok(Kind::Weighted {
            parts: parts.collect::<Result<_, SetupError>>()?,
            success: self.success.clone(),
        })
    }
}

fn part_path(path: &str, name: &str) -> String {
    format!("{path}.parts.{name}.reward")
}
