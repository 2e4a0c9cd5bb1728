"""Makes tests/fixtures/chat_templates/jinja.json: small templates as `transformers` renders them.

    pip install torch transformers jinja2
    python tests/reference/make_jinja.py

A case whose text is null is an error in Python. Those of jinja_refused.json are errors here only, which say why.
"""

import json
import pathlib

from transformers.utils.chat_template_utils import _compile_jinja_template

FIXTURE = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "chat_templates" / "jinja.json"

VARIABLES = json.loads(r"""{
  "i": 7, "zero": 0, "neg": -7, "f": 2.5, "one": 1.0, "tiny": 1e-7, "huge": 1e22,
  "negzero": -0.0, "t": true, "no": false, "nil": null, "s": "Hello World", "empty": "", "pad": "  a b \n",
  "uni": "Grüße 東京 👩 İß", "quote": "it's \"q\"\n\\", "lines": "a\nb\r\nc\n", "html": "<a href='x'>&</a>",
  "l": [3, 1, 2], "ll": [[1, 2], ["a", null]], "words": ["b", "A", "c", "a"], "mixed": [1, "a", null, true, 2.5],
  "d": {"b": 1, "a": 2, "C": null}, "e": {}, "el": [],
  "people": [{"n": "Zoe", "a": 3, "x": {"y": 1}}, {"n": "adam", "a": 1, "x": {"y": 2}}, {"n": "Bo", "a": 3, "x": {"y": 1}}],
  "keyed": {"items": 5, "get": 6, "keys": [1], "x y": 7}
}""")

KINDS = ["i", "f", "t", "nil", "s", "l", "d", "e", "undef", "range(3)", "(1, 2)", "d.items()", "12345678901234567890123", "namespace()", "joiner", "s.upper", "l|map('abs')"]
TESTS = ["defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping", "sequence", "iterable", "callable"]

# Expressions, apart by ¦.
EXPRESSIONS = r"""
i / 2 ¦ 7 // 2 ¦ -7 // 2 ¦ 7 % 3 ¦ -7 % 3 ¦ 7 % -3 ¦ 7.5 // 2 ¦ -7.5 % 2 ¦ 2 ** 10 ¦ 2 ** -1 ¦ 2 ** 0.5 ¦ 6 / 3
7 / 2 ¦ 1 + 1.0 ¦ 3 * 1.5 ¦ 10 - 2.5 ¦ 1e22 ¦ 1.0 ¦ 1e-7 ¦ -0.0 ¦ 1e16 ¦ 123456789012345.0 ¦ 1e15 ¦ 0.1 + 0.2 ¦ 1_000
0x1f ¦ 0b101 ¦ 0o17 ¦ huge ¦ one ¦ tiny ¦ negzero ¦ 12345678901234567890123 ¦ 12345678901234567890123 + 1 ¦ 12345678901234567890123 * 10 ¦ 2 ** 64 ¦ 2 ** 63
18446744073709551615 ¦ 18446744073709551616 ¦ -9223372036854775809 ¦ [1.0, 1e22, 12345678901234567890123, none, true, 'a']
{'a': 1.0, 'b': [none]} ¦ (1, 'a') ¦ (1,) ¦ () ¦ [] ¦ {} ¦ true ¦ none ¦ [quote] ¦ ['\t', 'é', '\x00'] ¦ 1 / 0 ¦ 1 % 0
1 // 0 ¦ 1.0 / 0 ¦ 1e308 * 10 ¦ -1e308 * 10 ¦ 1e308 * 10 - 1e308 * 10 ¦ true + 1 ¦ true * 3 ¦ -true ¦ +i ¦ not i
not nil ¦ not '' ¦ i + 'a' ¦ 'a' + 1 ¦ 'a' + nil ¦ 'a' * 3 ¦ 3 * 'a' ¦ 'a' * -1 ¦ [1] * 2 ¦ [1] + [2] ¦ (1,) + (2,)
[1] + (2,) ¦ {} + {} ¦ 'a' ~ 1 ~ none ~ 1.0 ~ true ¦ 'a' ~ [1, 'b'] ~ undef ¦ 1 < 2 ¦ 1 < 2 < 3 ¦ 1 < 3 < 2 ¦ 1 == 1.0
1 == true ¦ '1' == 1 ¦ none == false ¦ 'a' < 'b' ¦ [1, 2] < [1, 3] ¦ 1 < 'a' ¦ none < 1 ¦ 'a' in 'abc'
'x' not in 'abc' ¦ 1 in [1.0] ¦ 'b' in d ¦ 1 in d ¦ 1 in 'a' ¦ 1 in nil ¦ 'a' in undef ¦ (1, 2) == (1, 2)
[1, 2] == (1, 2) ¦ {'a': 1} == {'a': 1.0} ¦ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} ¦ 1 if t else 2 ¦ 1 if no
(1 if no) is undefined ¦ nil or 'x' ¦ '' and 1 ¦ 0 or none ¦ 1 and 2 ¦ not 1 == 2 ¦ i is odd and t ¦ 1 ~ 2 + 3
2 + 3 * 4 ** 2 ¦ -2 ** 2 ¦ 2 ** 3 ** 2 ¦ (2 ** 3) ** 2 ¦ 'a' 'b' ¦ 5 if 1 else 3 / 0 ¦ 2 ** 200 ¦ 2 ** 100 ¦ s[0]
s[-1] ¦ s[1:3] ¦ s[::-1] ¦ s[::2] ¦ s[-3:] ¦ s[:-3] ¦ s[10:2:-2] ¦ s[99] ¦ l[0] ¦ l[-1] ¦ l[5] ¦ l[1:] ¦ l[::-1]
l[:-1] ¦ l[-2:] ¦ l[::0] ¦ l['a'] ¦ (1, 2, 3)[1:] ¦ (1, 2)[0] ¦ d['b'] ¦ d.b ¦ d['zz'] ¦ d.zz ¦ d.zz.y ¦ nil.x
undef.x ¦ undef ¦ s.zz ¦ uni[6] ¦ uni[7:9] ¦ range(5)[1:3] ¦ d.items()[0] ¦ l.0 ¦ l[true] ¦ l[1.0] ¦ s[1:'a']
d.items() ¦ d.keys() ¦ d.values() ¦ d.items() | list ¦ d | items | list ¦ d | list ¦ d | length ¦ d.get('b')
d.get('zz') ¦ d.get('zz', 5) ¦ d.get('C', 5) ¦ keyed.items ¦ keyed['items'] ¦ keyed.get ¦ keyed['x y'] ¦ d.copy()
d.pop('b') ¦ d.update({'x': 1}) ¦ l.append(4) ¦ l.index(2) ¦ l.index(9) ¦ l.count(1) ¦ l.copy() ¦ l.pop()
l.reverse() ¦ (1, 2).index(2) ¦ (1, 2, 1).count(1) ¦ d.keys() | first ¦ 'b' in d.keys() ¦ d.items() | length
{'a': 1}.items() | list ¦ s.upper() ¦ s.lower() ¦ s.title() ¦ s.capitalize() ¦ s.swapcase() ¦ s.casefold()
s.strip('Hd') ¦ pad.strip() ¦ pad.lstrip() ¦ pad.rstrip() ¦ s.replace('l', 'L') ¦ s.replace('l', 'L', 1)
s.replace('', '-') ¦ s.split() ¦ s.split('o') ¦ s.split('o', 1) ¦ s.split('o', maxsplit=1) ¦ s.rsplit('o', 1)
s.rsplit() ¦ s.split('') ¦ pad.split() ¦ pad.split(' ') ¦ pad.rsplit(none, 1) ¦ lines.splitlines()
lines.splitlines(true) ¦ s.startswith('He') ¦ s.startswith(('x', 'H')) ¦ s.startswith('W', 6) ¦ s.endswith('ld')
s.endswith(('x', 'ld')) ¦ s.find('o') ¦ s.find('o', 5) ¦ s.find('zz') ¦ s.rfind('o') ¦ s.index('o') ¦ s.index('zz')
s.rindex('o') ¦ s.count('l') ¦ s.count('l', 4) ¦ s.count('') ¦ uni.find('東') ¦ uni.count('ß')
s.removeprefix('Hello ') ¦ s.removeprefix('x') ¦ s.removesuffix('World') ¦ s.removesuffix('x') ¦ s.partition(' ')
s.partition('x') ¦ s.rpartition('o') ¦ s.rpartition('x') ¦ s.join(['a', 'b']) ¦ ', '.join(words) ¦ ','.join([1])
''.join([]) ¦ s.zfill(15) ¦ '-5'.zfill(4) ¦ s.center(15) ¦ s.center(16, '*') ¦ s.ljust(13, '.') ~ '|' ¦ s.rjust(13)
'a\tb'.expandtabs(4) ¦ s.isalpha() ¦ 'abc'.isalpha() ¦ 'a1'.isalnum() ¦ '12'.isdigit() ¦ '²'.isdigit()
'½'.isnumeric() ¦ '½'.isdigit() ¦ '12'.isdecimal() ¦ 'ab'.islower() ¦ 'AB'.isupper() ¦ ' '.isspace() ¦ 'Ab'.istitle()
'a'.isascii() ¦ 'a_1'.isidentifier() ¦ 'a\n'.isprintable() ¦ s.encode('utf-8') ¦ uni.upper() ¦ uni.lower()
'ǆ'.title() ¦ "they're bill's".title() ¦ 'ΑΣ'.lower() ¦ s.nothing() ¦ 'ab'.translate({97: 'x'})
s.maketrans('a', 'b') ¦ '{} {}'.format(1, 'a') ¦ '{1} {0}'.format(1, 2) ¦ '{a}'.format(a=3)
'{:>5}|{:<5}|{:^5}'.format(1, 'a', 2) ¦ '{:05.2f}'.format(3.14159) ¦ '{:,}'.format(1234567)
'{:x} {:b} {:o} {:#x}'.format(255, 5, 8, 255) ¦ '{:.3}'.format('abcdef') ¦ '{!r}'.format('a') ¦ '{{}}'.format()
'{}'.format() ¦ '{:e}'.format(12345.678) ¦ '{:%}'.format(0.5) ¦ '{:+d}'.format(5) ¦ '{:*^9}'.format('mid')
'{:d}'.format('a') ¦ '{0[a]}'.format({'a': 1}) ¦ '{:g}'.format(1e10) ¦ '{}'.format([1, 'a', none])
'%s and %s' % ('a', 1) ¦ '%d' % 5.7 ¦ '%05d' % 42 ¦ '%.2f' % 3.14159 ¦ '%5s|%-5s|' % ('a', 'b')
'%x %X %o' % (255, 255, 8) ¦ '%%' % () ¦ '%s' % 'a' ¦ '%s' % [1, 2] ¦ '%r' % 'a' ¦ '%(a)s %(b)d' % {'a': 'x', 'b': 2}
'%e' % 12345.678 ¦ '%g' % 0.00001 ¦ '%+d' % 3 ¦ '%c' % 'x' ¦ '%s %s' % 'a' ¦ '%s' % ('a', 'b') ¦ '%d' % 'a'
'%s' % none ¦ '%s' % 1.0 ¦ '%s' % d ¦ '%3d%%' % 50 ¦ '%.3s' % 'abcdef' ¦ '%s' % (none,) ¦ '%i' % true ¦ 'a' % d
'%*d' % (5, 3) ¦ '%s-%s' | format('a', 2) ¦ '%(x)s' | format(x=1) ¦ '%.1f' | format(2.25) ¦ '%s' | format(none)
l | length ¦ s | length ¦ nil | length ¦ i | length ¦ undef | length ¦ uni | length ¦ l | first ¦ el | first
s | first ¦ l | last ¦ l | min ¦ l | max ¦ words | max ¦ words | min ¦ people | max(attribute='a') ¦ el | min
l | sum ¦ people | sum(attribute='a') ¦ l | sum(start=10) ¦ l | reverse | list ¦ s | reverse ¦ l | reverse ¦ l | sort
words | sort ¦ words | sort(case_sensitive=true) ¦ words | sort(reverse=true)
people | sort(attribute='a') | map(attribute='n') | list
people | sort(attribute='x.y,n') | map(attribute='n') | list ¦ mixed | sort ¦ d | dictsort ¦ d | dictsort(by='value')
{'b': 1, 'A': 2} | dictsort ¦ {'b': 1, 'A': 2} | dictsort(true) ¦ {'b': 2, 'A': 1} | dictsort(false, 'value')
{'b': 2, 'A': 1} | dictsort(reverse=true) ¦ words | unique | list ¦ words | unique(true) | list
people | unique(attribute='a') | map(attribute='n') | list ¦ l | join ¦ l | join(', ')
people | join(', ', attribute='n') ¦ mixed | join('-') ¦ el | join(',') ¦ s | join(',') ¦ nil | join
words | map('upper') | list ¦ people | map(attribute='n') | join(',') ¦ people | map(attribute='zz') | list
people | map(attribute='zz', default='-') | list ¦ people | map(attribute='x.y') | list ¦ ll | map(attribute=0) | list
ll | map('first') | list ¦ words | map('replace', 'a', 'x') | list ¦ l | map('string') | list
l | select('odd') | list ¦ l | reject('odd') | list ¦ mixed | select | list ¦ mixed | select('string') | list
l | select('>', 1) | list ¦ l | select('in', [1, 2]) | list
people | selectattr('a', 'equalto', 3) | map(attribute='n') | list ¦ people | selectattr('a', '==', 1) | list | length
people | selectattr('zz') | list ¦ people | selectattr('zz', 'defined') | list
people | rejectattr('a', 'eq', 3) | map(attribute='n') | list
people | selectattr('x.y', 'eq', 1) | map(attribute='n') | list ¦ people | groupby('a') | list | length
people | groupby('n') | map(attribute='grouper') | list ¦ people | groupby('n') | map('first') | list
people | groupby('zz', default=1) | list | length ¦ range(7) | batch(3) | list ¦ range(7) | batch(3, 0) | list
range(7) | slice(3) | list ¦ range(7) | slice(3, 'x') | list ¦ range(5) | list ¦ range(2, 9, 3) | list
range(5, 0, -2) | list ¦ range(0) | list ¦ range(3) ¦ range(1, 3) ¦ range(1, 9, 2) ¦ range(1, 5, 0) ¦ range('a')
range(3) | length ¦ 2 in range(3) ¦ range(3)[1] ¦ range(3) | last ¦ range(1.5) ¦ '42' | int ¦ 'x' | int ¦ 'x' | int(5)
'3.9' | int ¦ 3.9 | int ¦ -3.9 | int ¦ nil | int ¦ '0x1f' | int(0, 16) ¦ 'ff' | int(0, 16) ¦ '0b11' | int(base=2)
'1_0' | int ¦ ' 7 ' | int ¦ '' | int ¦ true | int ¦ undef | int ¦ '12345678901234567890123' | int ¦ 1e22 | int
l | int ¦ '1e3' | int ¦ 'nan' | int ¦ '42' | float ¦ 'x' | float ¦ 'x' | float(1.5) ¦ '1e3' | float ¦ 'inf' | float
'nan' | float ¦ 'Infinity' | float ¦ '-inf' | float ¦ 7 | float ¦ nil | float ¦ true | float ¦ '1_0.5' | float
12345678901234567890123 | float ¦ ' 1.5 ' | float ¦ 2.567 | round ¦ 2.567 | round(2) ¦ 2.5 | round ¦ 3.5 | round ¦ 2.675 | round(2)
7 | round ¦ 1234 | round(-2) ¦ 1234.5 | round(-2) ¦ 2.1 | round(0, 'ceil') ¦ 2.9 | round(0, 'floor')
2.123 | round(2, 'ceil') ¦ -2.5 | round ¦ 2.5 | round(method='down') ¦ -5 | abs ¦ -2.5 | abs ¦ 's' | abs
'a' | default('b') ¦ undef | default('b') ¦ nil | default('b') ¦ nil | default('b', true) ¦ '' | d('x', boolean=true)
undef | d ¦ no | default(1) ¦ undef.x | default(1) ¦ d.zz | default(1) ¦ d.zz.y | default(1) ¦ 0 | default('x', true)
s | upper ¦ s | lower ¦ 'hello wORLD-foo bar's' | title ¦ "it's a-b (c)" | title ¦ 'hELLO' | capitalize ¦ nil | upper
1 | upper ¦ pad | trim ~ '|' ¦ s | trim('Hd') ¦ nil | trim ¦ 'xaxx' | trim('x') ¦ s | replace('o', '0')
s | replace('o', '0', 1) ¦ s | replace('o', '0', count=1) ¦ i | replace('7', '8') ¦ s | list ¦ nil | list ¦ i | list
i | string ¦ 1.0 | string ¦ nil | string ¦ l | string ¦ undef | string ~ '|' ¦ s | wordcount ¦ uni | wordcount
'<b>' + html | safe ¦ (html | safe) + '<b>' ¦ ('<b>' | safe) + (html | safe) ¦ (html | e) + html ¦ (html | safe) ~ '<b>' ¦ '<' + (l | tojson | safe) ¦ (html | safe) + 1 ¦ (html | safe) % 1
html | striptags ¦ '<p>a  b</p><!-- c --> d' | striptags ¦ html | escape ¦ html | e ¦ html | safe ¦ html | forceescape
html | string ¦ 'a & b' | urlencode ¦ 'a/b?c=é' | urlencode ¦ {'a': 1, 'b c': 'é'} | urlencode
[('a', 1)] | urlencode ¦ 'a\nb\n' | indent ~ '|' ¦ 'a\nb\n\nc' | indent(2) ¦ 'a\nb' | indent(2, true)
'a\nb\n\nc' | indent(2, first=true, blank=true) ¦ 'a\nb' | indent(width=3) ¦ 'a\nb' | indent('> ')
'a\nb' | indent('> ', true) ¦ '' | indent(2, true) ~ '|' ¦ 'a' | indent(first=true) ¦ 'a\r\nb' | indent(2)
'\n' | indent(2, true) ~ '|' ¦ 'a\n' | indent(2, blank=true) ~ '|' ¦ s | truncate(5) ¦ s | truncate(5, true)
s | truncate(11) ¦ s | truncate(8, true, '') ¦ s | truncate(8, false, '…', 0) ¦ s | truncate(length=9, leeway=0)
'foo bar baz qux' | truncate(9) ¦ 'foo bar baz qux' | truncate(9, true)
'foo bar baz qux' | truncate(11, false, '...', 0) ¦ s | truncate(2) ¦ s | center(15) ~ '|' ¦ s | center(14) ~ '|'
s | center | length ¦ 'abc' | center(6) ~ '|' ¦ 'the quick brown fox jumps' | wordwrap(10)
'the quick brown fox' | wordwrap(7, true, '|') ¦ 'abcdefghijkl mn' | wordwrap(5)
'abcdefghijkl mn' | wordwrap(5, false) ¦ 'a-b-c d' | wordwrap(3) ¦ 'aa bb\ncc dd' | wordwrap(4)
'aa  bb' | wordwrap(2, wrapstring='/') ¦ 'abcdefgh' | wordwrap(3, true, '\n', false) ¦ 123 | filesizeformat
1234567 | filesizeformat ¦ 1234567 | filesizeformat(true) ¦ 1 | filesizeformat
{'class': 'a b', 'id': none, 'x': 1} | xmlattr ¦ {'a b': 1} | xmlattr ¦ s | pprint ¦ l | pprint
'see http://a.b/c' | urlize ¦ l | random | length ¦ people | map(attribute='n') | map('lower') | sort | join(' ')
d | attr('b') ¦ s | attr('upper') ¦ people | first | attr('n') ¦ 'x' | nofilter ¦ i is notest ¦ l | count
undef | join(',') ¦ undef | list ¦ undef | upper ¦ undef | trim ~ '|' ¦ l | items ¦ d | items | first
undef | items | list ¦ s | items ¦ d | tojson ¦ l | tojson ¦ nil | tojson ¦ t | tojson ¦ s | tojson ¦ uni | tojson
html | tojson ¦ mixed | tojson ¦ 12345678901234567890123 | tojson ¦ huge | tojson ¦ tiny | tojson ¦ negzero | tojson
d | tojson(indent=2) ¦ ll | tojson(indent=2) ¦ e | tojson(indent=2) ¦ d | tojson(separators=(',', ':'))
d | tojson(sort_keys=true) ¦ uni | tojson(ensure_ascii=true) ¦ d | tojson(true) ¦ d | tojson(indent='--')
d | tojson(indent=0) ¦ (1, 2) | tojson ¦ 'inf' | float | tojson ¦ 'nan' | float | tojson ¦ undef | tojson
range(3) | tojson ¦ d.items() | tojson ¦ d.items() | list | tojson ¦ {1: 2, none: 3, true: 4, 1.5: 5} | tojson
s.upper | tojson ¦ 1.0 | tojson ¦ 100 | tojson ¦ quote | tojson ¦ [quote, empty] | tojson ¦ l | map('string') | tojson
l | map('string') | list | tojson ¦ 2 is even ¦ 3 is even ¦ 4 is divisibleby 2 ¦ 4 is divisibleby(3)
4 is divisibleby 0 ¦ 'a' is lower ¦ 'A' is upper ¦ 1 is sameas 1 ¦ true is sameas true ¦ nil is sameas none
1 is eq 1 ¦ 1 is equalto(1) ¦ 1 is ne 2 ¦ 1 is lt 2 ¦ 1 is le 1 ¦ 1 is gt 0 ¦ 2 is ge 3 ¦ 1 is greaterthan 0
1 is lessthan 2 ¦ 'a' is in 'abc' ¦ 1 is in [1] ¦ 'upper' is filter ¦ 'nofilter' is filter ¦ 'odd' is test
'a' is escaped ¦ i is not none ¦ not i is none ¦ i is not defined ¦ d.b is defined ¦ d.zz is defined
d['zz'] is not defined ¦ undef.x is defined ¦ 1.5 is odd ¦ 's' is odd ¦ nil is odd ¦ 2.0 is even ¦ true is odd
true is number ¦ true is integer ¦ uni | upper ¦ uni | lower ¦ uni | title ¦ uni | capitalize ¦ uni | first
uni | last ¦ uni[::-1] ¦ uni | list | length ¦ 'é' == 'é' ¦ '\u00e9' ¦ '\x41' ¦ '\101' ¦ 'a\'b' ¦ "a\"b" ¦ 'a\\nb'
'a\qb' ¦ 'tab\tx' ¦ '\N{BULLET}' ¦ '𝒳'|length ¦ dict(a=1, b=2) ¦ dict({'a': 1}, b=2) ¦ dict([('a', 1)]) ¦ dict()
dict(d, b=5) ¦ dict.fromkeys(['a']) ¦ namespace(a=1).a ¦ namespace({'a': 1}).a ¦ namespace(a=1).zz
lipsum(1, false) | length > 5 ¦ cycler('a', 'b').next() ¦ joiner(', ')() ~ '|' ¦ raise_exception('no')
strftime_now('%Y') | length ¦ strftime_now('%%') ¦ nofunction() ¦ s() ¦ d.zz() ¦ undef() ¦ s.upper
s.upper is callable ¦ range is callable ¦ raise_exception is callable ¦ dict is callable ¦ namespace is callable
[1, 2, 3] | select('gt', 1) | sum ¦ {'a': {'b': [1, {'c': 2}]}}.a.b[1].c ¦ {'a': 1}['a'] ¦ [1, 2][1] ¦ 'abc'[1]
(1, 2, 3) | length ¦ {1: 'a'}[1] ¦ {'x': 1, **d} ¦ [*l] ¦ {'a': 1, 'a': 2} ¦ {none: 1} ¦ {true: 1, 1: 2}
l == [3, 1, 2] ¦ [[1]] == [[1.0]] ¦ not l ¦ not el ¦ not e ¦ not 0.0 ¦ not '0' ¦ l and 1 ¦ (el or e) ¦ [undef]
[undef] | tojson ¦ {'a': undef} ¦ (undef,) ¦ [nil, undef] | join(',') ¦ i.real ¦ i.bit_length() ¦ f.is_integer()
f.hex() ¦ t.real ¦ (5).__class__ ¦ s.__class__ ¦ d.__class__ ¦ s.__len__() ¦ loop ¦ self ¦ caller ¦ varargs ¦ true.x
True ¦ None ¦ False ¦ TRUE ¦ NONE ¦ nil is None
'%5.1f|%-8s|%08.3f' % (2.25, 'ab', -3.14159) ¦ '%#x %#o' % (255, 8) ¦ '%+.2e' % 0 ¦ '% d' % 5 ¦ '%g %g %g' % (1e20, 123456789.0, 0.0001)
'%G' % 1e-10 ¦ '%d' % -7.9 ¦ 'a' ~ '%s' % 1 ¦ '%s %s' % ('a', 'b') | upper ¦ 2 * 3 % 4 ¦ 7 % 4 * 2 ¦ 7.5 % -2 ¦ 2 ** 3 % 5
10 // 3 % 2 ¦ 10 % 4 ~ 'x' ¦ 5 % 3 + 1 ¦ '%s' % -5 ¦ '%s' % i | string ¦ '%s' % l[0] ¦ '%s' % d.b ¦ '%d%%' % (f * 100) ¦ '%c' % 8364
'%x' % -255 ¦ '%.0f' % 2.5 ¦ '%.3d' % 7 ¦ '%q' % 1 ¦ '%' % 1 ¦ '%(a' % d ¦ '%s' % undef ¦ '%-+5d|' % 3 ¦ '%r' % ('é',) ¦ '%u' % 3
'%5s' % none ¦ '%05d' % -42 ¦ '%-05d|' % 3 ¦ '%.10s|' % 'ab' ¦ '%x' % 1.5 ¦ '%s' % d.items() ¦ '%(b)s' % e ¦ '%F' % huge ¦ '%s%s' % ([1], (2,))
'%f' % ('nan' | float) ¦ '%5.1f' % ('inf' | float) ¦ '%d' % ('1' | int) ¦ 'x' % [1] ¦ 'x' % 1 ¦ '%s' % (1, 2) ¦ '%a' % 'é' ¦ '%5c|' % 'x'
'{:>8.3f}'.format(3.14159) ¦ '{:e}'.format(0) ¦ '{:g}'.format(123456789) ¦ '{:08.3f}'.format(-3.14159) ¦ '{:_}'.format(1234567)
'{: d}'.format(5) ¦ '{:=+8d}'.format(5) ¦ '{:#b}'.format(5) ¦ '{:05}'.format(true) ¦ '{:5}'.format(none) ¦ '{:>5}'.format([1])
'{0} {0}'.format('a') ¦ '{} {1}'.format(1, 2) ¦ '{1} {}'.format(1, 2) ¦ '{a[b]}'.format(a={'b': 1}) ¦ '{0.b}'.format(d) ¦ '{:.3}'.format(3.14159)
'{:,.2f}'.format(1234567.891) ¦ '{:05}'.format('ab') ¦ '{:^+9.2f}'.format(1.5) ¦ '{:x}'.format(1.5) ¦ '{:c}'.format(65) ¦ '{!s:>5}'.format(1)
'{:.1%}'.format(0.256) ¦ '{:d}'.format(2.0) ¦ '{:n}'.format(5) ¦ '{:é>4}'.format('a') ¦ '{'.format() ¦ '}'.format() ¦ '{:{}}'.format(1, 5) ¦ '{:,}'.format(12.5)
'a' ~ 1e16 ¦ 1e22 ~ '' ¦ tiny ~ 'x' ¦ huge ~ '' ¦ 0.0001 ~ '' ¦ 1e-5 ~ '' ¦ (1e16, 1e-5) ~ '' ¦ 12345678901234567890123 ~ ''
keyed.items() | list | length ¦ keyed.items is callable ¦ d['items'] is callable ¦ {'a': 1}['keys'] is defined ¦ keyed.keys() | list ¦ d.items.x
keyed.get('get') ¦ keyed.items.y is defined ¦ d.keys is defined ¦ d.keys is mapping ¦ l.sort is defined ¦ l['append'] is callable ¦ s['upper']()
l | map('string') | length ¦ (el | map('string')) and 1 ¦ l | map('string') | first ¦ not (el | select) ¦ 'x' if el | select else 'y'
l | reverse | first ¦ l | reverse | length ¦ l | reverse is true ¦ l | batch(2) | length ¦ l | unique | length ¦ d | items | length ¦ l | map('string') | join
range(10)[::3] ¦ range(10)[::-2] | list ¦ range(10)[::-2] ¦ range(3) == range(3) ¦ not range(0) ¦ range(5)[-1] ¦ range(5)[9] ¦ range(3) + [1]
3 in range(5) ¦ 'a' in range(3) ¦ range(200000) ¦ range(3, 0) ¦ range(3, 0) | list ¦ range(3) * 2 ¦ range(5) | sum ¦ range(3) | join ¦ range(10)[20:]
[1] + [2] + [3] ¦ [1] + none ¦ (1,) + (2,) * 2 ¦ [[]] * 3 ¦ 'ab' * 0 ¦ 0 * 'a' ¦ true * 'a' ¦ 2 * [1] ¦ 1 - true ¦ 'a' - 'b' ¦ [1] - [1] ¦ {} * 2
1 < 2.5 ¦ 2.5 < 3 < 'a' ¦ true < 2 ¦ [1, 'a'] < [1, 'b'] ¦ [1, 'a'] < [2, 1] ¦ [1, 'a'] < [1, 1] ¦ (1, 2) < [1, 3] ¦ {} < {} ¦ 'a' >= 'B' ¦ undef < 1
none == none ¦ ('nan' | float) == ('nan' | float) ¦ 1 == 1.0 == true ¦ undef == undef ¦ undef == none ¦ none in [none] ¦ [] in [[]] ¦ 'a' not in d
'' in '' ¦ undef in l ¦ 1 in none ¦ 1 in 5 ¦ 2 in (1, 2) ¦ 'b' in d.keys() ¦ 1 in d.values() ¦ ('b', 1) in d.items() ¦ 9007199254740993 == 9007199254740992.0
1e308 + 1e308 ¦ 10 ** 30 ¦ 10 ** 30 // 7 ¦ 10 ** 20 / 3 ¦ 5 // 0.0 ¦ 5.5 % 0 ¦ 0 ** -1 ¦ (0 - 8) ** 0.5 ¦ 1e200 ** 2 ¦ -7 // 2.0 ¦ 7 // -2.0 ¦ -7 // -2 ¦ 7 // -2 ¦ -0.0 % 3
+none ¦ -'a' ¦ - - 5 ¦ -+5 ¦ not not 1 ¦ +f ¦ -l ¦ -undef ¦ +true ¦ -i | abs ¦ -i ** 2 ¦ 2 ** -i ¦ 1 if 0 else 2 if 0 else 3 ¦ (1, 2)[0:1] ¦ l[none:2] ¦ l[1:][0]
l[1:2][0:1][0] ¦ s[1:][1:] ¦ none[1:] ¦ d[1:] ¦ undef[1:] ¦ i[1:] ¦ l[1.5:] ¦ l[true:] ¦ s['length'] ¦ l[none] ¦ l[f] ¦ d[1.0] ¦ d[none] ¦ d[undef] ¦ nil['x'] ¦ l[-9] ¦ s[-99:99]
(s | e) + 'x' ¦ '<' + (html | e) ¦ (html | e) ~ '<' ¦ 'a' 'b' ~ 'c' ¦ "it" 's' | upper ¦ l | sum(start=0.5) ¦ ll | sum(start=[]) ¦ ['a'] | sum ¦ ['a'] | sum(start='')
1 2 ¦ a. ¦ (1 ¦ 1 + ¦ [1, ¦ {1} ¦ {1: } ¦ a b ¦ 1 is ¦ x | ¦ f(a=1, 2) ¦ f(a b) ¦ a[ ¦ a[] ¦ a[1:2:3:4] ¦ 1 === 1 ¦ a ! b ¦ $ ¦ 'a ¦ 1 if ¦ not ¦ a is not ¦ [1,] ¦ (1,) ¦ {'a': 1,} ¦ (,)
1, 2 ¦ 1, ¦ {'a': {'b': 1}}['a']['b'] ¦ '}}' ¦ "%}" ¦ not i is defined ¦ 1 is not none and true ¦ 7 is divisibleby(i) and 1 ¦ 3 is in [1, 3] ¦ undef is defined and undef or 'x'
s is not defined or true ¦ s is string | string ¦ i is divisibleby 7 or no ¦ none is not none ¦ s.upper().lower()[0] ¦ (s ~ 'x').upper() ¦ [s, s].index(s) ¦ (l | first) + 1 ¦ l | first + 1
"a" if undef else "b" ¦ i.__class__ ¦ [i][0] ¦ {'a': l}.a[0] ¦ s.format ¦ s.replace('l', '', 1) ¦ s.replace('zz', 'y') ¦ 'aaa'.replace('a', 'b', 2) ¦ 'aé'.replace('', '-', 2) ¦ s.replace('l', 'L', count=1) ¦ s.replace('l')
"""

# Statements and whitespace, as they stand.
TEMPLATES = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}"
    "{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}",
    "{% for x in el %}x{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for a, b in ll %}{{ a }}-{{ b }};{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% for c in 'aß東' %}{{ c }},{% endfor %}",
    "{% for x in nil %}{% endfor %}",
    "{% for x in 5 %}{% endfor %}",
    "{% for x in undef %}x{% else %}e{% endfor %}",
    "{% for x in d.zz %}x{% endfor %}e",
    "{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [[1, [2, [3]]], 4] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}"
    "{% endif %}{% endfor %}",
    "{% for x in l %}{% set last = x %}{% endfor %}{{ last }}",
    "{% set a = 1 %}{% for x in l %}{% set a = x %}{% endfor %}{{ a }}",
    "{% set ns = namespace(n=0) %}{% for x in l %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
    "{% set ns = namespace() %}{% set ns.a = [1] %}{% set ns.a = ns.a + [2] %}{{ ns.a }}",
    "{% set d.b = 5 %}{{ d.b }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set a %}x{{ i }}\n{% endset %}[{{ a }}]",
    "{% set a | upper | replace('X', 'y') %}x{{ i }}{% endset %}{{ a }}",
    "{% set a = 1 %}{% if true %}{% set a = 2 %}{% endif %}{{ a }}",
    "{% if undef %}a{% elif l %}b{% else %}c{% endif %}",
    "{% if el %}a{% elif e %}b{% else %}c{% endif %}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a is defined }}",
    "{% macro m(a, b=2) %}[{{ a }},{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=4, a=5) }}{{ m() }}",
    "{% macro m(a, b=a) %}[{{ a }},{{ b }}]{% endmacro %}{{ m(1) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(zz=2) }}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ m(1, 2, 3) }}",
    "{% macro m(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(1, x=2) }}",
    "{% macro m() %}{% for x in varargs %}<{{ x }}>{% endfor %}{% for k, v in kwargs.items() %}{{ k }}={{ v }}{% endfor %}"
    "{% endmacro %}{{ m(1, 2, z=3) }}",
    "{% macro m(a, b) %}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_varargs }}{{ m.catch_kwargs }}{{ m.caller }}",
    "{% macro m(a) %}<{{ caller() }}{{ a }}>{% endmacro %}{% call m(1) %}in{% endcall %}",
    "{% macro m() %}{% for x in l %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(y) m() %}[{{ y }}]{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro m() %}{{ i }}{{ later }}{% endmacro %}{% set later = 1 %}{{ m() }}",
    "{% macro m(x) %}\n  {{ x }}\n{% endmacro %}\n{{ m('a') | trim }}|",
    "{% macro m() -%}\n  a\n{%- endmacro %}[{{ m() }}]{{ m() | length }}{{ m() == 'a' }}",
    "{% filter upper %}a{{ s }}{% endfilter %}",
    "{% filter indent(2) %}a\nb\n{% endfilter %}|",
    "{% generation %}a{% endgeneration %}b",
    "  {%- generation -%}  a  {%- endgeneration -%}  b",
    "{% for m in people %}\n    {% generation %}\n    {{ m.n }}\n    {% endgeneration %}\n{% endfor %}",
    "{%generation%}{% set q = 1 %}{%endgeneration%}{{ q is defined }}",
    "{% set a = '{% generation %}' %}{{ a }}",
    "{% raw %}{{ a }}{% b %}{% endraw %}",
    "{%- raw -%}  {{ a }}  {%- endraw -%}",
    "{% raw %}{% generation %}{% endraw %}",
    "{# comment #}a{#- b -#} c",
    "a\n{# comment #}\nb",
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n",
    "a\n  {%+ if t %}\n  b\n  {%- endif +%}\nc\n\n",
    "a  {{- i -}}  b",
    "  {% if t %}  x  {% endif %}  \n",
    "\n\n{{ i }}\n\n",
    "{{ i }}\n",
    "{% if t -%}\n\n  x\n{%- endif %}\n y",
    "\t{% if t %}\n\tx\n\t{% endif %}\n",
    "x {% if t %}\ny{% endif %}",
    "{% if t +%}\ny{% endif %}",
    "a\r\n{% if t %}\r\nb\r\n{% endif %}\r\nc\r\n",
    "a\rb\r\n\r{{ 'x\r\ny' | length }}\n",
    "{{ 'a\r\nb' }}|{{ 'a\\r\\nb' | length }}",
    "{{ 'a\nb' }}",
    "{{ '{{' }}{{ \"%}\" }}{{ '}}' }}",
    "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': {}} }}",
    "{% set x = {'a': [1, 2,],} %}{{ x }}",
    "{{ [1, 2,] }}{{ (1, 2,) }}{{ range(3,) | list }}",
    "{{ l | map('string') | join(',') }}{{ i|string|length }}",
    "{{ s.split(' ')[0].upper()[1:] }}",
    "{{ (s | upper)[0] }}{{ s|upper ~ 'x' }}{{ 1 + '2' | int }}{{ -i | abs }}",
    "{% if 'a' in s or i is odd and not no %}x{% endif %}",
    "{% if nil is not none and nil | length > 0 %}x{% else %}y{% endif %}",
    "{% if nil is iterable and nil | length > 0 %}x{% else %}y{% endif %}",
    "{% if undef is not defined or undef.x %}y{% endif %}",
    "{% if not undef and not nil and not el %}y{% endif %}",
    "{% if people[0].zz %}x{% else %}y{% endif %}",
    "{% if people[0].zz.q %}x{% else %}y{% endif %}",
    "{{ people[0]['x']['y'] }}{{ people[-1].n }}{{ people[1:][0].n }}{{ people[9] is defined }}",
    "{% do l.append(3) %}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% extends 'x' %}",
    "{% block a %}b{% endblock %}",
    "{% block a %}{{ i }}{% endblock %}{{ self.a() }}",
    "{% autoescape true %}{{ html }}{% endautoescape %}",
    "{% nosuchtag %}",
    "{% if t %}",
    "{{ i",
    "{{ 'a }}",
    "{{ }}",
    "{{ 1 2 }}",
    "{% for x in l %}{{ x }}{% endif %}",
    "{{ raise_exception('a ' ~ i) }}",
    "{% set ns = namespace(a=[]) %}{% for p in people %}{% set ns.a = ns.a + [p.n] %}{% endfor %}{{ ns.a | join(' ') }}",
    "{% for g, items in people | groupby('a') %}{{ g }}:{{ items | map(attribute='n') | join('+') }};{% endfor %}",
    "{% for g in people | groupby('x.y') %}{{ g.grouper }}{{ g.list | length }}{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}{{ v }}{% endfor %}",
    "{% for k, v in d | items %}{{ k }}{{ v }}{% endfor %}",
    "{% for row in range(5) | batch(2, '-') %}{{ row | join }};{% endfor %}",
    "{% for x in [3, 1, 2] | sort %}{{ x }}{% endfor %}{{ loop is defined }}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in l %}{% set outer = loop %}{% for y in [1] %}{{ outer.index }}{{ loop.last }}{% endfor %}{% endfor %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}",
    "{% set j = joiner(',') %}{{ j() }}a{{ j() }}b{{ j() }}",
    "{% set it = l | map('string') %}{{ it | list }}{{ it | list }}",
    "{% set x = l | select('odd') %}{{ x | first }}",
    "{{ d.items() | map('join', '=') | join(' ') }}",
    "{{ people | map(attribute='x') | map(attribute='y') | sum }}",
    "{{ l | map('float') | map('round', 1) | list }}",
    "{{ words | map('lower') | unique | sort | join }}",
    "{% set _ = l.append(4) %}{{ l }}",
    "{% set _ = d.update({'q': 1}) %}{{ d }}",
    "{% set own = [] %}{% set _ = own.append(1) %}{{ own }}",
    "{% set own = {} %}{% set _ = own.update({'a': 1}) %}{{ own }}",
    "{%- for i in range(0, l | length, 2) %}{{ l[i:i + 2] }}{%- endfor %}",
    "{{ '%s=%s' % (d.keys() | first, d['b']) }}{{ '%05.1f' % f }}",
    "{{ ('a' if t else 'b') ~ ('c' if no) ~ 'd' }}",
    "{{ 'a' if no else 'b' if no else 'c' }}",
    "{{ s is string and s is not mapping and s is iterable and s is sequence }}",
    "{% for x in l %}{{ x if not loop.last else 'end' }}{{ ', ' if not loop.last }}{% endfor %}",
    "{{ s[:5] }}{{ s[6:] }}{{ s[-5:-1] }}{{ s[::3] }}{{ l[-1:] }}{{ l[:0] }}{{ s[5:2] }}{{ s[none:3] }}",
    "{% set x = undef %}{{ x is defined }}",
    "{% set content = d.zz if d.zz is defined else '' %}[{{ content }}]",
    "{% macro a() %}1{% endmacro %}{% macro b() %}{{ a() }}2{% endmacro %}{{ b() }}",
    "{% macro m(x) %}{{ x }}{% set i = 99 %}{% endmacro %}{{ m(i) }}{{ i }}",
    "{% for i in l %}{% endfor %}{{ i }}",
    "{% set f = '%s' %}{{ f % 5 }}",
    "{{ caller is defined }}{{ loop is defined }}{{ varargs is defined }}",
    "{{ [1, 2] | tojson }}{{ {'a': '<&\\'\">'} | tojson }}{{ 'é' | tojson(ensure_ascii=True) }}",
    "{{ people | tojson(indent=4) }}",
    "{{ people | tojson(indent=None, separators=None) }}",
    "{% trans %}a{% endtrans %}",
    "{% set ns = namespace(x=[]) %}{% for i in l %}{% set ns.x = ns.x + [i] %}{% endfor %}{{ ns.x }}",
    "{% if 1 %}\n{% if\n 0 %}a{%\nelse %}b{% endif %}{% endif %}\n{{ 1 }}",
    "{{ {'a': {'b': 1}} }}{{ '}}' }}{{ \"%}\" }}",
    "{% raw %}{{ a % b }}{% endraw %}{# a % b #}{%- raw -%} {{ x }} {%- endraw -%} y",
    "{% set it = l | select('odd') %}{% for x in it %}{{ x }}{% endfor %}{% for x in it %}{{ x }}{% endfor %}",
    "{% for k, v in keyed.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% if keyed.items %}y{% endif %}{% if d['items'] %}y{% endif %}{% if d.items is mapping %}n{% endif %}",
    "{% macro m(x) %}{{ x }}{{ caller() if caller }}{% endmacro %}{% call m(1) %}c{{ 5 % 3 }}{% endcall %}{{ m(2) }}",
    "{% macro m(x='%s' % 1, y=[1] + [2]) %}{{ x }}{{ y }}{% endmacro %}{{ m() }}{{ m(y='%d' % 2.5) }}",
    "{% filter upper | replace('A', 'b') %}a{% endfilter %}",
    "{% with a = [1], b = 5 % 3 %}{{ a }}{{ b }}{% endwith %}",
    "{% with a = 1, %}{{ a }}{% endwith %}",
    "{% set a = b = 1 %}", "{{ }}", "{% unknown %}", "{% if %}x{% endif %}", "{% for x %}{% endfor %}", "{{ 1", "{# x",
    "{{- 1 -}}  x  {{- 2 }}", "a {%- if 1 %} b {% endif -%} c", "{% for x in l -%}  {{ x }}  {%- endfor %}",
    "  {%+ if 1 %}a{% endif %}\n  {% if 1 -%}\n b\n {%- endif %}\n",
    "{% for x in l %}{{ '%d/%d' % (loop.index, loop.length) }};{% endfor %}",
    "{% for m in people | selectattr('a', 'gt', 1) %}{{ m.n }}{{ loop.index }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for x in l | map('string') if x != '1' %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in e.items() %}{{ x }}{% else %}none{% endfor %}{% for x in undef %}{% else %}u{% endfor %}",
    "{% for x in (1, 2) %}{{ x }}{% endfor %}{% for x in 'a', %}{{ x }}{% endfor %}{% for x, in [(1,)] %}{{ x }}{% endfor %}",
    "{% if i % 2 == 1 and -i % 4 == 1 %}odd{% elif i % 2 %}x{% endif %}",
    "{% set a, b = 'x', '%s' % 'y' %}{{ a ~ b }}{% set (c, d) = (1, 2) %}{{ c + d }}",
    "{% set x | replace('a', 'b') | upper %}aa{% endset %}{{ x }}",
    "{% for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x % 2 }}{% endfor %}",
    "{% for x in nil or [] %}{{ x }}{% else %}e{% endfor %}", "{% for x in i %}{% endfor %}",
    "{{ undef_fn(1) }}", "{{ l.0 }}{{ ll.0.1 }}", "{% print i %}", "{% do l %}", "{{ a\n.b }}", "{{ s\n| upper\n}}x",
    "{%if i%}{{i}}{%endif%}", "{% if i %}{{ i|string|length }}{% endif %}", "{{s|e}}{{'%s'%s}}",
]
REFUSED = pathlib.Path(__file__).resolve().parent / "jinja_refused.json"


def render(source):
    try:
        return _compile_jinja_template(source).render(**json.loads(json.dumps(VARIABLES)))
    except Exception:
        return None


def cases():
    refused = set(json.loads(REFUSED.read_text()))
    expressions = [expression.strip() for line in EXPRESSIONS.strip().split("\n") for expression in line.split("¦")]
    tests = [f"{kind} is {test}" for kind in KINDS for test in TESTS]
    for source in [f"{{{{ {expression} }}}}" for expression in expressions + tests] + TEMPLATES:
        text = render(source)
        if text is None or " at 0x" not in text:  # an address
            yield dict(template=source, text=text) | (dict(refused=True) if source in refused else {})


def main():
    table = list(cases())
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in table)
    variables = json.dumps(VARIABLES, ensure_ascii=False)
    FIXTURE.write_text(f'{{"variables": {variables},\n"cases": [\n{lines}\n]}}\n')
    errors = sum(case["text"] is None for case in table)
    print(f"{len(table)} templates, {errors} of them errors in Python")


if __name__ == "__main__":
    main()
