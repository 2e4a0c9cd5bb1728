//! The layer as a whole: expressions beside Python's own rendering of them, and templates that attack.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Dialect, TemplateError, Templates};

fn render(dialect: Dialect, source: &str, variables: &Map<String, Value>) -> Result<String, TemplateError> {
    let mut templates = Templates::new(dialect);
    templates.add("t", source)?;
    templates.render("t", variables)
}

#[derive(Deserialize)]
struct Table {
    variables: Map<String, Value>,
    cases: Vec<Expression>,
}

#[derive(Deserialize)]
struct Expression {
    template: String,
    text: Option<String>,
    /// An error here, not in Python.
    #[serde(default)]
    refused: bool,
}

#[test]
fn expressions_render_as_in_jinja2() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/chat_templates/jinja.json");
    let table: Table = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(table.cases.len() > 1000);
    let mut wrong = Vec::new();
    for case in &table.cases {
        let rendered = render(Dialect::Chat, &case.template, &table.variables);
        let expected = if case.refused { None } else { case.text.as_ref() };
        if rendered.as_ref().ok() != expected || (case.refused && case.text.is_none()) {
            let Expression {
                template,
                text,
                refused,
            } = case;
            wrong.push(format!(
                "{template}\n  {rendered:?}\n  Python: {text:?}, refused: {refused}"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} differ:\n{}",
        wrong.len(),
        table.cases.len(),
        wrong.join("\n")
    );
}

#[test]
fn hostile_templates_end() {
    // each would hang its call, or take all memory or the stack
    let nested_ranges = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let doubling = |what: &str| format!("{{% set n = namespace(a={what}) %}}{{% for i in range(200) %}}");
    let end = "{% endfor %}{{ n.a | length }}";
    let loops = (
        "{% for i in range(1000) %}{% for j in range(900) %}",
        "{% endfor %}{% endfor %}",
    );
    let nesting = |what: &str| {
        format!(
            "{{% set n = namespace(a=[1]) %}}{}{{% set n.a = {what} %}}{}",
            loops.0, loops.1
        )
    };
    let cases = [
        nested_ranges.to_owned(),
        doubling("'ab'") + "{% set n.a = n.a ~ n.a %}" + end,
        doubling("'ab'") + "{% set n.a = n.a + n.a %}" + end,
        doubling("'ab'") + "{% set n.a = n.a * 2 %}" + end,
        doubling("'ab'") + "{% set n.a %}{{ n.a }}{{ n.a }}{% endset %}" + end,
        doubling("'ab'") + "{% set n.a = n.a | replace('a', 'aa') %}" + end,
        doubling("'ab'") + "{% set n.a = [n.a, n.a] | join %}" + end,
        doubling("'ab'") + "{% set n.a = n.a.join([n.a, n.a]) %}" + end,
        doubling("'a\nb'") + "{% set n.a = n.a | indent(n.a | length) ~ '\n' ~ n.a %}" + end,
        doubling("'ab'") + "{% set n.a = '%s%s' | format(n.a, n.a) %}" + end,
        doubling("'ab'") + "{% set n.a = '{0}{0}'.format(n.a) %}" + end,
        doubling("[1]") + "{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a | tojson }}",
        doubling("[1]") + "{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a }}",
        doubling("[1]") + "{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a | string }}",
        doubling("[1]") + "{% set n.a = (n.a + n.a) | list %}" + end,
        "{{ 'a' * 10**9 }}".into(),
        "{{ [1] * 10**9 | list }}".into(),
        "{{ ([1] * 10**9) | list | length }}".into(),
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".into(),
        "{% macro m(n) %}{{ m(n) ~ m(n) }}{% endmacro %}{{ m(0) }}".into(),
        "{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}".into(),
        "{{ range(10**9) | list | length }}".into(),
        "{{ '%999999999d' | format(5) }}".into(),
        "{{ '%.999999999f' | format(5) }}".into(),
        "{{ 'a'.center(10**9) }}{{ 'a'.center(10**18) }}".into(),
        "{{ 'a'.ljust(10**9) }}".into(),
        "{{ 'a'.rjust(10**9, 'é') }}".into(),
        "{{ '5'.zfill(10**9) }}".into(),
        "{{ 'a' | center(10**9) }}".into(),
        "{{ 'a\tb'.expandtabs(10**9) }}".into(),
        "{{ 'a\nb' | indent(10**9) }}".into(),
        "{{ [1] | tojson(indent=10**9) }}".into(),
        "{{ 10 ** 10 ** 10 }}".into(),
        "{{ 5 | round(999999999) }}{{ 'a' * 10**9 }}".into(),
        "{{ [1] | batch(10**9, 0) | list }}".into(),
        "{{ [1] | slice(10**9) | list }}".into(),
        format!("{{{{ {}1{} }}}}", "(".repeat(10_000), ")".repeat(10_000)),
        "{% if 1 %}".repeat(100_000),
        // deep values and deep sources
        nesting("[n.a]"),
        nesting("(n.a,)"),
        nesting("{'a': n.a}"),
        nesting("dict(a=n.a)"),
        nesting("namespace(a=n.a)"),
        nesting("[n.a] | batch(1)"),
        nesting("[n.a] | reverse"),
        nesting("[n.a][:1]"),
        nesting("n.a.items"),
        nesting("n"),
        nesting("[n.a] | map('list')"),
        "{% set n = namespace(a=1) %}{% for i in range(99999) %}{% set n.a = loop %}{% endfor %}".into(),
        "{% set a = [a] %}".repeat(20_000),
        "{% macro m(a, n) %}{{ m([[[[[[[[[[a]]]]]]]]]], n + 1) if n < 99999 }}{% endmacro %}{{ m(1, 0) }}".into(),
        "{% for a in [[a, a]] %}".repeat(60) + &"{% endfor %}".repeat(60),
        format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "+ ".repeat(100_000)),
        format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(100_000)),
        format!("{{{{ 1{} }}}}", " if 1".repeat(100_000)),
        format!("{{{{ 1{} }}}}", " and 1".repeat(100_000)),
        format!("{{{{ 1{} }}}}", " or 1".repeat(100_000)),
        format!("{{{{ 1{} }}}}", " | list".repeat(100_000)),
        format!("{{{{ 1{} }}}}", " is odd".repeat(100_000)),
        format!("{{{{ a{} }}}}", ".b".repeat(100_000)),
        format!("{{{{ a{} }}}}", "['b']".repeat(100_000)),
        format!("{{{{ a{} }}}}", "()".repeat(100_000)),
        format!("{{{{ {} }}}}", "a(".repeat(100_000)),
        format!("{{{{ {} }}}}", "[".repeat(100_000)),
        format!("{{{{ {} }}}}", "{'a':".repeat(100_000)),
        format!("{{{{ 1{} }}}}", "{% if 1 %}".repeat(100_000)),
        "{% for a in b %}".repeat(100_000),
        "{% if 0 %}".to_owned() + &"{% elif 0 %}".repeat(80_000) + "{{ 1 / 0 }}{% endif %}",
        "x".repeat(2_000_000),
        // long texts and long sequences
        "{{ '{:>999999999}'.format(5) }}".into(),
        "{{ '{:.999999999f}'.format(5) }}".into(),
        "{{ '{:.99999}'.format('a') ~ '{:99999999999999999999}'.format(5) }}".into(),
        "{{ '%.999999999f' % 5 }}".into(),
        "{{ '%999999999d' % 5 }}".into(),
        "{{ '%.999999999d' % 5 }}".into(),
        "{{ '%*d' % (999999999, 5) }}".into(),
        "{{ '{:e}'.format(5) ~ '{:.99999e}'.format(5) }}".into(),
        doubling("'ab'") + "{% set n.a = n.a.replace('a', 'aa') %}" + end,
        doubling("'ab'") + "{% set n.a = n.a.replace('', n.a) %}" + end,
        doubling("'ab'") + "{% set n.a = '%s%s' % (n.a, n.a) %}" + end,
        doubling("'ab'") + "{% set n.a = n.a.split('') | join(n.a) %}" + end,
        doubling("[1]") + "{% set n.a = [n.a, n.a] %}{% endfor %}{{ 'x' ~ n.a }}",
        doubling("[1]") + "{% set n.a = n.a + n.a %}{% endfor %}{{ n.a | list }}",
        doubling("[1]") + "{% set n.a = [n.a, n.a] | sum(start=[]) %}" + end,
        doubling("[1]") + "{% set n.a = n.a * 2 %}" + end,
        doubling("(1,)") + "{% set n.a = n.a + n.a %}" + end,
        doubling("[1]") + "{% set n.a = {'a': n.a, 'b': n.a} %}{% endfor %}{{ n.a == n.a }}",
        "{% set a = 'ab' * 1000000 %}{% for i in range(99999) %}{{ a in a ~ 'c' }}{% endfor %}".into(),
        "{% set a = 'ab' * 1000000 %}{% for i in range(99999) %}{{ a[::2] | length }}{% endfor %}".into(),
        "{% set a = 'ab' * 1000000 %}{% for i in range(99999) %}{% if a.upper() %}{% endif %}{% endfor %}".into(),
        "{% set a = 'ab' * 1000000 %}{% for i in range(99999) %}{% if a == a ~ '' %}{% endif %}{% endfor %}".into(),
        "{% set a = range(99999) | list %}{% for i in a %}{{ i in a }}{% endfor %}".into(),
        "{% set a = range(99999) | list %}{% for i in a %}{{ a.index(99998) }}{{ a | length }}{% endfor %}".into(),
        "{% set a = range(99999) | list %}{% for i in a %}{{ a | unique | first }}{% endfor %}".into(),
        "{% set a = range(99999) | list %}{% for i in a %}{{ (a | map('string') | list)[0] }}{% endfor %}".into(),
    ];
    let end = |source: &String| {
        let rendered = render(Dialect::Chat, source, &Map::new());
        let length = rendered.map(|text| text.len());
        assert!(length.is_err(), "{source:.200}: {length:?}");
    };
    let (some, others) = cases.split_at(cases.len() / 2);
    std::thread::scope(|scope| {
        scope.spawn(|| some.iter().for_each(end));
        others.iter().for_each(end);
    });
}

/// Each right side is what Jinja2 renders with `StrictUndefined`; `None` is an error.
#[test]
fn undefined_names_are_errors_where_jinja2_is_strict() {
    let rendered = [
        ("{{ m | default('d') }}", "d"),
        ("{{ q.zz | default('d') }}", "d"),
        ("{{ m is defined }}", "False"),
        ("{% if m is defined and m %}a{% endif %}", ""),
        ("{{ 1 if false }}", ""),
        ("{{ m is string }}", "False"),
        ("{{ m is none }}", "False"),
        ("{{ m is sequence }}", "False"),
        ("{% set x = m %}a", "a"),
        ("{{ [m] | length }}", "1"),
        ("{{ q.l[0] }}", "1"),
        ("{% if q %}\n  {% if q %}\na{% endif %}{% endif %}\n", "\n  \na"),
    ];
    let refused = [
        "m",
        "m.x",
        "q.zz",
        "q.zz.y",
        "q['zz']",
        "q.l[9]",
        "m[1:]",
        "'abc'[m]",
        "m ~ 'a'",
        "m + 1",
        "-m",
        "m == 1",
        "m < 1",
        "'a' in m",
        "m or 'x'",
        "m and 'x'",
        "not m",
        "m is iterable",
        "'%s' % m",
        "'{}'.format(m)",
        "m.split(',')",
        "','.join(m)",
        "','.join([m])",
        "[m] | join",
        // Jinja2 renders `Undefined`, which is useless in a prompt
        "[q.zz]",
        "m | pprint",
        "m | items | list",
    ];
    let filters = [
        "abs",
        "batch(2) | list",
        "capitalize",
        "center(5)",
        "dictsort",
        "escape",
        "first",
        "float",
        "groupby('x')",
        "indent",
        "int",
        "join",
        "last",
        "length",
        "list",
        "lower",
        "map('upper') | list",
        "min",
        "replace('a', 'b')",
        "reverse",
        "round",
        "select | list",
        "slice(2) | list",
        "sort",
        "string",
        "sum",
        "title",
        "tojson",
        "trim",
        "truncate(5)",
        "unique | list",
        "upper",
        "urlencode",
        "wordcount",
    ];
    let statements = [
        "{% if m %}a{% endif %}",
        "{% for x in m %}a{% endfor %}",
        "{% set x = m %}{{ x }}",
    ];
    let expressions = refused.iter().map(|expression| format!("{{{{ {expression} }}}}"));
    let filtered = filters.iter().map(|filter| format!("{{{{ m | {filter} }}}}"));
    let errors = expressions.chain(filtered).chain(statements.map(String::from));
    let variables = serde_json::from_str(r#"{"q": {"l": [1]}}"#).unwrap();
    let texts = rendered.map(|(source, text)| (source.to_owned(), Some(text)));
    let wrong: Vec<_> = texts
        .into_iter()
        .chain(errors.map(|source| (source, None)))
        .filter_map(|(source, expected)| {
            let rendered = render(Dialect::Job, &source, &variables).ok();
            (rendered.as_deref() != expected).then(|| format!("{source}: {rendered:?}, not {expected:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Both dialects have the same limits: each line is refused by one of them.
#[test]
fn jobs_have_the_limits_of_chat_templates() {
    let one = serde_json::from_str(r#"{"l": [1]}"#).unwrap();
    let growing = |what: &str| {
        format!("{{% set n = namespace(a=l) %}}{{% for i in range(99999) %}}{{% set n.a = {what} %}}{{% endfor %}}")
    };
    let cases = [
        ("x".repeat(2_000_000), "allowed are 1048576"),
        (
            format!("{{{{ {}1{} }}}}", "(".repeat(10_000), ")".repeat(10_000)),
            "within one another",
        ),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".into(),
            "steps",
        ),
        (growing("[n.a]"), "nested deeper than 100 levels"),
        // what is copied counts, so that growing by one is not quadratic in the time it takes
        (growing("n.a + [i]"), "steps"),
        (growing("n.a + l"), "steps"),
        (growing("(n.a | list) + l"), "steps"),
        (growing("n.a ~ 'abcdefghijklmnopqrstuvwxyz'"), "steps"),
    ];
    for dialect in [Dialect::Chat, Dialect::Job] {
        for (source, part) in &cases {
            let error = render(dialect, source, &one).map(|text| text.len()).unwrap_err();
            assert!(error.to_string().contains(part), "{source:.200}: {error}");
        }
    }
}

#[test]
fn the_date_is_known() {
    let year = render(Dialect::Chat, "{{ strftime_now('%Y') }}", &Map::new()).unwrap();
    assert!(year.parse::<u32>().unwrap() >= 2025, "{year}");
}
