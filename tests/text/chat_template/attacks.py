"""Chat templates that try to take much time or memory, each in its own way.

Run as a program, it renders each under a cap of address space and prints what did not end as a
TemplateError in time: a step that takes what it likes would end the process, not the test run.
"""

import json
import random
import resource
import sys
import time
from pathlib import Path

from jinja2.tests import TESTS as JINJA_TESTS

from wgpu_backend.errors import TemplateError
from wgpu_backend.text.chat_template import ChatTemplate, Limits, budget
from wgpu_backend.text.chat_template.sandbox import Sandbox

LIMITS = Limits(seconds=0.1)  # of the processor
USER = [{"role": "user", "content": "hi"}]
MEMORY = 200 << 20  # bytes beyond those of the interpreter
SECONDS = 1.0  # of the processor, a hundred times what most of them take
BIG = "{% set s = 'a' * 4000000 %}{% set t = 'a' * 3999999 ~ 'a' %}"
WIDE = "{% set w = '\u4e00' * 4000000 %}"
GROW = (
    "{% set ns = namespace(l=[1], m=[1], t=(1,), n=namespace(), d={1: 1}) %}"
    "{% for i in range(60) %}"
)
END = "{% endfor %}"
FOREVER = "{% for a in range(99999) %}{% for b in range(99999) %}"
ENDS = END + END

FORMATS = {
    "nested fields": "{{ '{0:{1}{2}}'.format(1, 999999, 9999) }}",
    "nested precision": "{{ '{0:.{1}{2}f}'.format(1.5, 99999, 9999) }}",
    "nested fill and width": "{{ '{:{}>{}{}}'.format(1, 'x', 99999, 99999) }}",
    "width from an attribute": "{{ '{0:{1[w]}}'.format(1, {'w': '9999999999'}) }}",
    "format_map": "{{ '{a:{b}{b}}'.format_map({'a': 1, 'b': 99999}) }}",
    "format through map": "{{ (['{:99999999999}']|map(attribute='format')|first)(1) }}",
    "format of markup": "{{ ('{:99999999999}'|safe).format(1) }}",
    "format repeats": BIG + "{{ ('{0}' * 60000).format(s) }}",
    "format converts": BIG + "{{ ('{0!r}' * 60000).format([s, s]) }}",
    "format of nothing": "{{ ('{}' * 1400000).format(*range(9)) }}",
    "percent width": "{{ '%99999999999d' % 1 }}",
    "percent precision": "{{ '%.99999999999f' % 1 }}",
    "percent zeros before a precision": "{{ '%.00000000000099999999999f' % 1 }}",
    "percent star": "{{ '%*d' % (99999999999, 1) }}",
    "percent star precision": "{{ '%.*f' % (99999999999, 1.5) }}",
    "percent of a key": "{{ '%(a)99999999999s' % {'a': 1} }}",
    "percent of a key with parentheses": "{{ '%((a)9)99999999999s' % {'(a)9': 1} }}",
    "percent repeats": BIG + "{{ ('%(a)s' * 60000) % {'a': s} }}",
    "percent of a list": BIG + "{{ '%s' % ([s] * 2) }}",
    "percent of markup": "{{ ('%99999999999d'|safe) % 1 }}",
    "percent filter": "{{ '%*d'|format(99999999999, 1) }}",
    "percent filter by name": "{{ '%(a)99999999999s'|format(a=1) }}",
    "is odd": "{{ '%99999999999d' is odd }}",
    "is even": "{{ '%99999999999d' is even }}",
    "is divisibleby": "{{ '%99999999999d' is divisibleby 3 }}",
    "select odd": "{{ ['%99999999999d']|select('odd')|list }}",
    "selectattr": "{{ [{'a': '%99999999999d'}]|selectattr('a', 'divisibleby', 3)|list }}",
    "html of a namespace": "{% set ns = namespace() %}"
    "{% set ns.__html_format__ = ('b' * 4000000).join %}"
    "{{ (('{:' ~ 'c' * 9999 ~ '}')|safe).format(ns) }}",
    "date": "{{ strftime_now('%_9999999999d') }}",
    "date repeats": "{{ strftime_now('%A' * 9999999) }}",
}
METHODS = {
    "center": "{{ 'a'.center(9999999999) }}",
    "center in a loop": "{% for m in messages %}{{ 'a'.center(9999999999) }}{% endfor %}",
    "ljust": "{{ 'a'.ljust(9999999999, 'x') }}",
    "rjust": "{{ 'a'.rjust(9999999999) }}",
    "zfill": "{{ 'a'.zfill(9999999999) }}",
    "zfill of markup": "{{ ('a'|safe).zfill(9999999999) }}",
    "expandtabs": "{{ '\t'.expandtabs(9999999999) }}",
    "expandtabs by name": "{{ '\t'.expandtabs(tabsize=9999999999) }}",
    "many tabs": "{{ ('\t' * 100000).expandtabs(100000) }}",
    "replace": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "replace nothing": "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
    "replace of markup": "{{ ('a' * 1000000)|safe|replace('a', '&&&&&') }}",
    "join": "{{ ('b' * 100000).join(['a'] * 100000) }}",
    "join letters": BIG + WIDE + "{{ s.join(w) }}",
    "join what is mapped": BIG + "{{ s.join(range(99999)|map('string')) }}",
    "split": WIDE + "{{ (w ~ ' ').replace('\u4e00', '\u4e00 ').split() }}",
    "split letters": "{{ ('\u4e00 ' * 2000000).split(' ') }}",
    "splitlines": "{{ ('\u4e00\n' * 2000000).splitlines() }}",
    "split markup": "{{ ((',' * 4000000)|safe).split(',') }}",
    "search from the right": BIG + "{{ s.rfind('ab' ~ 'a' * 2000000) }}",
    "split from the right": BIG + "{{ s.rsplit('ab' ~ 'a' * 2000000) }}",
    "partition from the right": BIG + "{{ s.rpartition('ab' ~ 'a' * 2000000) }}",
    "strip": BIG + "{{ s.strip('b' * 3999999 ~ 'a') }}",
    "striptags": "{{ (('<!--' * 1000000)|safe).striptags() }}{{ '<!-- -->' * 500000|striptags }}",
    "translate": "{{ ('a' * 4000000).translate({97: 'b' * 4000000}) }}",
    "encode": "{{ ('a' * 4000000).encode('utf-32').hex() }}",
    "union of sets": "{% set d = {1: 1}.keys() - [2] %}{{ d.union(*[range(99999)] * 99999) }}",
    "fromkeys": WIDE + "{{ {}.fromkeys(w * 2) }}{{ dict.fromkeys(w) }}",
    "dict of outside": "{{ dict.update(messages[0], content='x') }}",
    "bytes of a number": "{{ (1).to_bytes(10**9, 'big') }}",
    "method of markup shown": BIG + "{{ [(s|safe).upper] * 60000 }}",
}
OPERATORS = {
    "repeat text": "{% set x = 'a' * 10**9 %}",
    "repeat from the left": "{% set x = 10**9 * 'a' %}",
    "repeat a list": "{% set x = [1] * 10**9 %}",
    "repeat a tuple": "{% set x = (1,) * 10**9 %}",
    "repeat an empty list": FOREVER + "{{ [] * 9 }}" + ENDS,
    "repeat markup": "{% set x = ('a'|safe) * 10**9 %}",
    "power": "{% set x = 9 ** (9 ** 9) %}",
    "power of powers": "{% set x = 2 ** (2 ** (2 ** (2 ** (2 ** 2)))) %}",
    "multiply": GROW
    + "{% set ns.n = (ns.n is number and ns.n or 3) %}{% set ns.n = ns.n * ns.n %}"
    + END,
    "number of digits": "{{ ('f' * 4000000)|int(0, 16) // (('f' * 2000000)|int(0, 16)) }}",
    "number by bits": "{% set n = ('f' * 4000000)|int(base=16) %}{{ n % (n // 3) }}",
    "sum of numbers": "{{ (range(99999)|map('string')|sum(start='')) * 9 }}",
    "double by plus": GROW + "{% set ns.x = (ns.x or 'a') + (ns.x or 'a') %}" + END,
    "double by tilde": GROW + "{% set ns.x = (ns.x or 'a') ~ (ns.x or 'a') %}" + END,
    "tilde of many": BIG + "{{ " + "s~" * 3000 + "s }}",
    "double a list": GROW + "{% set ns.l = ns.l + ns.l %}" + END,
    "double a tuple": GROW + "{% set ns.t = ns.t + ns.t %}" + END,
    "share": GROW
    + "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}"
    + END
    + "{{ ns.l == ns.m }}",
    "share in a dict": GROW + "{% set ns.d = {1: ns.d, 2: ns.d} %}" + END + "{{ ns.d }}",
    "share in namespaces": GROW + "{% set ns.n = namespace(a=ns.n, b=ns.n) %}" + END + "{{ ns.n }}",
    "share in views": GROW
    + "{% set ns.d = {1: ns.d.values(), 2: ns.d.values()} %}"
    + END
    + "{{ ns.d }}",
    "nest": "{% set ns = namespace(t=()) %}"
    + FOREVER
    + "{% set ns.t = (ns.t,) %}"
    + ENDS
    + "{{ {ns.t: 1} }}",
    "text of a list": BIG + "{{ [s] * 900 }}",
    "text of views": BIG
    + "{% set d = dict.fromkeys(range(999), s) %}{{ d.values() }}{{ d.keys().mapping }}",
    "text of numbers": "{{ [7 ** 5800] * 99999 }}",
    "text of macros": "{% macro "
    + "m" * 60000
    + "() %}{% endmacro %}{{ ["
    + "m" * 60000
    + "] * 99999 }}",
    "compare texts in lists": BIG + "{{ [s] * 60000 == [t] * 60000 }}",
    "search in a list": BIG + "{{ (t ~ 'b') in [t ~ 'c'] * 60000 }}",
    "compare again and again": BIG + "{{ " + "s==t==" * 3000 + "s }}",
    "hash again and again": "{% set d = {} %}{% set t = (1, 2) * 60000 %}"
    + "{% if d[t] %}{% endif %}" * 3000,
    "divide again and again": "{% set a = 0x"
    + "f" * 30000
    + " %}{% set b = 0x"
    + "f" * 15000
    + " %}"
    + "{% set c = a // b %}" * 2000,
    "slice again and again": BIG + FOREVER + "{% set x = s[1:] %}" + ENDS,
}
FILTERS = {
    "center": "{{ 'a'|center(9999999999) }}",
    "center by name": "{{ 'a'|center(width=9999999999) }}",
    "replace": "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
    "replace by name": "{{ ('a' * 100000)|replace(old='a', new='b' * 100000) }}",
    "replace by a list": BIG + "{{ 'a'|replace('a', [s] * 60000) }}",
    "indent": "{{ ('\n' * 100000)|indent(100000, blank=true) }}",
    "indent of returns": "{{ ('\r' * 100000)|indent(100000, blank=true) }}",
    "indent by text": BIG + "{{ ('b\n' * 10000)|indent(width=s) }}",
    "indent of the messages": "{{ messages|indent }}",
    "wordwrap": "{{ ('a' * 100000)|wordwrap(1, wrapstring='b' * 100000) }}",
    "join": "{{ range(99999)|join('b' * 100000) }}",
    "join an attribute": BIG + "{{ ([{'a': s}] * 2)|join('', attribute='a') }}",
    "join defaults": BIG + "{{ range(99999)|map(attribute='x', default=s)|join }}",
    "sort letters": WIDE + "{{ w|sort|length }}",
    "sort texts": BIG + "{{ ([s, t] * 30000)|sort|length }}",
    "sort what is mapped": BIG + "{{ range(99999)|map(attribute='x', default=s)|sort|length }}",
    "sort by a long path": "{{ [1, 2]|sort(attribute='ab.' * 1300000) }}",
    "select by a long path": "{{ [1, 2]|selectattr('ab.' * 1300000)|list }}",
    "unique": BIG + "{{ range(99999)|map(attribute='x', default=s)|unique|list }}",
    "smallest": BIG + "{{ range(99999)|map(attribute='x', default=s)|min }}",
    "letters": WIDE + "{{ w|list|length }}",
    "letters mapped": "{{ ('a' * 4000000)|map(attribute='x')|list|length }}",
    "letters counted": BIG + "{{ s|select('string')|list|length }}",
    "letters of a call": WIDE + "{{ cycler(*w) }}",
    "letters of a loop": WIDE + "{% for c in w %}{{ loop.length }}{% endfor %}",
    "batch": "{{ [1]|batch(10**9, 'x')|list|length }}",
    "batch by name": "{{ [1]|batch(linecount=10**9, fill_with='x')|list|length }}",
    "slice": "{{ [1]|slice(10**9)|list|length }}",
    "slice by name": "{{ [1]|slice(slices=10**9)|list|length }}",
    "sum of lists": "{{ ([[1, 2, 3]] * 90000)|sum(start=[])|length }}",
    "sum of texts": "{{ (['a' * 1000] * 90000)|sum(start='')|length }}",
    "round text": "{{ 'a'|round(9, 'ceil') }}",
    "round a list": "{{ [1]|round(9, 'floor') }}",
    "round far": "{{ 5|round(-999999999) }}",
    "json indent": "{{ [1]|tojson(indent=10**9) }}",
    "json indent by text": BIG + "{{ ([1] * 1000)|tojson(indent=s) }}",
    "json separators": BIG + "{{ ([1] * 1000)|tojson(separators=(s, s)) }}",
    "json deep": "{% set ns = namespace(l=[1] * 10000) %}"
    "{% for i in range(150) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l|tojson(indent=16) }}",
    "json of what is shared": BIG + "{{ ([s] * 60000)|tojson }}",
    "json escapes": "{{ ('\x01' * 4000000)|tojson }}",
    "title": "{{ ('ab ' * 1300000)|title }}",
    "words": "{{ ('ab ' * 1300000)|wordcount }}",
    "quoted": "{{ ('\U0001f600' * 4000000)|urlencode }}",
    "escaped": "{{ ('&' * 4000000)|e|forceescape }}",
    "trim": BIG + "{{ s|trim('b' * 3999999 ~ 'a') }}",
    "is lower": BIG + "{{ ([s] * 60000) is lower }}",
    "filters of a block": "{% filter center(9999999999) %}a{% endfilter %}",
    "filters while compiling": "{% autoescape 'a'|center(9999999999) %}{% endautoescape %}",
    "lipsum": "{{ lipsum(n=99999, html=false, min=999, max=9999) }}",
}
LOOPS = {
    "nested loops": FOREVER + ENDS,
    "range": "{{ range(10**18)|list }}",
    "recursing macros": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}"
    "{% endmacro %}{{ f(40) }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "endless caller": "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}"
    "{{ f() }}",
    "endless block": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "recursive loop": "{% for a in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    "double by block": GROW
    + "{% set y %}{{ ns.x or 'a' }}{{ ns.x or 'a' }}{% endset %}{% set ns.x = y %}"
    + END,
    "double by macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}"
    + GROW
    + "{% set ns.x = f(ns.x or 'a') %}"
    + END,
    "output": FOREVER + "{{ 'a' * 1000 }}" + ENDS,
    "output in a block": "{% set x %}"
    + FOREVER
    + "x{% if a %}y{% endif %}" * 500
    + ENDS
    + "{% endset %}",
    "nothing in a macro": "{% macro f() %}"
    + FOREVER
    + "{{ '' }}" * 500
    + ENDS
    + "{% endmacro %}{{ f() }}",
    "keep texts": "{% set ns = namespace(l=[]) %}"
    + FOREVER
    + "{% set ns.l = ns.l + ['a' * (4000000 + b)] %}"
    + ENDS,
    "keep numbers": "{% set ns = namespace(l=[]) %}"
    + FOREVER
    + "{% set ns.l = ns.l + [a * b] %}"
    + ENDS,
    "keep names": FOREVER + "{% set ns = namespace(a=range(9)|list) %}" + ENDS,
    "include": "{% include 'x' %}",
    "import": "{% import 'x' as x %}",
    "extends": "{% extends 'x' %}",
    "long refusal": BIG + "{{ raise_exception(s) }}",
    "long name": BIG + "{{ messages[s] + 1 }}",
}
SOURCES = {
    "many outputs": "{{a}}" * 26000 + "{{ 1 / 0 }}",
    "many attributes": "{{ a" + ".b" * 60000 + " }}",
    "many filters": "{{ 'a'|center(4000000)" + "|upper" * 150 + " }}",
    "many brackets": "{{ " + "(" * 60000 + ")" * 60000 + " }}",
    "many lists": "{{ " + "[" * 60000 + "]" * 60000 + " }}",
    "many ifs": "{% if a %}" * 6000 + "{% endif %}" * 6000,
    "many loops": "{% for a in b %}" * 4000 + "{% endfor %}" * 4000,
    "many signs": "{{ " + "-" * 120000 + "1 }}",
    "many nots": "{{ " + "not " * 30000 + "1 }}",
    "many terms": "{{ 1" + "+1" * 60000 + " }}",
    "many choices": "{% if a %}" + "{% elif b %}" * 9000 + "{% endif %}{{ 1 / 0 }}",
    "many macros": "{% macro a() %}{% endmacro %}" * 4000 + "{{ 1 / 0 }}",
    "many names": "".join(f"{{% set a{i} = {i} %}}" for i in range(6000)) + "{{ 1 / 0 }}",
    "many spaces": " " * 65000 + "{% if a %}" + "\n" * 65000 + "{{",
    "many lines": "\n   {% if a %}{% endif %}" * 5000 + "{{ 1 / 0 }}",
    "many digits": "{{ " + "9" * 120000 + " }}",
    "many underscores": "{{ " + "1_" * 60000 + " }}",
    "many quotes": "{{ '" + "\\'" * 60000 + " }}",
    "many comments": "{#" * 60000,
    "many arguments": "{{ f(" + "1," * 60000 + ") }}",
}  # fmt: skip
GROUPS = {
    "format": FORMATS,
    "method": METHODS,
    "operator": OPERATORS,
    "filter": FILTERS,
    "loop": LOOPS,
    "source": SOURCES,
}
ATTACKS = {f"{group}: {name}": text for group, d in GROUPS.items() for name, text in d.items()}


SUBJECTS = (
    *("s", "w", "l", "d", "m", "n", "f", "ns", "(1, 's')", "range(99999)", "messages"),
    *("'%s%9d'", "'{0:>{1}}'", "['a', s]", "d.values()", "l|map('string')", "[w, w]", "none"),
)
ARGUMENTS = (*SUBJECTS, "3", "0", "-7", "10**9", "99999", "''", "'a'", "'a.b'", "true", "[s] * 99")
METHOD_NAMES = sorted(
    {name for kind in (str, list, dict, tuple) for name in dir(kind) if name[0] != "_"}
)
OPERATOR_NAMES = ("+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in")
FILTER_NAMES = sorted({*Sandbox(budget.Budget(LIMITS)).filters})
TEST_NAMES = sorted(name for name in JINJA_TESTS if name.isalpha())
KEYWORDS = ("width", "fill_with", "linecount", "attribute", "default", "indent", "start", "reverse")
START = (
    "{% set s = 'ab \t\n' * 400000 %}{% set w = '\u4e00<' * 500000 %}{% set l = [7] * 9999 %}"
    "{% set d = {'a': s, 1: l, 'b': {'a': w}} %}{% set m = (s|safe) %}{% set n = 7 ** 5000 %}"
    "{% set f = 1.5 %}{% set ns = namespace(a=s, b=l) %}"
)


def random_expression(rng: random.Random, depth: int) -> str:
    """Nest operators, filters, methods and tests around values that are large already."""
    if not depth:
        return rng.choice(ARGUMENTS)

    def inner() -> str:
        return random_expression(rng, rng.randrange(depth))

    def arguments() -> str:
        given = [inner() for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        if rng.random() < 0.2:
            given.append(f"{rng.choice(KEYWORDS)}={inner()}")
        return ", ".join(given)

    kind = rng.random()
    if kind < 0.3:
        return f"({inner()} {rng.choice(OPERATOR_NAMES)} {inner()})"
    if kind < 0.6:
        return f"({inner()})|{rng.choice(FILTER_NAMES)}({arguments()})"
    if kind < 0.85:
        return f"({inner()}).{rng.choice(METHOD_NAMES)}({arguments()})"
    if kind < 0.92:
        return f"({inner()} is {rng.choice(TEST_NAMES)}({inner()}))"
    return rng.choice(
        (f"({inner()})[{inner()}:]", f"[{inner()}, {inner()}]", f"cycler(*{inner()})")
    )


def random_template(seed: int) -> str:
    """A template of a few random expressions, some in loops and captured blocks."""
    rng = random.Random(seed)
    text = START
    for _ in range(2):
        expression = random_expression(rng, 4)
        text += rng.choice(
            (
                "{{ %s }}",
                "{%% set s = %s %%}",
                "{%% for a in range(9) %%}{%% set ns.a = %s %%}{%% endfor %%}",
                "{%% set l %%}{{ %s }}{%% endset %%}",
            )
        ) % (expression,)
    return text


def outcome(source: str) -> str | None:
    """How a template broke out of its limits; None where it rendered or was refused in time."""
    start = time.process_time()
    end = ""
    try:
        ChatTemplate(source, limits=LIMITS).render(USER)
        end = "rendered"
    except TemplateError as error:
        if isinstance(error.__cause__, MemoryError):
            return "took all memory"
        if len(str(error)) > 2000:
            return f"says {len(str(error))} characters"
    except BaseException as error:
        return f"raised {error!r:.200}"
    took = time.process_time() - start
    return f"took {took:.1f} s" if took > SECONDS else end or None


def main(seeds: int) -> None:
    """Try every attack and some random templates, and print what broke out as JSON."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    space = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    broken = {name: outcome(source) for name, source in ATTACKS.items()}
    for seed in range(seeds):
        found = outcome(random_template(seed))
        broken[f"random {seed}"] = None if found == "rendered" else found
    json.dump({name: how for name, how in broken.items() if how}, sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]))
