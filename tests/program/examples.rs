//! Each of `examples/` as its README says, for one update: with the answers of a script, so that the agent's way to its
//! reward is walked to the end, or with the built-in model where any answers differ enough to train on.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::main_job::process::Server;
use crate::python_client::tools_are_required;

/// Whether Python is there, which the examples' programs need.
fn has_python() -> bool {
    let version = Command::new("python3").arg("--version").stdout(Stdio::null()).status();
    let is_there = version.is_ok_and(|status| status.success());
    assert!(is_there || !tools_are_required(), "python3 is not installed");
    if !is_there {
        eprintln!("SKIPPED: python3 is not installed");
    }
    is_there
}

fn directory(example: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example)
}

/// The step event of one update of an example on `model`, and whether the run succeeded.
fn update(example: &str, model: &str, variables: &[(&str, &str)]) -> (Value, bool) {
    let scratch = tempfile::tempdir().unwrap();
    let server = Server::start(scratch.path(), &[]);
    update_at(&["--swarm-url", &server.url], example, model, variables)
}

/// The same with these arguments, which say where the servers are.
fn update_at(servers: &[&str], example: &str, model: &str, variables: &[(&str, &str)]) -> (Value, bool) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ajet-swarm"));
    command.args(["roll", "job.yaml", "--json"]).args(servers);
    for set in [
        "roll.steps=1",
        "roll.eval=null",
        "ajet.data.train_batch_size=2",
        "ajet.data.max_prompt_length=4000",
        "ajet.data.max_response_length=1000",
        "ajet.rollout.num_repeat=2",
        "ajet.rollout.compute_madness_checklist=[]",
        "ajet.engine.device=cpu",
    ] {
        command.args(["--set", set]);
    }
    command.env("MODEL", model).envs(variables.iter().copied());
    let output = command.current_dir(directory(example)).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let mut events = printed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let step = events.find(|event| event["event"] == "step");
    let err = String::from_utf8_lossy(&output.stderr);
    (
        step.unwrap_or_else(|| panic!("{example}: no update: {printed}{err}")),
        output.status.success(),
    )
}

/// The step event of one update with a script's answers.
fn scripted(example: &str, script: &[Value]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("script.jsonl");
    let lines: String = script.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(&file, lines).unwrap();
    // Equal answers have equal rewards, of which nothing is learned; the update says so.
    update(example, &format!("builtin:scripted:{}", file.display()), &[]).0
}

fn rows(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(directory(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn gsm8k() {
    let script: Vec<Value> = rows("gsm8k/train.jsonl")
        .iter()
        .map(|row| json!({"text": row["answer"], "contains": row["question"]}))
        .collect();
    let step = scripted("gsm8k", &script);
    assert_eq!(
        (&step["reward_mean"], &step["episodes"]),
        (&json!(1.0), &json!(4)),
        "{step}"
    );
}

#[test]
fn guess_the_number() {
    if !has_python() {
        return;
    }
    let step = scripted(
        "guess-the-number",
        &[json!({"text": "It is 50.", "turn": 0}), json!({"text": "I give up."})],
    );
    let reward = step["reward_mean"].as_f64().unwrap();
    assert!((0.2..0.5).contains(&reward), "{step}");
    assert_eq!(step["guesses"], 2.0, "{step}");
}

#[test]
fn calculator() {
    if !has_python() {
        return;
    }
    let call = "<tool_call>\n{\"name\": \"calculator\", \"arguments\": {\"expression\": \"2 + 40\"}}\n</tool_call>";
    let script = [
        json!({"text": call, "turn": 0, "tool": "calculator"}),
        json!({"text": "It is known.", "contains": "42"}),
    ];
    let step = scripted("calculator", &script);
    assert_eq!(
        (&step["tool_calls"], &step["tool_errors"]),
        (&json!(1.0), &json!(0.0)),
        "{step}"
    );
}

#[test]
fn python_black_box() {
    if !has_python() {
        return;
    }
    let script: Vec<Value> = rows("python-black-box/tasks.jsonl")
        .iter()
        .map(|row| json!({"text": row["metadata"]["answer"], "contains": format!("word: {}.", row["metadata"]["word"].as_str().unwrap())}))
        .collect();
    let step = scripted("python-black-box", &script);
    assert_eq!(step["reward_mean"], 1.0, "{step}");
}

#[test]
fn coding_agent() {
    if !has_python() {
        return;
    }
    let solutions = [
        ("double", "def double(x):\n    return 2 * x\n"),
        ("is_even", "def is_even(n):\n    return n % 2 == 0\n"),
        ("reverse", "def reverse(text):\n    return text[::-1]\n"),
        (
            "largest",
            "def largest(numbers):\n    return max(numbers, default=None)\n",
        ),
        (
            "vowels",
            "def vowels(text):\n    return sum(text.count(vowel) for vowel in 'aeiou')\n",
        ),
        ("fizz", "def fizz(n):\n    return 'fizz' if n % 3 == 0 else n\n"),
    ];
    let mut script = vec![json!({"text": "DONE", "turn": 1})];
    for (name, solution) in solutions {
        let call = json!({"name": "write_file", "arguments": {"path": "solution.py", "content": solution}});
        let text = format!("<tool_call>\n{call}\n</tool_call>");
        script.push(json!({"text": text, "turn": 0, "tool": "write_file", "contains": format!("function {name}(")}));
    }
    let step = scripted("coding-agent", &script);
    assert_eq!(step["reward_mean"], 1.0, "{step}");
}

/// The scripted judge of the examples, on a free port.
struct Judge {
    child: Child,
    url: String,
}

impl Judge {
    fn start() -> Self {
        let mut child = Command::new("python3")
            .arg("judge.py")
            .current_dir(directory("llm-judge"))
            .env("JUDGE_PORT", "0")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let url = line.trim().rsplit_once(' ').unwrap().1.to_owned();
        Self { child, url }
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn llm_judge() {
    if !has_python() {
        return;
    }
    let judge = Judge::start();
    let (step, succeeded) = update("llm-judge", "builtin:tiny", &[("JUDGE_URL", &judge.url)]);
    let reward = step["reward_mean"].as_f64().unwrap();
    assert!(succeeded && reward > 0.1 && reward <= 1.0, "{step}");
    assert_eq!(step["judge/calls"], 1.0, "{step}");
}

#[test]
fn ranked_groups() {
    if !has_python() {
        return;
    }
    let judge = Judge::start();
    let (step, succeeded) = update("ranked-groups", "builtin:tiny", &[("JUDGE_URL", &judge.url)]);
    assert!(succeeded, "{step}");
    assert_eq!(
        step["reward_mean"], 0.5,
        "a best and a worst in each group of two: {step}"
    );
}

#[test]
fn two_models() {
    let scratch = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [writer, editor] = [0, 1].map(|place| Server::start(scratch[place].path(), &[]));
    let urls = [("WRITER_URL", writer.url.as_str()), ("EDITOR_URL", editor.url.as_str())];
    // The built-in model may get nothing right, of which nothing is learned; the update says so.
    let (step, _) = update_at(&[], "two-models", "builtin:tiny", &urls);
    let of_both = |name: &str| [name.to_owned(), format!("editor/{name}")].map(|name| step[name].as_f64().unwrap());
    assert_eq!(of_both("episodes"), [4.0, 4.0], "{step}");
    let [writer, editor] = of_both("reward_mean");
    assert!((writer - editor).abs() < 1e-6, "{step}");
}

#[test]
fn every_example_has_a_job_a_readme_and_a_line_in_the_list() {
    let list = std::fs::read_to_string(directory("README.md")).unwrap();
    for entry in std::fs::read_dir(directory("")).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(list.contains(&format!("[{name}]({name})")), "{name}");
        let readme = std::fs::read_to_string(path.join("README.md")).unwrap();
        let job = std::fs::read_to_string(path.join("job.yaml")).unwrap();
        assert!(readme.contains("ajet-swarm roll job.yaml"), "{name}");
        assert!(job.lines().count() <= 30 && readme.lines().count() <= 20, "{name}");
    }
}
