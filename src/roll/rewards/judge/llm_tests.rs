//! A judge of one answer against a judge that fails in every way.

use std::time::{Duration, Instant};

use serde_json::json;

use super::client::{Judge, JudgeModel};
use super::error::JudgeError;
use super::fake::{FakeJudge, Reply};
use super::llm::{LlmJudge, LlmPrompt, PROMPT};
use super::score::{ScoreFormat, ScoreRange};
use crate::roll::rewards::answer::{Answer, Score};
use crate::roll::rewards::error::RewardError;
use crate::roll::tasks::Task;
use crate::roll::template::Template;

fn prompt(source: &str) -> LlmPrompt {
    LlmPrompt {
        system: None,
        prompt: Template::new("roll.reward.prompt", source).unwrap(),
        format: ScoreFormat::new(None, ScoreRange { min: 0.0, max: 10.0 }).unwrap(),
        success_at: Some(0.7),
    }
}

fn task() -> Task {
    Task {
        task_id: "t".into(),
        main_query: "2 + 2?".into(),
        ..Task::default()
    }
}

fn answer(output: &str) -> Answer {
    Answer {
        output: output.into(),
        messages: Some(vec![json!({"role": "user", "content": "2 + 2?"})]),
        ..Answer::default()
    }
}

async fn scored_by(model: JudgeModel) -> Result<Score, RewardError> {
    let judge = LlmJudge::new(Judge::new(model).unwrap(), prompt(PROMPT));
    judge.score(&task(), &answer("4")).await
}

fn text(text: &str) -> Reply {
    Reply::Text(text.into())
}

#[tokio::test]
async fn a_score_becomes_a_reward_with_its_cost() {
    let fake = FakeJudge::start([text("Right.\nScore: 8")]).await;
    let score = scored_by(fake.model()).await.unwrap();
    assert_eq!((score.reward, score.is_success), (0.8, Some(true)));
    assert_eq!(score.log_metrics["judge/calls"], 1.0);
    assert_eq!(score.log_metrics["judge/prompt_tokens"], 100.0);
    assert_eq!(score.log_metrics["judge/completion_tokens"], 10.0);
    let (_, request) = &fake.requests()[0];
    assert_eq!(
        (&request["model"], &request["temperature"]),
        (&json!("judge"), &json!(0))
    );
    let prompt = fake.last_prompt();
    for part in ["2 + 2?", "<answer>\n4\n</answer>", "from 0 (worst) to 10 (best)"] {
        assert!(prompt.contains(part), "{prompt}");
    }
}

#[tokio::test]
async fn passing_failures_are_tried_again() {
    for (failure, slow) in [
        (Reply::Status(429, "slow down", Some(1)), true),
        (Reply::Status(500, "oops", None), false),
        (Reply::Status(503, "{\"error\": {\"message\": \"busy\"}}", None), false),
        (Reply::Status(200, "not JSON", None), false),
        (Reply::Status(200, "{\"choices\": []}", None), false),
        (text("I would rather not say."), false),
        (text("Score: 99"), false),
        (text("Score: NaN"), false),
        // Cut in the middle of 10.
        (Reply::Cut("Score: 1".into()), false),
    ] {
        let fake = FakeJudge::start([failure.clone(), text("Score: 10")]).await;
        let begun = Instant::now();
        let score = scored_by(fake.model()).await.unwrap();
        assert_eq!(
            (score.reward, &score.log_metrics["judge/calls"]),
            (1.0, &json!(2.0)),
            "{failure:?}"
        );
        assert!(!slow || begun.elapsed() >= Duration::from_secs(1), "{failure:?}");
    }
}

#[tokio::test]
async fn what_never_gives_a_score_is_an_error_with_the_reason() {
    for (failure, told, calls) in [
        (text("no"), "there is no score in its answer \"no\"", 3),
        (text("Score: 11"), "the score 11 is not from 0 to 10", 3),
        (text("Score: nan"), "there is no score", 3),
        (Reply::Cut("Score: 5".into()), "cut by a token limit", 3),
        (
            Reply::Status(500, "oops", None),
            "it answered 500 Internal Server Error: oops",
            3,
        ),
        (Reply::Status(200, "[]", None), "not a chat completion", 3),
        (
            Reply::Silence(Duration::from_secs(60)),
            "did not answer within 0.3 s",
            3,
        ),
        (
            Reply::Status(401, "{\"error\": {\"message\": \"wrong key\"}}", None),
            "(401): wrong key",
            1,
        ),
        (Reply::Status(400, "too long", None), "(400): too long", 1),
    ] {
        let fake = FakeJudge::start([failure.clone()]).await;
        let timeout = match failure {
            Reply::Silence(_) => Duration::from_millis(300),
            _ => Duration::from_secs(30),
        };
        let model = JudgeModel {
            timeout,
            ..fake.model()
        };
        let error = scored_by(model).await.unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
        assert_eq!(fake.requests().len(), calls, "{failure:?}");
        assert_eq!(
            error.is_permanent(),
            matches!(failure, Reply::Status(401, ..)),
            "{failure:?}"
        );
        assert_eq!(error.reason(), "judge_error");
    }
    let nobody = JudgeModel {
        base_url: "http://127.0.0.1:1/v1".into(),
        retries: 0,
        ..FakeJudge::start([]).await.model()
    };
    let error = scored_by(nobody).await.unwrap_err().to_string();
    assert!(
        error.contains("(attempts: 1)") && error.contains("http://127.0.0.1:1"),
        "{error}"
    );
}

#[tokio::test]
async fn the_same_question_is_asked_once_even_at_the_same_time_and_failures_are_not_remembered() {
    let fake = FakeJudge::start([text("Score: 2"), text("Score: 9")]).await;
    let judge = LlmJudge::new(fake.judge(), prompt(PROMPT));
    let (task, same) = (task(), answer("4"));
    let scores = futures_util::future::join_all((0..8).map(|_| judge.score(&task, &same))).await;
    let rewards: Vec<f64> = scores.iter().map(|score| score.as_ref().unwrap().reward).collect();
    assert_eq!(rewards, [0.2; 8]);
    let calls = scores
        .iter()
        .map(|score| score.as_ref().unwrap().log_metrics["judge/calls"].as_f64().unwrap());
    assert_eq!((calls.sum::<f64>(), fake.requests().len()), (1.0, 1));
    assert_eq!(judge.score(&task, &answer("5")).await.unwrap().reward, 0.9);
    let other = Task {
        task_id: "u".into(),
        ..task
    };
    judge.score(&other, &same).await.unwrap();
    assert_eq!(fake.requests().len(), 3, "another task is another question");

    let fake = FakeJudge::start([Reply::Status(400, "no", None), text("Score: 9")]).await;
    let judge = LlmJudge::new(fake.judge(), prompt(PROMPT));
    judge.score(&other, &same).await.unwrap_err();
    assert_eq!(judge.score(&other, &same).await.unwrap().reward, 0.9);
}

#[tokio::test]
async fn requests_at_once_are_limited() {
    let fake = FakeJudge::start([text("Score: 5")]).await;
    let judge = LlmJudge::new(fake.judge(), prompt(PROMPT));
    let (task, answers): (_, Vec<_>) = (task(), (0..20).map(|n| answer(&n.to_string())).collect());
    let scores = futures_util::future::join_all(answers.iter().map(|answer| judge.score(&task, answer))).await;
    assert!(scores.iter().all(Result::is_ok));
    assert_eq!((fake.requests().len(), fake.most_running()), (20, 4));
}

#[tokio::test]
async fn the_prompt_may_show_the_conversation_and_fields_of_the_request_are_free() {
    let fake = FakeJudge::start([text("Score: 5")]).await;
    let mut model = fake.model();
    model.request = json!({"max_tokens": null, "max_completion_tokens": 9, "model": "another"})
        .as_object()
        .unwrap()
        .clone();
    let asked = LlmPrompt {
        system: Some(Template::new("k", "Be strict.").unwrap()),
        ..prompt("{{ messages | tojson }}")
    };
    let judge = LlmJudge::new(Judge::new(model).unwrap(), asked);
    assert!(judge.mentions("messages"));
    judge.score(&task(), &answer("4")).await.unwrap();
    let (_, request) = &fake.requests()[0];
    assert_eq!(
        request,
        &json!({"temperature": 0, "max_completion_tokens": 9, "model": "judge", "messages": [
            {"role": "system", "content": "Be strict."},
            {"role": "user", "content": r#"[{"role": "user", "content": "2 + 2?"}]"#}]})
    );
    let unknown = Answer {
        messages: None,
        ..answer("4")
    };
    let error = judge.score(&task(), &unknown).await.unwrap_err();
    assert!(
        error.is_permanent() && error.to_string().contains("undefined"),
        "{error}"
    );
}

#[tokio::test]
async fn the_key_is_the_environments() {
    let fake = FakeJudge::start([text("Score: 5")]).await;
    // A variable that every process of a test run has.
    let with_key = JudgeModel {
        api_key_env: Some("PATH".into()),
        ..fake.model()
    };
    scored_by(with_key).await.unwrap();
    let sent = format!("Bearer {}", std::env::var("PATH").unwrap().trim());
    assert_eq!(fake.keys(), [Some(sent)]);
    let without = JudgeModel {
        api_key_env: Some("NO_SUCH_KEY_IN_THE_ENVIRONMENT".into()),
        ..fake.model()
    };
    let error = Judge::new(without).unwrap_err();
    assert!(
        matches!(error, JudgeError::NoKey { .. }) && error.is_permanent(),
        "{error}"
    );
}
