//! Task sets made from a seed: the same seed gives the same tasks on every machine, and no validation task is a
//! training task.

use std::collections::HashSet;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::{Task, TaskError, TaskSets};
use crate::config::schema::{Generated, RandomDummy};

/// Sums of two numbers with `min_length` to `max_length` digits. Metadata: `a`, `b`, `answer`.
pub fn arithmetic(config: &Generated) -> Result<TaskSets, TaskError> {
    // Sums of more digits would not be exact where a program reads them as floats.
    let (least, most) = lengths("arithmetic", config, 15)?;
    let smallest = if least == 1 { 0 } else { 10_u64.pow(least - 1) };
    let largest = 10_u64.pow(most) - 1;
    let exist = ((largest - smallest + 1) as f64).powi(2);
    distinct("arithmetic", config, exist, |rng| {
        // The number of digits is drawn first: drawn by value, nine of ten numbers would be of the longest kind.
        let mut number = || {
            let digits = rng.random_range(least..=most);
            let from = if digits == 1 { 0 } else { 10_u64.pow(digits - 1) };
            rng.random_range(from..10_u64.pow(digits))
        };
        let (a, b) = (number(), number());
        let metadata = json!({ "a": a, "b": b, "answer": (a + b).to_string() });
        (format!("What is {a} + {b}?"), metadata)
    })
}

/// Words of `min_length` to `max_length` random letters. Metadata: `text`, `answer`.
pub fn reverse_text(config: &Generated) -> Result<TaskSets, TaskError> {
    let (least, most) = lengths("reverse_text", config, 1000)?;
    let exist = (least..=most).map(|length| 26_f64.powi(length as i32)).sum();
    distinct("reverse_text", config, exist, |rng| {
        let length = rng.random_range(least..=most);
        let text: String = (0..length).map(|_| char::from(rng.random_range(b'a'..=b'z'))).collect();
        let answer: String = text.chars().rev().collect();
        (
            format!("Reverse the word: {text}"),
            json!({ "text": text, "answer": answer }),
        )
    })
}

/// Tasks without a question. Metadata: `random_number`, between 0 and 1.
pub fn random_dummy(config: &RandomDummy) -> TaskSets {
    let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
    let mut make = |set: &str, count: usize| {
        let task = |number: usize| Task {
            task_id: format!("random_dummy_{set}{number}"),
            metadata: json!({ "random_number": rng.random::<f64>() }),
            ..Task::default()
        };
        (0..count).map(task).collect()
    };
    TaskSets {
        validation: make("validation_", config.validation_tasks),
        training: make("", config.tasks),
        warnings: vec![],
    }
}

fn lengths(kind: &'static str, config: &Generated, most: u32) -> Result<(u32, u32), TaskError> {
    let (min_length, max_length) = (config.min_length, config.max_length);
    if min_length < 1 || min_length > max_length || max_length > most as usize {
        return Err(TaskError::Lengths {
            kind,
            min_length,
            max_length,
            most: most as usize,
        });
    }
    Ok((min_length as u32, max_length as u32))
}

/// Draws until there are enough different ones. The validation tasks come first, so that they stay the same when the
/// number of training tasks changes.
fn distinct(
    kind: &'static str,
    config: &Generated,
    exist: f64,
    mut draw: impl FnMut(&mut ChaCha8Rng) -> (String, serde_json::Value),
) -> Result<TaskSets, TaskError> {
    let asked = config.tasks + config.validation_tasks;
    if asked as f64 > exist {
        return Err(TaskError::TooMany {
            kind,
            asked,
            exist,
            min_length: config.min_length,
            max_length: config.max_length,
        });
    }
    let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
    let mut seen = HashSet::new();
    let mut tasks = Vec::with_capacity(asked);
    while tasks.len() < asked {
        let (main_query, metadata) = draw(&mut rng);
        if seen.insert(main_query.clone()) {
            let (set, number) = match tasks.len().checked_sub(config.validation_tasks) {
                Some(number) => ("", number),
                None => ("validation_", tasks.len()),
            };
            tasks.push(Task {
                task_id: format!("{kind}_{set}{number}"),
                main_query,
                metadata,
                ..Task::default()
            });
        }
    }
    let training = tasks.split_off(config.validation_tasks);
    Ok(TaskSets {
        training,
        validation: tasks,
        warnings: vec![],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(tasks: usize, min_length: usize, max_length: usize) -> Generated {
        Generated {
            tasks,
            validation_tasks: 20,
            seed: 3,
            min_length,
            max_length,
        }
    }

    #[test]
    fn sets_are_repeatable_disjoint_and_stable() {
        for make in [arithmetic, reverse_text] {
            let sets = make(&config(100, 1, 3)).unwrap();
            assert_eq!((sets.training.len(), sets.validation.len()), (100, 20));
            let queries: HashSet<_> = sets
                .training
                .iter()
                .chain(&sets.validation)
                .map(|task| &task.main_query)
                .collect();
            assert_eq!(queries.len(), 120);
            let more = make(&config(200, 1, 3)).unwrap();
            assert_eq!(more.validation, sets.validation);
            assert_eq!(more.training[..100], sets.training[..]);
            let another_seed = make(&Generated {
                seed: 4,
                ..config(100, 1, 3)
            })
            .unwrap();
            assert_ne!(another_seed.validation, sets.validation);
        }
    }

    #[test]
    fn dummies_are_repeatable_and_distinct() {
        let config = RandomDummy {
            tasks: 3,
            validation_tasks: 2,
            seed: 1,
        };
        let sets = random_dummy(&config);
        assert_eq!((sets.training.len(), sets.validation.len()), (3, 2));
        assert_eq!(sets.training, random_dummy(&config).training);
        assert_ne!(sets.training[0].metadata, sets.training[1].metadata);
        assert_eq!(sets.validation[1].task_id, "random_dummy_validation_1");
    }

    #[test]
    fn answers_are_right_and_lengths_kept() {
        for task in reverse_text(&config(50, 3, 5)).unwrap().training {
            let text = task.metadata["text"].as_str().unwrap();
            assert!((3..=5).contains(&text.len()));
            assert_eq!(
                text.chars().rev().collect::<String>(),
                task.metadata["answer"].as_str().unwrap()
            );
        }
        for task in arithmetic(&config(50, 2, 2)).unwrap().training {
            let (a, b) = (
                task.metadata["a"].as_u64().unwrap(),
                task.metadata["b"].as_u64().unwrap(),
            );
            assert!((10..100).contains(&a) && (10..100).contains(&b));
            assert_eq!(task.metadata["answer"], (a + b).to_string());
        }
    }

    #[test]
    fn every_task_there_is_can_be_asked_for_and_no_more() {
        assert_eq!(arithmetic(&config(80, 1, 1)).unwrap().training.len(), 80);
        let message = arithmetic(&config(81, 1, 1)).unwrap_err().to_string();
        assert!(message.contains("101 distinct tasks, but only 100 exist"), "{message}");
        for (least, most) in [(0, 3), (4, 3), (1, 2000)] {
            assert!(reverse_text(&config(1, least, most)).is_err());
        }
    }
}
