//! Reads numbers from a text: signs, currencies, fractions, powers, LaTeX.

use bigdecimal::num_bigint::{BigInt, Sign};
use bigdecimal::{BigDecimal, Zero};

use super::value::{LARGEST_EXPONENT, LONGEST_FACTOR, Number, raised};

/// Maximum number of digits, since converting a binary number takes quadratic time.
pub(super) const MOST_DIGITS: usize = 100_000;

/// What may stand between a thousand and its hundreds.
const SEPARATORS: [&str; 10] = [
    ",", ",\\!", "{,}", "\\,", "_", "'", "’", "\u{a0}", "\u{2009}", "\u{202f}",
];

/// Words after which a term begins with its sign.
const TERM_WORDS: [&str; 10] = ["is", "are", "was", "be", "equals", "to", "get", "gives", "answer", "a"];

const SUPERSCRIPTS: &str = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/// Reads a text from left to right. A method that finds nothing leaves the place as it was, but for [`Self::signed`],
/// which may skip what is no number.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub text: &'a [char],
    pub at: usize,
}

impl Reader<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.text.get(self.at + ahead).copied()
    }

    fn is_digit(&self, ahead: usize) -> bool {
        self.peek(ahead).is_some_and(|character| character.is_ascii_digit())
    }

    fn before(&self) -> Option<char> {
        self.at.checked_sub(1).map(|at| self.text[at])
    }

    fn eat(&mut self, text: &str) -> bool {
        let is_there = text.chars().enumerate().all(|(i, wanted)| self.peek(i) == Some(wanted));
        if is_there {
            self.at += text.chars().count();
        }
        is_there
    }

    fn eat_any(&mut self, texts: &[&str]) -> bool {
        texts.iter().any(|text| self.eat(text))
    }

    fn spaces(&mut self) {
        while self.peek(0) == Some(' ') {
            self.at += 1;
        }
    }

    /// Reads ahead, and goes back where that leads to nothing.
    fn attempt<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let start = self.at;
        let found = read(self);
        if found.is_none() {
            self.at = start;
        }
        found
    }

    /// A number with its sign. `Some(None)` is one that cannot be compared.
    pub(super) fn signed(&mut self) -> Option<Option<Number>> {
        if self.skips_exponent() {
            return None;
        }
        let negative = self
            .attempt(Self::minus)
            .or_else(|| self.attempt(Self::minus_word))
            .is_some();
        if negative || self.attempt(Self::plus).is_some() {
            self.attempt(Self::currency);
        }
        let number = self.quantity()?;
        Some(number.map(|number| if negative { number.negated() } else { number }))
    }

    /// Whether digits begin here that name something, as in `H2O` and `x_{12}`.
    pub(super) fn is_in_word(&self) -> bool {
        if !self.is_digit(0) {
            return false;
        }
        let before = self.text[..self.at].iter().rev().skip_while(|before| **before == '{');
        let mut before = before.copied();
        match before.next() {
            Some('_') => before
                .next()
                .is_some_and(|before| before.is_alphanumeric() || before == '}'),
            _ => self.before().is_some_and(char::is_alphabetic) && !self.follows_command(),
        }
    }

    /// Whether a command such as `\boxed` ends here.
    fn follows_command(&self) -> bool {
        let name = self.text[..self.at]
            .iter()
            .rev()
            .skip_while(|before| before.is_ascii_alphabetic());
        name.copied().next() == Some('\\')
    }

    /// A minus that is a sign. After a word or a bracket it is a hyphen or an operator, and with a space after it only
    /// a sign where nothing can be subtracted from.
    fn minus(&mut self) -> Option<()> {
        let before = self.before();
        let is_joined = before.is_some_and(|before| before.is_alphanumeric() || ")]}%".contains(before));
        if is_joined || !self.eat("-") {
            return None;
        }
        if self.peek(0) == Some(' ') {
            if !self.text[..self.at - 1]
                .iter()
                .rev()
                .find(|before| **before != ' ')
                .is_some_and(begins_term)
            {
                return None;
            }
            self.spaces();
        }
        Some(())
    }

    /// `minus` or `negative` before a number, where the term that it belongs to begins: nothing is subtracted from what
    /// stands before it.
    fn minus_word(&mut self) -> Option<()> {
        if !self.peek(0).is_some_and(|first| "mMnN".contains(first)) {
            return None;
        }
        let is_free = self
            .before()
            .is_none_or(|before| !before.is_alphanumeric() && before != '-');
        let word: String = self.text[self.at..]
            .iter()
            .take_while(|letter| letter.is_alphabetic())
            .collect();
        if !is_free || !["minus", "negative"].contains(&word.to_lowercase().as_str()) || !self.is_at_term() {
            return None;
        }
        self.at += word.chars().count();
        let is_spaced = self.peek(0) == Some(' ');
        self.spaces();
        is_spaced.then_some(())
    }

    /// Whether a term begins here: at the beginning of a line, after a sign, or after words such as `is`.
    fn is_at_term(&self) -> bool {
        let line = self.text[..self.at].iter().rev().take_while(|before| **before != '\n');
        let mut before = line.skip_while(|before| " *$_`\"'".contains(**before)).peekable();
        match before.peek() {
            None => true,
            Some(last) if last.is_alphabetic() => {
                let word: Vec<char> = before.take_while(|letter| letter.is_alphabetic()).copied().collect();
                let word: String = word.into_iter().rev().collect();
                TERM_WORDS.contains(&word.to_lowercase().as_str())
            }
            Some(last) => begins_term(last),
        }
    }

    /// A plus that is a sign, since there is nothing to add to.
    fn plus(&mut self) -> Option<()> {
        if !self.eat("+") {
            return None;
        }
        let before = self.text[..self.at - 1].iter().rev().find(|before| **before != ' ');
        before.is_none_or(begins_term).then_some(())
    }

    fn currency(&mut self) -> Option<()> {
        self.eat("\\");
        let sign = self.peek(0).filter(|sign| "$€£¥₹".contains(*sign))?;
        self.eat(sign.encode_utf8(&mut [0; 4]));
        self.spaces();
        Some(())
    }

    /// The power of something that is no number, such as a unit's: `cm^2`, `x^{10}`.
    fn skips_exponent(&mut self) -> bool {
        let is_power = self.eat("^");
        if is_power && !self.eat_braces() {
            self.eat("-");
            while self.is_digit(0) {
                self.at += 1;
            }
        }
        is_power
    }

    fn eat_braces(&mut self) -> bool {
        let mut depth = 0;
        let length = self.text[self.at..].iter().position(|character| {
            match character {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            depth <= 0
        });
        let braced = self.peek(0) == Some('{');
        if braced {
            self.at = length.map_or(self.text.len(), |length| self.at + length + 1);
        }
        braced
    }

    /// A number without its sign.
    fn quantity(&mut self) -> Option<Option<Number>> {
        let number = match self.latex_fraction().or_else(|| self.root()) {
            Some(number) => number,
            None => self.simple()?,
        };
        let is_multiple = ["\\pi", "π", "\\sqrt", "√"].iter().any(|sign| self.clone().eat(sign));
        Some(number.filter(|_| !is_multiple))
    }

    /// A root, whose value is not computed.
    fn root(&mut self) -> Option<Option<Number>> {
        if !self.eat_any(&["\\sqrt", "√"]) {
            return None;
        }
        if self.eat("[") {
            while self.peek(0).is_some_and(|degree| degree != ']') {
                self.at += 1;
            }
            self.eat("]");
        }
        self.spaces();
        if !self.eat_braces() {
            self.plain();
        }
        Some(None)
    }

    /// A decimal, its power or product with a power of ten, a fraction or a mixed number.
    fn simple(&mut self) -> Option<Option<Number>> {
        let before = self.before();
        if self.peek(0) == Some('.') && before.is_some_and(char::is_alphanumeric) {
            return None;
        }
        let number = self.plain()?;
        if number.last_digit.is_none() {
            return Some(None);
        }
        if let Some(power) = self.power(&number) {
            return Some(power);
        }
        // `5/6/2024` is a date.
        let divisor = (before != Some('/')).then(|| self.attempt(Self::divisor)).flatten();
        Some(match divisor {
            Some(divisor) => number.over(&divisor),
            None => Some(self.attempt(|reader| reader.mixed(&number)).unwrap_or(number)),
        })
    }

    /// What follows a slash, unless another slash follows that.
    fn divisor(&mut self) -> Option<Number> {
        self.spaces();
        let divisor = self.eat("/").then(|| self.spaces()).and_then(|()| self.comparable())?;
        (self.peek(0) != Some('/')).then_some(divisor)
    }

    /// A whole number and the proper fraction after it, as in `2 1/2`.
    fn mixed(&mut self, whole: &Number) -> Option<Number> {
        let is_spaced = self.peek(0) == Some(' ');
        self.spaces();
        let fraction = match self.latex_fraction() {
            Some(fraction) => fraction?,
            None if is_spaced => self.comparable()?.over(&self.divisor()?)?,
            None => return None,
        };
        let is_proper = fraction.numerator < fraction.denominator;
        (is_proper && whole.last_digit == Some(0) && whole.numerator.digits() <= LONGEST_FACTOR).then(|| Number {
            numerator: &fraction.numerator + &whole.numerator * &fraction.denominator,
            ..fraction
        })
    }

    /// `\frac{1}{2}` and its kin. One whose parts are no numbers is read over.
    fn latex_fraction(&mut self) -> Option<Option<Number>> {
        if !self.eat_any(&["\\frac", "\\dfrac", "\\tfrac", "\\cfrac"]) {
            return None;
        }
        let parts = self.attempt(|reader| Some((reader.part()?, reader.part()?)));
        if parts.is_none() {
            let _ = self.eat_braces() && self.eat_braces();
        }
        Some(parts.and_then(|(numerator, denominator)| numerator.over(&denominator)))
    }

    /// What one of LaTeX's commands takes: a number in braces, or a digit.
    fn part(&mut self) -> Option<Number> {
        self.spaces();
        if !self.eat("{") {
            let digit = self.peek(0)?.to_digit(10)?;
            self.at += 1;
            return Some(Number::whole(digit.into()));
        }
        self.spaces();
        let negative = self.eat("-");
        let number = self.comparable()?;
        self.spaces();
        self.eat("}").then(|| if negative { number.negated() } else { number })
    }

    /// What `number` and the power after it are: `2^{10}`, `6.02 \times 10^{23}`.
    fn power(&mut self, number: &Number) -> Option<Option<Number>> {
        let ten = self.attempt(|reader| {
            reader.spaces();
            let times = reader.eat_any(&["\\times", "\\cdot", "×", "·", "*", "x"]);
            reader.spaces();
            (times && reader.eat("10")).then(|| reader.exponent())?
        });
        if let Some(exponent) = ten {
            return Some(
                exponent
                    .filter(|exponent| exponent.abs() <= LARGEST_EXPONENT)
                    .map(|exponent| Number {
                        numerator: &number.numerator * BigDecimal::new(1.into(), -exponent),
                        last_digit: number.last_digit.map(|last| last + exponent),
                        ..number.clone()
                    }),
            );
        }
        let exponent = self.attempt(Self::exponent)?;
        Some(exponent.and_then(|exponent| raised(number, exponent)))
    }

    /// An exponent; `Some(None)` is one that is no number. Degrees are none.
    fn exponent(&mut self) -> Option<Option<i64>> {
        if let Some(exponent) = self.attempt(Self::superscript) {
            return Some(Some(exponent));
        }
        self.spaces();
        if self.eat("**") {
            self.spaces();
            return self.integer().map(Some);
        }
        if !self.eat("^") {
            return None;
        }
        self.spaces();
        let braced = self.eat_any(&["{", "("]);
        if self.clone().eat("\\circ") || self.clone().eat("°") {
            return None;
        }
        let exponent = self.integer();
        Some(exponent.filter(|_| !braced || self.eat_any(&["}", ")"])))
    }

    fn superscript(&mut self) -> Option<i64> {
        let negative = self.eat("⁻");
        let start = self.at;
        let mut value = 0_i64;
        while let Some(digit) = self
            .peek(0)
            .and_then(|character| SUPERSCRIPTS.chars().position(|it| it == character))
        {
            value = value.saturating_mul(10).saturating_add(digit as i64);
            self.at += 1;
        }
        (self.at > start).then_some(if negative { -value } else { value })
    }

    /// Digits with thousands' separators, a point and decimals, an exponent after `e`. A number that is too long has no
    /// value and no last digit.
    pub(super) fn plain(&mut self) -> Option<Number> {
        if !(self.is_digit(0) || self.peek(0) == Some('.') && self.is_digit(1)) {
            return None;
        }
        let mut digits = vec![];
        self.digits(&mut digits);
        if (1..=3).contains(&digits.len()) {
            // One group after a period is decimals.
            let mut ahead = *self;
            let dotted = ahead.group(".").is_some() && ahead.group(".").is_some();
            let separator = SEPARATORS
                .iter()
                .find(|separator| self.clone().group(separator).is_some());
            let separator = if dotted { Some(&".") } else { separator };
            while let Some(group) = separator.and_then(|separator| self.group(separator)) {
                digits.extend(group);
            }
        }
        let mut last_digit = 0;
        if self.peek(0) == Some('.') && self.is_digit(1) {
            self.at += 1;
            last_digit = -(self.digits(&mut digits) as i64);
        }
        last_digit = last_digit.saturating_add(self.attempt(Self::e_exponent).unwrap_or(0));
        let is_long = digits.len() > MOST_DIGITS || last_digit.saturating_abs() > LARGEST_EXPONENT;
        let whole = if is_long {
            None
        } else {
            BigInt::from_radix_be(Sign::Plus, &digits, 10)
        };
        Some(match whole {
            None => Number {
                last_digit: None,
                ..Number::whole(BigDecimal::zero())
            },
            Some(whole) => Number {
                last_digit: Some(last_digit),
                ..Number::whole(BigDecimal::new(whole, -last_digit))
            },
        })
    }

    /// As [`Self::plain`], if it is not too long.
    fn comparable(&mut self) -> Option<Number> {
        self.plain().filter(|number| number.last_digit.is_some())
    }

    /// How many digits came.
    pub(super) fn digits(&mut self, digits: &mut Vec<u8>) -> usize {
        let start = self.at;
        while let Some(digit) = self.peek(0).and_then(|character| character.to_digit(10)) {
            digits.push(digit as u8);
            self.at += 1;
        }
        self.at - start
    }

    /// A separator and exactly three digits.
    fn group(&mut self, separator: &str) -> Option<Vec<u8>> {
        self.attempt(|reader| {
            let mut digits = vec![];
            (reader.eat(separator) && reader.digits(&mut digits) == 3).then_some(digits)
        })
    }

    fn e_exponent(&mut self) -> Option<i64> {
        match self.eat_any(&["e", "E"]) {
            true => self.integer(),
            false => None,
        }
    }

    /// A whole number with a sign; one that is too large for anything saturates.
    fn integer(&mut self) -> Option<i64> {
        let negative = self.eat("-");
        if !negative {
            self.eat("+");
        }
        let mut digits = vec![];
        self.digits(&mut digits);
        let value = digits.iter().try_fold(0_i64, |value, digit| {
            value.checked_mul(10)?.checked_add(i64::from(*digit))
        });
        let value = value.unwrap_or(i64::MAX / 4);
        (!digits.is_empty()).then_some(if negative { -value } else { value })
    }
}

/// Whether a term with its sign follows this character.
fn begins_term(before: &char) -> bool {
    "=≈:({<>≤≥".contains(*before)
}
