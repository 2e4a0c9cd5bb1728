//! What stands around a number, and whether it makes another value of it: `not 5`, `3 or 5`, `5 million`, `x + 5`.
//! An answer that may mean something else than its number is no number, so that no wrong answer is rewarded.

/// LaTeX's commands that leave the number beside them as it is.
const HARMLESS: &str = " text textbf textit textrm mathrm mathbf mathit mbox fbox boxed emph bm boldsymbol underline \
    left right big Big quad qquad displaystyle therefore implies Rightarrow Longrightarrow rightarrow to approx \
    simeq cong equiv circ degree end begin square blacksquare qed ";

/// Words before a number that turn it into another one.
const BEFORE: &str = " not never minus negative plus times than except without but per step steps equation under over below \
    above almost nearly twice thrice double triple half log ln exp sin cos tan sqrt root ";

/// What they end with that do so.
const PHRASES: [&str; 6] = ["root of", "half of", "third of", "quarter of", "up to", "n't"];

/// What begins the rest of a sentence that takes its number back.
const RETRACTIONS: [&str; 5] = ["is wrong", "is not", "isn't", "is incorrect", "was wrong"];

/// Words after a number that do so.
const AFTER: &str = " hundred hundreds thousand thousands million millions billion billions trillion trillions mil mln \
    mn bn lakh lakhs crore crores dozen dozens score pi plus minus squared cubed factorial half halves thirds tenths \
    hundredths thousandths infinity ";

/// Variables and powers of a thousand: right after a number, and after a space too, where they are no units or words.
const LETTERS: &str = "abceijknopqrtuvwxyzBKMT";
const SPACED_LETTERS: &str = "eijknxyzBKMT";

/// Words between two numbers that make one answer of them, such as a range, an operation, or a time.
const CONNECTORS: &str = " or and to by of out x over plus minus times divided through vs versus cdot div pm mp ldots dots \
    cdots ast colon choose mod bmod sim text mathrm left right quad qquad textbf mathbf h hr hrs hour hours min minute \
    minutes foot feet ft lb lbs pound pounds dollar dollars euro euros year years month months week weeks day days \
    degree degrees yard yards am pm ";

fn is_in(list: &str, word: &str) -> bool {
    list.contains(&format!(" {word} "))
}

/// Whether a number with `left` and `right` around it is worth what it says.
pub(super) fn stands_alone(left: &str, right: &str) -> bool {
    !changes_what_follows(left) && !changes_what_precedes(right)
}

fn changes_what_follows(left: &str) -> bool {
    if left.ends_with(|last: char| last.is_alphanumeric() || last == '|') {
        return true;
    }
    let cut = left.strip_suffix(['.', ',', '\'', ':']).unwrap_or_default();
    if cut.ends_with(char::is_numeric) {
        return true;
    }
    if left
        .strip_suffix('(')
        .is_some_and(|name| name.ends_with(char::is_alphanumeric))
    {
        return true;
    }
    let Some(left) = without_emphasis(left) else {
        return true;
    };
    let left = left
        .trim_end_matches(|last: char| last != '\n' && last.is_whitespace() || "({[}$€£¥₹\\,;!:`\"'_".contains(last));
    if let Some((before, after)) = left.rsplit_once('\\') {
        let name: String = after.chars().take_while(char::is_ascii_alphabetic).collect();
        let is_last = after[name.len()..].is_empty() || after[name.len()..].starts_with(['_', '^']);
        if is_last && !after.contains(char::is_whitespace) && !name.is_empty() {
            return !is_in(HARMLESS, &name) || before.ends_with(['-', '+']);
        }
    }
    match left.chars().next_back() {
        Some('>') => {
            let is_arrow = ["->", "=>", ">>"].iter().any(|arrow| left.ends_with(arrow));
            let tag = left.rsplit_once('<').map(|(_, tag)| tag.trim_end_matches('>'));
            let is_tag =
                tag.is_some_and(|tag| tag.starts_with(|first: char| "/|".contains(first) || first.is_alphabetic()));
            !is_arrow && !is_tag
        }
        Some('=') => left.trim_end_matches(['=', ' ']).ends_with(['!', '<', '>', '/']) || left.ends_with("\\not="),
        Some(last) if "+-*/×·÷±∓<≤≥≠^¬√∛∜∞".contains(last) => true,
        _ => {
            let is_word = |letter: char| letter.is_alphabetic() || "'’".contains(letter);
            let word = &left[left.trim_end_matches(is_word).len()..];
            let word = word.to_lowercase().replace('’', "'");
            let left = left.to_lowercase().replace('’', "'");
            is_in(BEFORE, &word) || PHRASES.iter().any(|phrase| left.ends_with(phrase))
        }
    }
}

/// A text without Markdown's `*` and `**` at its end; `None` where they are operators, as in `x * 3`.
fn without_emphasis(left: &str) -> Option<&str> {
    let trimmed = left.trim_end_matches(' ');
    let before = trimmed.trim_end_matches('*');
    let stars = trimmed.len() - before.len();
    let after_value = before.ends_with(|last: char| last.is_alphanumeric() || ")}".contains(last));
    let is_spaced = (trimmed.len() < left.len(), before.ends_with(' '));
    let is_operator = match is_spaced {
        (true, true) => !before.trim_end_matches(' ').is_empty() && !before.trim_end_matches(' ').ends_with('\n'),
        (true, false) => stars == 1 && after_value,
        (false, _) => after_value,
    };
    (stars == 0 || !is_operator).then_some(before)
}

fn changes_what_precedes(right: &str) -> bool {
    let mut characters = right.chars();
    let (first, second) = (characters.next(), characters.next());
    let is_digit = |character: Option<char>| character.is_some_and(|it| it.is_ascii_digit());
    let is_joined = match first {
        Some('.' | ',' | ':' | '\'') => is_digit(second),
        Some('_') => second.is_some_and(|second| second.is_alphanumeric() || second == '{'),
        Some('(' | '|') => true,
        Some('*') => second.is_some_and(|second| second.is_alphanumeric() || second == '\\'),
        Some(first) => first.is_numeric(),
        None => false,
    };
    if is_joined {
        return true;
    }
    let spaced = right.trim_start_matches(' ');
    let mut characters = spaced.chars();
    match (characters.next(), characters.next()) {
        (Some('<'), after) => return !after.is_some_and(|after| "/|".contains(after) || after.is_alphabetic()),
        (Some('^'), _)
            if ["^\\circ", "^{\\circ", "^°"]
                .iter()
                .any(|degrees| spaced.starts_with(degrees)) =>
        {
            return false;
        }
        (Some(first), _) if ">+×·÷±∓^≠≤≥‰∞√π".contains(first) => return true,
        _ => {}
    }
    let rest = spaced.replace('-', " ");
    if rest.trim_start().starts_with("and a ") || RETRACTIONS.iter().any(|words| rest.starts_with(words)) {
        return true;
    }
    let word = match beside(spaced) {
        None => return true,
        Some(word) => word,
    };
    let name: String = word.chars().take_while(|letter| letter.is_alphabetic()).collect();
    let letters = if word.len() == right.len() {
        LETTERS
    } else {
        SPACED_LETTERS
    };
    let is_variable = name.chars().count() == 1 && letters.contains(&name)
        || word.len() == right.len()
            && !name.is_empty()
            && (name.starts_with('x') || name.chars().all(|letter| "xyzn".contains(letter)));
    is_variable || is_in(AFTER, &name.to_lowercase())
}

/// The text from the next word on, braces and commands that do not matter left out; `None` where one matters.
fn beside(mut right: &str) -> Option<&str> {
    loop {
        let rest = right.trim_start_matches([' ', '{', '}', '~', '-', '/']);
        let Some(command) = rest.strip_prefix('\\') else {
            return Some(rest);
        };
        let name = &command[..command.len()
            - command
                .trim_start_matches(|letter: char| letter.is_ascii_alphabetic())
                .len()];
        if !name.is_empty() && !is_in(HARMLESS, name) {
            return None;
        }
        right = match name {
            "" => command
                .get(command.chars().next().map_or(0, char::len_utf8)..)
                .unwrap_or_default(),
            name => &command[name.len()..],
        };
    }
}

/// Whether what stands between two numbers makes one answer of them.
pub(super) fn connects(gap: &str) -> bool {
    let is_word = |word: &&str| !word.is_empty();
    let mut words = gap
        .split(|letter: char| !letter.is_alphabetic())
        .filter(is_word)
        .peekable();
    // `<<2+1=3>>` notes a calculation before its result.
    if gap.ends_with(">>") || gap.contains('\n') || gap.contains(". ") && words.peek().is_some() {
        return false;
    }
    if words.clone().any(|word| word.eq_ignore_ascii_case("or")) {
        return true;
    }
    let result = gap.find(['=', '≈', '→', '⇒']).or_else(|| gap.find("->"));
    if result.is_some_and(|at| !gap[..at].contains([',', ';']) && !gap[..at].contains(" and ")) {
        return false;
    }
    if words.peek().is_some() {
        return words.all(|word| word.chars().count() == 1 || is_in(CONNECTORS, &word.to_lowercase()));
    }
    // A sentence's end or a label, as in `Step 3: 5`.
    let is_end = matches!(
        gap.trim_matches(['*', '_', '`', ' ', '$']),
        "." | ":" | ")" | "!" | "?" | ".)" | "):"
    );
    !(is_end && gap.ends_with([' ', '*', '$']) && !gap.starts_with(' '))
}

/// Whether the rest of a box, beside its only number, makes another value of it.
pub(super) fn is_expression(left: &str, right: &str) -> bool {
    left.contains(['+', '-', ',', ';', '<', '>', '|', '±', '*', '×', '÷'])
        || right.contains(['+', ',', ';', '<', '>', '|', '±', '*', '×', '÷', '!'])
}
