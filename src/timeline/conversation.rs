//! Conversations of an episode, derived from its calls: one for each call that no later call continues.

use serde_json::Value;

use super::call::Call;
use super::matching::continues;

/// One conversation: a call that no later call continues, and the calls that it continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Indexes of its calls, oldest first.
    pub calls: Vec<usize>,
}

impl Branch {
    /// Returns the messages up to and including the last answer. Answers are as the model gave them, with thinking that
    /// the agent may have removed when it sent them back.
    pub fn messages<'a>(&self, calls: &'a [Call]) -> Vec<&'a Value> {
        let mut messages: Vec<&Value> = vec![];
        for call in self.calls.iter().filter_map(|index| calls.get(*index)) {
            let known = messages.len();
            messages.extend(call.conversation.messages.iter().skip(known));
            messages.push(&call.answer);
        }
        messages
    }

    /// Returns the index of each call's answer in [`Branch::messages`].
    pub fn answers<'a>(&'a self, calls: &'a [Call]) -> impl Iterator<Item = (usize, &'a Call)> {
        let calls = self.calls.iter().filter_map(|index| calls.get(*index));
        calls.map(|call| (call.conversation.messages.len(), call))
    }

    /// Returns the number of messages.
    pub fn message_count(&self, calls: &[Call]) -> usize {
        self.answers(calls).last().map_or(0, |(place, _)| place + 1)
    }
}

/// Returns all conversations of an episode, in the order of their last calls.
pub fn branches(calls: &[Call]) -> Vec<Branch> {
    let parents: Vec<Option<usize>> = (0..calls.len()).map(|at| parent(calls, at)).collect();
    let is_leaf = |at: &usize| !parents.contains(&Some(*at));
    (0..calls.len())
        .filter(is_leaf)
        .map(|leaf| {
            let mut chain: Vec<usize> = std::iter::successors(Some(leaf), |at| parents[*at]).collect();
            chain.reverse();
            Branch { calls: chain }
        })
        .collect()
}

/// Returns the longest earlier conversation that a call continues, the latest of equally long ones.
fn parent(calls: &[Call], at: usize) -> Option<usize> {
    let messages = &calls[at].conversation.messages;
    let length = |index: &usize| calls[*index].conversation.messages.len();
    let mut earlier: Vec<usize> = (0..at).filter(|index| length(index) + 1 < messages.len()).collect();
    // Latest first, and the longest of those: the first that fits is the parent, which is cheap in a plain conversation.
    earlier.reverse();
    earlier.sort_by_key(|index| std::cmp::Reverse(length(index)));
    earlier.into_iter().find(|index| continues(&calls[*index], messages))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::fake;
    use serde_json::json;

    fn user(content: &str) -> Value {
        json!({"role": "user", "content": content})
    }

    fn call(messages: &[Value], answer: Value) -> Call {
        fake::call(messages.to_vec(), answer)
    }

    fn assistant(content: &str) -> Value {
        json!({"role": "assistant", "content": content})
    }

    fn contents(branch: &Branch, calls: &[Call]) -> Vec<String> {
        let text = |message: &&Value| message["content"].as_str().unwrap_or_default().to_owned();
        branch.messages(calls).iter().map(text).collect()
    }

    #[test]
    fn a_conversation_is_told_once_with_all_its_turns_and_branches_apart() {
        let calls = [
            call(&[user("2 + 2?")], assistant("4")),
            call(&[user("2 + 2?"), assistant("4"), user("and 3 + 3?")], assistant("6")),
            call(&[user("2 + 2?")], assistant("5")),
            call(&[user("something else")], assistant("yes")),
            call(&[user("2 + 2?"), assistant("4"), user("and 4 + 4?")], assistant("8")),
        ];
        let told = branches(&calls);
        let told: Vec<_> = told.iter().map(|branch| contents(branch, &calls)).collect();
        assert_eq!(
            told,
            [
                vec!["2 + 2?", "4", "and 3 + 3?", "6"],
                vec!["2 + 2?", "5"],
                vec!["something else", "yes"],
                vec!["2 + 2?", "4", "and 4 + 4?", "8"],
            ]
        );
        assert_eq!(branches(&[]), []);
    }

    #[test]
    fn answers_are_as_the_model_gave_them_whatever_the_agent_sent_back() {
        let thought = json!({"role": "assistant", "content": " 4\n", "reasoning_content": "two and two"});
        let calls = [
            call(&[user("2 + 2?")], thought.clone()),
            call(&[user("2 + 2?"), assistant("4"), user("sure?")], assistant("yes")),
        ];
        let told = branches(&calls);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].messages(&calls)[1], &thought);
        let places: Vec<usize> = told[0].answers(&calls).map(|(place, _)| place).collect();
        assert_eq!((places, told[0].message_count(&calls)), (vec![1, 3], 4));
    }
}
