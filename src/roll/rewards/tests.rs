//! Rewards as a job has them.

use serde_json::json;

use super::*;
use crate::roll::job::test_section;
use crate::roll::tasks::Task;

fn reward(yaml: &str) -> Reward {
    test_section("roll.reward", yaml)
}

async fn score(yaml: &str, output: &str) -> Result<Score, RewardError> {
    let task = Task {
        metadata: json!({ "answer": "42" }),
        ..Task::default()
    };
    let answer = Answer {
        output: output.into(),
        ..Answer::default()
    };
    reward(yaml).scorer("roll.reward").unwrap().score(&task, &answer).await
}

#[tokio::test]
async fn each_kind_scores() {
    for (yaml, output, expected, success) in [
        (
            "{type: exact_match, answer: '{{ metadata.answer }}'}",
            " 42\n",
            1.0,
            Some(true),
        ),
        (
            "{type: exact_match, answer: '{{ metadata.answer }}'}",
            "it is 42",
            0.0,
            Some(false),
        ),
        (
            "{type: exact_match, answer: Yes, ignore_case: true}",
            "yes",
            1.0,
            Some(true),
        ),
        (
            "{type: contains, answer: '{{ metadata.answer }}'}",
            "it is 42",
            1.0,
            Some(true),
        ),
        (
            "{type: number_match, answer: '{{ metadata.answer }}'}",
            "it is 42.0 apples.",
            1.0,
            Some(true),
        ),
        (
            "{type: number_match, answer: '{{ metadata.answer }}'}",
            "no idea",
            0.0,
            Some(false),
        ),
        (
            "{type: similarity, answer: '{{ metadata.answer }}'}",
            "41",
            0.5,
            Some(false),
        ),
        (
            "{type: command, argv: [sh, -c, 'cat > /dev/null; echo note; echo 0.25']}",
            "",
            0.25,
            None,
        ),
        (
            "{type: command, argv: [sh, -c, 'echo \"{\\\"reward\\\": 1, \\\"is_success\\\": true}\"']}",
            "",
            1.0,
            Some(true),
        ),
    ] {
        let score = score(yaml, output).await.unwrap();
        assert_eq!(
            (score.reward, score.is_success),
            (expected, success),
            "{yaml} of {output:?}"
        );
    }
}

#[tokio::test]
async fn no_reward_is_an_error_never_a_zero() {
    for (yaml, told) in [
        ("type: from_agent", "the agent returned no reward"),
        ("{type: number_match, answer: many}", "\"many\" contains no number"),
        (
            "{type: number_match, answer: '\\sqrt{2}'}",
            "contains no number to compare with",
        ),
        ("{type: contains, answer: ' '}", "the task's answer is empty"),
        ("{type: exact_match, answer: '{{ metadata.none }}'}", "metadata.none"),
        ("{type: command, argv: [echo, good]}", "printed \"good\""),
        ("{type: command, argv: ['false']}", "exit status: 1"),
    ] {
        let message = score(yaml, "1").await.unwrap_err().to_string();
        assert!(message.contains(told), "{message}");
    }
}

#[tokio::test]
async fn kinds_that_compute_are_read_and_score() {
    const WEIGHTED: &str = "{type: weighted, success: right, parts: {
        right: {reward: {type: exact_match, answer: '{{ metadata.answer }}'}},
        brief: {weight: 0.5, reward: {type: expression, expression: 'output | length < 5'}},
        both: {weight: '-1', reward: {type: weighted, parts: {
            one: {weight: 2, reward: {type: regex, pattern: '^\\d+$'}},
            two: {reward: {type: similarity, answer: '42'}}}}}}}";
    for (yaml, output, expected, success) in [
        (
            r"{type: regex, pattern: 'is (\d+)', answer: '{{ metadata.answer }}'}",
            "it is 42",
            1.0,
            Some(true),
        ),
        (
            r"{type: regex, pattern: 'IS \d+', ignore_case: yes}",
            "it is 7",
            1.0,
            Some(true),
        ),
        (
            "{type: regex, pattern: '^b.c$', multi_line: true, dot_all: true}",
            "a\nb\nc",
            1.0,
            Some(true),
        ),
        (
            "{type: json_path, path: $.a, answer: '{{ metadata.answer }}'}",
            "{\"a\": 42.0}",
            1.0,
            Some(true),
        ),
        (
            "{type: json_path, path: $.a, answer: 40, tolerance: 0.1}",
            "{\"a\": 42}",
            1.0,
            Some(true),
        ),
        ("{type: expression, expression: 'output | int / 2'}", "42", 21.0, None),
        (WEIGHTED, "42", 1.0 + 0.5 - 3.0, Some(true)),
        (WEIGHTED, "4", 0.5 - 2.5, Some(false)),
    ] {
        let score = score(yaml, output).await.unwrap();
        assert_eq!(
            (score.reward, score.is_success),
            (expected, success),
            "{yaml} of {output:?}"
        );
    }
    let nested = score(WEIGHTED, "42").await.unwrap();
    let names: Vec<_> = nested.log_metrics.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "reward/right",
            "reward/brief",
            "reward/both",
            "reward/both/one",
            "reward/both/two"
        ]
    );
}

#[tokio::test]
async fn a_part_that_cannot_be_scored_fails_the_whole() {
    let yaml =
        "{type: weighted, parts: {right: {reward: {type: exact_match, answer: x}}, own: {reward: {type: from_agent}}}}";
    let error = score(yaml, "x").await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("part `own` of the reward: the agent returned no reward"),
        "{error}"
    );
    let error = score("{type: expression, expression: '1e308 * 10'}", "")
        .await
        .unwrap_err();
    assert!(error.is_permanent(), "{error}");
    let sum = "{type: weighted, parts: {a: {weight: 1e6, reward: {type: expression, expression: '1e305'}}}}";
    let error = score(sum, "").await.unwrap_err();
    assert!(matches!(error, RewardError::NotFinite(_)), "{error}");
}

#[test]
fn judges_are_read_with_their_defaults() {
    for (yaml, compares, reads) in [
        (
            "{type: llm_judge, judge: {model: m, base_url: 'http://127.0.0.1:1/v1'}}",
            false,
            false,
        ),
        (
            "{type: llm_judge, judge: {model: m, base_url: 'http://127.0.0.1:1/v1', request: {max_tokens: 5, top_p: 1.0}, retries: 0}, \
              prompt: '{{ messages | tojson }}', score_pattern: '(\\d)', score_max: 5, success_at: 0.5}",
            false,
            true,
        ),
        (
            "{type: group_judge, judge: {model: m, base_url: 'http://127.0.0.1:1/v1'}, scale: score}",
            true,
            true,
        ),
        (
            "{type: weighted, parts: {judged: {reward: {type: group_judge, judge: {model: m, base_url: 'http://127.0.0.1:1/v1'}}}}}",
            true,
            true,
        ),
        ("{type: command, argv: [sh]}", false, true),
        ("{type: expression, expression: 'messages | length'}", false, true),
        ("{type: expression, expression: 'output | length'}", false, false),
    ] {
        let scorer = reward(yaml).scorer("roll.reward").unwrap();
        assert_eq!(
            (scorer.compares(), scorer.reads_messages()),
            (compares, reads),
            "{yaml}"
        );
    }
}

#[test]
fn what_the_schema_cannot_say_is_a_problem_at_its_key() {
    for (yaml, told) in [
        ("{type: regex, pattern: '('}", "roll.reward.pattern: "),
        ("{type: json_path, path: 'a.b', answer: x}", "roll.reward.path: "),
        ("{type: expression, expression: '1 +'}", "roll.reward.expression: "),
        ("{type: weighted, parts: {}}", "roll.reward.parts: has no part"),
        (
            "{type: weighted, success: rigth, parts: {right: {reward: {type: from_agent}}}}",
            "roll.reward.success: \"rigth\" is none of the parts right",
        ),
        (
            "{type: weighted, parts: {a: {reward: {type: regex, pattern: '['}}}}",
            "roll.reward.parts.a.reward.pattern: ",
        ),
        (
            "{type: llm_judge, judge: {model: m}, score_pattern: 'x'}",
            "roll.reward.score_pattern: `x` has no group",
        ),
        (
            "{type: llm_judge, judge: {model: m}, score_min: 5, score_max: 5}",
            "roll.reward.score_pattern: the score range from 5 to 5 is empty",
        ),
    ] {
        let problems: Vec<String> = reward(yaml)
            .problems("roll.reward")
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(problems.len() == 1 && problems[0].starts_with(told), "{problems:?}");
    }
    // Where a job is only checked, its judge's key need not be there.
    let keyless = reward("{type: llm_judge, judge: {model: m, api_key_env: NO_SUCH_KEY_IN_THE_ENVIRONMENT}}");
    assert!(keyless.problems("roll.reward").is_empty());
    let error = keyless.scorer("roll.reward").unwrap_err().to_string();
    assert!(error.contains("NO_SUCH_KEY_IN_THE_ENVIRONMENT is not set"), "{error}");
}
