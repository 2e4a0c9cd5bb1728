//! Numbers as people and models write them, and whether two of them are the same answer. Nothing is rounded.

use bigdecimal::num_bigint::{BigInt, Sign};
use bigdecimal::{BigDecimal, One, Signed, Zero};

use super::context;

/// Largest power of ten that is read. Beyond it a number has no value that could be compared.
const LARGEST_EXPONENT: i64 = 1_000_000;

/// Most digits that are read, since those of a binary number are computed in time by the square of the length.
const MOST_DIGITS: usize = 100_000;

/// Most digits of a fraction's parts and of a power, whose arithmetic takes time by the square of the length.
const LONGEST_FACTOR: u64 = 1000;

/// Fractions that are one character.
const VULGAR: [(char, &str); 9] = [
    ('½', " 1/2"),
    ('⅓', " 1/3"),
    ('⅔', " 2/3"),
    ('¼', " 1/4"),
    ('¾', " 3/4"),
    ('⅕', " 1/5"),
    ('⅛', " 1/8"),
    ('\u{2044}', "/"),
    ('\u{2215}', "/"),
];

/// What may stand between a thousand and its hundreds.
const SEPARATORS: [&str; 10] = [
    ",", ",\\!", "{,}", "\\,", "_", "'", "’", "\u{a0}", "\u{2009}", "\u{202f}",
];

const SUPERSCRIPTS: &str = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/// A number, exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Number {
    numerator: BigDecimal,
    /// Above 0.
    denominator: BigDecimal,
    /// The power of ten of the last digit that was written; `None` where the number is a fraction, or too long.
    last_digit: Option<i64>,
}

impl Number {
    fn whole(numerator: BigDecimal) -> Self {
        Self {
            numerator,
            denominator: BigDecimal::one(),
            last_digit: Some(0),
        }
    }

    fn negated(self) -> Self {
        Self {
            numerator: -self.numerator,
            ..self
        }
    }

    /// The number over another one; `None` over zero, and where that takes too long.
    fn over(&self, other: &Self) -> Option<Self> {
        let parts = [&self.numerator, &self.denominator, &other.numerator, &other.denominator];
        let short = parts.iter().all(|part| part.digits() <= LONGEST_FACTOR);
        (short && !other.numerator.is_zero()).then(|| Self {
            numerator: &self.numerator * &other.denominator,
            denominator: &self.denominator * &other.numerator,
            last_digit: None,
        })
    }

    /// Whether an answer is this number, the reference. Without a `tolerance`, a reference with decimals accepts what
    /// differs by at most half a unit of its last digit, and a whole number or a fraction only itself. A `tolerance` is
    /// the largest difference, relative to the reference.
    pub fn accepts(&self, answer: &Self, tolerance: Option<&BigDecimal>) -> bool {
        let difference = &answer.numerator * &self.denominator - &self.numerator * &answer.denominator;
        let allowed = match (tolerance, self.last_digit) {
            (Some(tolerance), _) => tolerance * self.numerator.abs(),
            (None, Some(last)) if !self.numerator.is_integer() => BigDecimal::new(5.into(), 1 - last),
            (None, _) => return difference.is_zero(),
        };
        difference.abs() <= allowed * &answer.denominator
    }
}

/// The decimal of a finite float, as it is written.
pub(super) fn decimal_of(float: f64) -> Option<BigDecimal> {
    let text: Vec<char> = format!("{float}").chars().collect();
    let number = Reader { text: &text, at: 0 }.plain()?;
    Some(number.numerator)
}

/// The number that a text ends up with: the only one in the last `\boxed{}`, or the first after the last `####`, or
/// the last in the text. Thousands' separators, units, currency signs and trailing periods do not matter. `None` too
/// where what counts is not a number that can be compared, such as a root, or where what stands around it makes
/// something else of it.
pub(super) fn number_in(text: &str) -> Option<Number> {
    if let Some(boxed) = last_boxed(text) {
        let text = characters(boxed);
        let [number] = &numbers(&text)[..] else { return None };
        let (left, right) = number.around(&text, 0, text.len());
        let is_alone = context::stands_alone(&left, &right) && !context::is_expression(&left, &right);
        return number.value.clone().filter(|_| is_alone);
    }
    let (text, is_first) = match text.rsplit_once("####") {
        Some((_, after)) => (characters(after), true),
        None => (characters(text), false),
    };
    let found = numbers(&text);
    let at = if is_first { 0 } else { found.len().checked_sub(1)? };
    let number = found.get(at)?;
    let before = at.checked_sub(1).map(|before| found[before].end);
    let after = found.get(at + 1).map(|after| after.start);
    let (left, right) = number.around(&text, 0, text.len());
    let (from, to) = number.around(&text, before.unwrap_or(0), after.unwrap_or(text.len()));
    let is_alone = context::stands_alone(&left, &right)
        && !(before.is_some() && context::connects(&from) || after.is_some() && context::connects(&to));
    number.value.clone().filter(|_| is_alone)
}

/// What stands in the last `\boxed{}`, braces balanced; with its opening brace, which a sign may follow.
fn last_boxed(text: &str) -> Option<&str> {
    let (_, after) = text.rsplit_once("\\boxed").or_else(|| text.rsplit_once("\\fbox"))?;
    let after = after.trim_start();
    if !after.starts_with('{') {
        return after.split_whitespace().next();
    }
    let mut depth = 0;
    for (at, character) in after.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&after[..at]);
        }
    }
    Some(after)
}

/// A text with one way of writing fractions, digits and minus signs.
fn characters(text: &str) -> Vec<char> {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match VULGAR.iter().find(|(vulgar, _)| *vulgar == character) {
            Some((_, spelt)) => plain.push_str(spelt),
            None if "\u{2212}\u{2010}\u{2011}\u{2012}\u{2013}\u{fe63}\u{ff0d}".contains(character) => plain.push('-'),
            // Full-width forms follow ASCII's order.
            None if ('\u{ff01}'..='\u{ff5e}').contains(&character) => {
                plain.extend(char::from_u32(u32::from(character) - 0xfee0));
            }
            None => plain.push(character),
        }
    }
    plain.chars().collect()
}

/// A number and where it stands in a text.
struct Found {
    start: usize,
    end: usize,
    /// `None` of one that cannot be compared.
    value: Option<Number>,
}

impl Found {
    /// What stands between `from` and it, and between it and `to`.
    fn around(&self, text: &[char], from: usize, to: usize) -> (String, String) {
        (
            text[from..self.start].iter().collect(),
            text[self.end..to].iter().collect(),
        )
    }
}

/// Every number of a text. Digits within a word are none.
fn numbers(text: &[char]) -> Vec<Found> {
    let mut reader = Reader { text, at: 0 };
    let mut found = vec![];
    while reader.at < text.len() {
        let start = reader.at;
        if reader.is_in_word() {
            reader.digits(&mut vec![]);
            continue;
        }
        match reader.signed() {
            Some(value) => found.push(Found {
                start,
                end: reader.at,
                value,
            }),
            None => reader.at = reader.at.max(start + 1),
        }
    }
    found
}

/// A power with a whole exponent; `None` where it is too long.
fn raised(number: &Number, exponent: i64) -> Option<Number> {
    let times = usize::try_from(exponent.unsigned_abs()).ok()?;
    let length = number.numerator.digits().checked_mul(times as u64)?;
    if length > LONGEST_FACTOR || number.last_digit?.checked_mul(exponent)?.abs() > LARGEST_EXPONENT {
        return None;
    }
    let numerator = (0..times).fold(BigDecimal::one(), |power, _| power * &number.numerator);
    let power = Number {
        numerator,
        denominator: BigDecimal::one(),
        last_digit: None,
    };
    match exponent < 0 {
        true => Number::whole(BigDecimal::one()).over(&power),
        false => Some(power),
    }
}

/// Whether a term with its sign follows this character.
fn begins_term(before: &char) -> bool {
    "=≈:({<>≤≥".contains(*before)
}

/// Reads a text from left to right. A method that finds nothing leaves the place as it was, but for [`Self::signed`],
/// which may skip what is no number.
#[derive(Clone, Copy)]
struct Reader<'a> {
    text: &'a [char],
    at: usize,
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
    fn signed(&mut self) -> Option<Option<Number>> {
        if self.skips_exponent() {
            return None;
        }
        let negative = self.attempt(Self::minus).is_some();
        if negative || self.attempt(Self::plus).is_some() {
            self.attempt(Self::currency);
        }
        let number = self.quantity()?;
        Some(number.map(|number| if negative { number.negated() } else { number }))
    }

    /// Whether digits begin here that name something, as in `H2O` and `x_{12}`.
    fn is_in_word(&self) -> bool {
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
    fn plain(&mut self) -> Option<Number> {
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
    fn digits(&mut self, digits: &mut Vec<u8>) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `answer` is taken for `reference`; `None` where the reference has no number.
    fn accepted(reference: &str, answer: &str) -> Option<bool> {
        let reference = number_in(reference)?;
        Some(number_in(answer).is_some_and(|answer| reference.accepts(&answer, None)))
    }

    #[test]
    fn the_number_that_counts_by_table() {
        for (text, number) in [
            ("42", "42"),
            ("The answer is 42.", "42"),
            ("**42**", "42"),
            ("first 3, then 7", "7"),
            ("12 + 30 = 42", "42"),
            ("x = -3", "-3"),
            ("x = - 3", "-3"),
            ("\u{2212}3 degrees", "-3"),
            ("\u{2013}3 degrees", "-3"),
            ("$1,234.50", "1234.5"),
            ("-$5", "-5"),
            ("-\\$5", "-5"),
            ("12,345,678 people", "12345678"),
            ("12{,}345{,}678", "12345678"),
            ("1\u{202f}234\u{202f}567", "1234567"),
            ("about .5", "0.5"),
            ("1.5e3 metres", "1500"),
            ("2e-3", "0.002"),
            ("6.5 \\times 10^{4}", "65000"),
            ("6.5 × 10⁴", "65000"),
            ("2*10^3", "2000"),
            ("2^{10}", "1024"),
            ("-2^2", "-4"),
            ("2**-2", "1/4"),
            ("25 cm^2", "25"),
            ("25\\text{ cm}^{2}", "25"),
            ("90^\\circ", "90"),
            ("x = +5", "5"),
            ("1.234.567", "1234567"),
            ("1'234'567", "1234567"),
            ("\\boxed{1,\\!000}", "1000"),
            ("3 × 10 ^ 2", "300"),
            ("２４", "24"),
            ("3 m2", "3"),
            ("\\boxed {7} 9", "7"),
            ("\\boxed{7\\text{ cm}^2}", "7"),
            ("\\boxed{x_1 = 7}", "7"),
            ("**Answer:** 18", "18"),
            ("so **5 apples**", "5"),
            ("2 + 1 = <<2+1=3>>3 bolts", "3"),
            ("<answer>18</answer>", "18"),
            ("18<|im_end|>", "18"),
            ("x \\approx 7", "7"),
            ("the 7th", "7"),
            ("Step 3: 7", "7"),
            ("18 km/h", "18"),
            ("15%", "15"),
            ("3kg", "3"),
            ("1/2", "2/4"),
            ("3 / 4", "0.75"),
            ("\\frac{1}{2}", "0.5"),
            ("-\\dfrac{3}{4}", "-0.75"),
            ("\\frac12", "0.5"),
            ("2 1/2", "2.5"),
            ("2\\frac{1}{2}", "2.5"),
            ("-2½", "-2.5"),
            ("reasons 1 2 3\n#### 1,000 apples in 2 baskets", "1000"),
            ("\\boxed{1} or rather \\boxed{\\text{about } {7}} 9", "7"),
            ("so \\boxed{8", "8"),
        ] {
            assert_eq!(accepted(number, text), Some(true), "{text:?} is {number}");
            assert_eq!(
                accepted(&format!("{number}1"), text),
                Some(false),
                "{text:?} is {number}"
            );
        }
        for text in [
            "\\boxed{none} 9",
            "####",
            "no number",
            "",
            "\\boxed{2\\sqrt{3}}",
            "3\\pi",
            "\\frac{\\sqrt{3}}{2}",
            "√2",
            "1/0",
            "1e99999999999999999999",
            "9^99999",
            "2^n",
            "NaN",
            "inf",
        ] {
            assert_eq!(number_in(text), None, "{text:?}");
        }
    }

    /// Seen with answers of which a part was taken for the whole: `3 or 4` for 4, `not 5` for 5, `1010_2` for 2.
    #[test]
    fn what_means_something_else_is_not_taken_for_its_number() {
        for text in [
            "5-3",
            "(5)-3",
            "5 - 3",
            "2+3",
            "2 \\times 3",
            "8 ÷ 4",
            "from 2–3",
            "3-4",
            "3~4",
            "3 ± 4",
            "3 or 4",
            "either 3 or 4",
            "between 3 and 4",
            "x = 2 or x = 3",
            "x = 2, x = 3",
            "5 out of 10",
            "(x, y) = (2, 3)",
            "1,2,3",
            "5; 6",
            "1234,567",
            "3,14",
            "1.234,5",
            "1,000,00",
            "12 345",
            "on 5/6/2024",
            "2024-01-15",
            "at 3:30",
            "v1.2.3",
            "192.168.0.1",
            "not 5",
            "it isn't 5",
            "it is 6, not 5",
            "x \\ne 5",
            "x > 5",
            "x >= 5",
            "less than 5",
            "minus 5",
            "-(5)",
            "\\boxed{{-}5}",
            "\\boxed{x+5}",
            "\\boxed{5n}",
            "\\boxed{2, 3}",
            "\\boxed{(-\\infty, 3)}",
            "\\boxed{5!}",
            "\\boxed{x^2}",
            "5i",
            "5\\infty",
            "5 million",
            "5k",
            "4 and a half",
            "1 and 1/2",
            "3 hours and 30 minutes",
            "H2O",
            "int16",
            "x_{12}",
            "0x10",
            "0xFF",
            "0b10",
            "1010_2",
            "0.\\overline{3}",
            "0.(3)",
            "2/x",
            "2\\pi/3",
            "\\sqrt[3]{8}",
            "sqrt(25)",
            "f(3)",
            "\\log_2 8",
            "\\lfloor 5.5 \\rfloor",
            "{1 \\over 2}",
            "\\binom{5}{2}",
            "half of 5",
            "3 mg per 100 ml",
            "4२",
            "Infinity",
            "IV",
        ] {
            assert_eq!(number_in(text), None, "{text:?}");
        }
        let long = "7".repeat(MOST_DIGITS + 1);
        for text in [&long, &format!("1/{long}"), "2 1e-999999999/3", "2 1/3e999999999"] {
            assert_eq!(number_in(text), None, "{text:.40}");
        }
    }

    /// Seen with rewards of 12345679 for 12345678 and of 1e-7 for 0, where the tolerance grew with the number and was
    /// not below 1e-6, and with fractions of which only the denominator was read.
    #[test]
    fn only_right_answers_are_accepted() {
        let long = "9".repeat(5000);
        let longer = format!("{}8", "9".repeat(4999));
        for (reference, right, wrong) in [
            ("12345678", "12,345,678.00", "12345679"),
            ("0", "-0.000", "1e-7"),
            ("0", "0%", "0.0000000000000000000000000000000001"),
            ("9007199254740992", "9007199254740992", "9007199254740993"),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
                "123456789012345678901234567891",
            ),
            (&long, &long, &longer),
            (
                "1e30",
                "1000000000000000000000000000000",
                "1000000000000000000000000000001",
            ),
            ("1.5e3", "1500", "1501"),
            ("42.0", "42", "42.04"),
            ("3.14", "3.14159", "3.146"),
            ("3.14", "3.1400001", "3.134"),
            ("3.140", "3.1405", "3.1406"),
            ("0.001", "0.0014", "0.0016"),
            ("1e-7", "0.0000001", "0"),
            ("1e-7", "1.2e-7", "2e-7"),
            ("-0.5", "-1/2", "0.5"),
            ("1000000.5", "1000000.5", "1000000.6"),
            ("1/3", "2/6", "0.3333333333333333"),
            ("1/2", "\\frac{1}{2}", "3/2"),
            ("\\frac{3}{4}", "0.75", "\\frac{1}{4}"),
            ("2 1/2", "5/2", "3 1/2"),
            ("7 \\times 10^3", "7000", "5 \\times 10^3"),
            ("2^{10}", "1024", "3^{10}"),
            ("25 cm^2", "25", "2"),
            ("-3", "= - 3", "3"),
        ] {
            assert_eq!(
                accepted(reference, right),
                Some(true),
                "{right:.40} for {reference:.40}"
            );
            assert_eq!(
                accepted(reference, wrong),
                Some(false),
                "{wrong:.40} for {reference:.40}"
            );
        }
    }

    #[test]
    fn a_tolerance_is_relative_to_the_reference() {
        let tolerance = decimal_of(1e-7).unwrap();
        for (reference, answer, expected) in [
            ("10000000", "10000001", true),
            ("10000000", "10000002", false),
            ("-1/3", "-0.33333333", true),
            ("-1/3", "-0.333333", false),
            ("0", "1e-30", false),
        ] {
            let (reference, answer) = (number_in(reference).unwrap(), number_in(answer).unwrap());
            assert_eq!(
                reference.accepts(&answer, Some(&tolerance)),
                expected,
                "{answer:?} for {reference:?}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(
            text in "(\\PC|[-0-9.,eE#$\\\\{}^/ *½⁵]|boxed|\\\\frac|\\\\times 10|\\\\sqrt){0,60}",
        ) {
            if let Some(number) = number_in(&text) {
                proptest::prop_assert!(number.accepts(&number, None), "{:?}", number);
            }
        }

        #[test]
        fn a_written_number_is_found_and_no_other_is_accepted(number: i64, other: i64) {
            let answer = format!("it is {number}.");
            proptest::prop_assert_eq!(accepted(&number.to_string(), &answer), Some(true));
            proptest::prop_assert_eq!(accepted(&other.to_string(), &answer), Some(number == other));
        }
    }
}
