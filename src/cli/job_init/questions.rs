//! The questions of `job init` at a terminal.

use std::io::{self, BufRead, Write};

use clap::ValueEnum;

use super::{Agent, Args, Reward};

/// Asks for the parts of a job that these arguments leave open; an empty answer is the default. Returns `None` where the
/// input ends before the last answer.
///
/// # Errors
/// Fails if the terminal cannot be read or written.
pub(super) fn ask(args: &Args, input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<Option<Args>> {
    let mut dialogue = Dialogue { input, output };
    let Some(tasks) = dialogue.text(
        "Tasks: a file or directory of CSV, JSON or Parquet, a data set of the hub, arithmetic, or reverse_text",
        "reverse_text",
    )?
    else {
        return Ok(None);
    };
    let Some(agent) = dialogue.choice("Agent", Agent::Chat)? else {
        return Ok(None);
    };
    let usual = match (agent, tasks.as_str()) {
        (_, "arithmetic") => Reward::NumberMatch,
        (_, "reverse_text") => Reward::Similarity,
        (Agent::Chat, _) => Reward::ExactMatch,
        (Agent::Command | Agent::Worker, _) => Reward::FromAgent,
    };
    let Some(reward) = dialogue.choice("Reward", usual)? else {
        return Ok(None);
    };
    let model = dialogue.text(
        "Model: a Hugging Face directory, a .gguf file, a hub id, or builtin:tiny, which only tries the job out",
        "builtin:tiny",
    )?;
    Ok(model.map(|model| Args {
        tasks: Some(tasks),
        agent: Some(agent),
        reward: Some(reward),
        model: Some(model),
        ..args.clone()
    }))
}

/// A terminal, or a test's text.
struct Dialogue<'a> {
    input: &'a mut dyn BufRead,
    output: &'a mut dyn Write,
}

impl Dialogue<'_> {
    /// Asks for a text. Returns `None` at the end of the input.
    fn text(&mut self, question: &str, default: &str) -> io::Result<Option<String>> {
        writeln!(self.output, "{question}")?;
        self.answer(default)
    }

    /// Asks for one of a type's values, by its name or its number, until it is one.
    fn choice<C: ValueEnum>(&mut self, question: &str, default: C) -> io::Result<Option<C>> {
        writeln!(self.output, "{question}:")?;
        let names: Vec<_> = C::value_variants().iter().filter_map(C::to_possible_value).collect();
        for (number, name) in names.iter().enumerate() {
            let help = name.get_help().map(ToString::to_string).unwrap_or_default();
            writeln!(self.output, "  {} {:<14}{help}", number + 1, name.get_name())?;
        }
        let default = default
            .to_possible_value()
            .map_or_else(String::new, |name| name.get_name().to_owned());
        loop {
            let Some(answer) = self.answer(&default)? else {
                return Ok(None);
            };
            let numbered = answer.parse().ok().and_then(|number: usize| number.checked_sub(1));
            let chosen = match numbered {
                Some(place) => C::value_variants().get(place).cloned(),
                None => C::from_str(&answer, true).ok(),
            };
            match chosen {
                Some(chosen) => return Ok(Some(chosen)),
                None => writeln!(
                    self.output,
                    "{answer:?} is none of these; answer with a name or a number"
                )?,
            }
        }
    }

    fn answer(&mut self, default: &str) -> io::Result<Option<String>> {
        write!(self.output, "[{default}] > ")?;
        self.output.flush()?;
        let mut line = String::new();
        if self.input.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(match line.trim() {
            "" => default.to_owned(),
            answer => answer.to_owned(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(answers: &str) -> (Option<Args>, String) {
        let mut output = vec![];
        let args = ask(&Args::default(), &mut answers.as_bytes(), &mut output).unwrap();
        (args, String::from_utf8(output).unwrap())
    }

    #[test]
    fn answers_are_names_numbers_or_the_default() {
        for (answers, tasks, agent, reward, model) in [
            (
                "\n\n\n\n",
                "reverse_text",
                Agent::Chat,
                Reward::Similarity,
                "builtin:tiny",
            ),
            (
                "arithmetic\n\n\n\n",
                "arithmetic",
                Agent::Chat,
                Reward::NumberMatch,
                "builtin:tiny",
            ),
            (
                "a b.csv\nworker\n\nq\n",
                "a b.csv",
                Agent::Worker,
                Reward::FromAgent,
                "q",
            ),
            (
                "org/data\n2\nLLM_Judge\n x \n",
                "org/data",
                Agent::Command,
                Reward::LlmJudge,
                "x",
            ),
            (
                "d\n9\nchats\n1\n0\n1\n\n",
                "d",
                Agent::Chat,
                Reward::ExactMatch,
                "builtin:tiny",
            ),
        ] {
            let args = asked(answers).0.unwrap();
            assert_eq!(
                (args.tasks.as_deref(), args.agent, args.reward, args.model.as_deref()),
                (Some(tasks), Some(agent), Some(reward), Some(model)),
                "{answers:?}"
            );
        }
    }

    #[test]
    fn input_that_ends_before_the_last_answer_writes_nothing() {
        for answers in ["", "arithmetic\n", "d\n1\n", "d\n1\n1\n", "d\nnone of them\n"] {
            assert!(asked(answers).0.is_none(), "{answers:?}");
        }
    }

    #[test]
    fn questions() {
        insta::assert_snapshot!(asked("d\nchats\n1\n\n\n").1);
    }
}
