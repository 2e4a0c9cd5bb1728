//! Which number a text ends with, and which answers a reference accepts.

use super::reader::MOST_DIGITS;
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
        ("minus 5", "-5"),
        ("The answer is negative 5.", "-5"),
        ("x equals **Minus 5**", "-5"),
        ("x = minus $5", "-5"),
        ("so:\nminus 1,000 degrees", "-1000"),
        ("\\boxed{minus 5}", "-5"),
        ("#### negative 1/2", "-0.5"),
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
        "ten minus 5",
        "3 minus 5",
        "x minus 5",
        "not minus 5",
        "non-negative 5",
        "minus minus 5",
        "minus -5",
        "minus5",
        "the sum of 3 and 4 minus 5",
        "from 3 to minus 5",
        "1 000",
        "\\boxed{1 000}",
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
