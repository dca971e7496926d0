"""Chat templates: what they render, and what they are kept from doing."""

import json
import resource
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from wgpu_backend.chat_template import ChatTemplate, Limits
from wgpu_backend.errors import TemplateError

HERE = Path(__file__).parent
TEMPLATES = HERE.parent.parent / "shared" / "data" / "chat_templates"
RECORDED = json.loads((HERE / "data" / "chat_templates" / "expected.json").read_text("utf-8"))

USER = [{"role": "user", "content": "hi"}]

TURNS = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '[' + message['role'] + ']' + message.content | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[assistant]' }}{% endif %}
"""
TOOLS = """\
{%- if tools %}
Tools: {{ tools | tojson }}
{% endif %}
{%- for message in messages if message.role != 'tool' %}
    {%- if loop.first and message.role == 'system' %}
        {%- set ns.system = message.content %}
        {%- continue %}
    {%- endif %}
    {{- message.content }}
{%- endfor %}
""".replace("{%- if tools %}", "{%- set ns = namespace(system='') %}{%- if tools %}", 1)
STRICT = """\
{%- for message in messages %}
    {%- if message.role not in ['user', 'assistant'] %}
        {{- raise_exception('No role ' + message.role) }}
    {%- endif %}
    {%- generation %}{{ loop.index ~ ':' ~ message.content ~ '/' ~ loop.length }}{% endgeneration %}
{%- endfor %}
{{- strftime_now('%d %b %Y') }}
"""


def conversation_ids():
    return [(name, case) for name, cases in RECORDED["expected"].items() for case in cases]


@pytest.mark.parametrize(("name", "case"), conversation_ids())
def test_known_templates_render_as_transformers_does(name, case):
    path = TEMPLATES / f"{name}.jinja"
    if not path.exists():
        pytest.skip("the shared chat templates are not beside this checkout")
    template = ChatTemplate(
        path.read_text("utf-8"),
        **RECORDED["tokens"],
        clock=lambda: datetime.fromisoformat(RECORDED["now"]),
    )
    expected = RECORDED["expected"][name][case]
    if expected is None:
        with pytest.raises(TemplateError):
            template.render(**RECORDED["conversations"][case])
    else:
        assert expected == template.render(**RECORDED["conversations"][case])


def test_turns_with_the_model_s_own_tokens():
    template = ChatTemplate(TURNS, bos_token="<s>", eos_token="</s>")
    messages = [*USER, {"role": "assistant", "content": " hello "}]
    assert template.render(messages) == "<s>[user]hi</s>[assistant]hello</s>[assistant]"
    assert template.render(USER, add_generation_prompt=False) == "<s>[user]hi</s>"


def test_a_variable_may_replace_a_token():
    template = ChatTemplate("{{ bos_token }}{{ thinking }}", bos_token="<s>")
    assert template.render(USER, thinking=True) == "<s>True"
    assert template.render(USER, bos_token="<b>") == "<b>"


def test_tools_are_json_that_is_not_escaped():
    tools = [{"name": "größe", "html": "<b> & 'x'"}]
    messages = [{"role": "system", "content": "s"}, {"role": "tool", "content": "t"}, *USER]
    expected = """Tools: [{"name": "größe", "html": "<b> & 'x'"}]\nhi"""
    assert ChatTemplate(TOOLS).render(messages, tools=tools) == expected
    assert ChatTemplate(TOOLS).render(messages) == "hi"


def test_tags_and_functions_of_hugging_face_templates():
    template = ChatTemplate(STRICT, clock=lambda: datetime(2026, 1, 2))
    assert template.render([*USER, *USER]) == "1:hi/22:hi/202 Jan 2026"


def test_a_template_may_refuse_a_conversation():
    with pytest.raises(TemplateError, match="chat template: No role system"):
        ChatTemplate(STRICT).render([{"role": "system", "content": "x"}])


def test_loops_keep_their_length_and_recursion():
    source = (
        "{% for a in messages recursive %}{{ loop.length }}{{ loop.last }}{{ loop.depth }}"
        "{% if a.more %}{{ loop(a.more) }}{% endif %}{% else %}none{% endfor %}"
    )
    assert ChatTemplate(source).render([{"more": [{}, {}]}]) == "1True12False22True2"
    assert ChatTemplate(source).render([]) == "none"


def test_slices_literals_and_joins_are_as_in_jinja():
    source = (
        "{{ messages[1:][0].content[::-1] ~ 1 ~ [1, (2, 3)] ~ {'a': none} }}{{ [1, 2]|join('-') }}"
    )
    messages = [*USER, {"role": "user", "content": "abc"}]
    assert ChatTemplate(source).render(messages) == "cba1[1, (2, 3)]{'a': None}1-2"


def test_a_syntax_error_names_its_line():
    with pytest.raises(TemplateError, match="line 2"):
        ChatTemplate("\n{% for %}")


def test_source_text_has_a_limit():
    with pytest.raises(TemplateError, match="200000 characters, needs at most 131072"):
        ChatTemplate("a" * 200_000)


# Ways out of a sandbox: each must fail or print nothing of the interpreter's.
PAYLOADS = {
    "class walk": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "cycler globals": "{{ cycler.__init__.__globals__.os }}",
    "lipsum globals": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "joiner globals": "{{ joiner.__init__.__globals__ }}",
    "attr filter": "{{ ''|attr('__class__')|attr('__mro__') }}",
    "format": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "indirect format": "{{ (['{0.__class__}']|map(attribute='format')|first)(1) }}",
    "format_map": "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "namespace class": "{{ namespace().__class__.__init__ }}",
    "list mutation": "{{ messages.append(1) }}",
    "include": "{% include '/etc/passwd' %}",
    "macro globals": "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
    "self context": "{{ self._TemplateReference__context.environment }}",
    "hooks": "{{ raise_exception.__globals__ }}{{ strftime_now.__self__ }}",
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_template_cannot_leave_its_sandbox(payload):
    messages = list(USER)
    try:
        text = ChatTemplate(payload).render(messages)
    except TemplateError:
        text = ""
    assert not any(word in text for word in ("class", "module", "function", "root:", "object"))
    assert messages == USER


GROW = "{% set ns = namespace(x='aaaaaaaaaa', l=[1], m=[1]) %}{% for i in range(60) %}"
BOMBS = {
    "nested loops": "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3,
    "recursing macros": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}"
    "{% endmacro %}{{ f(40) }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "repeat": "{% set x = 'a' * 10**9 %}",
    "repeat list": "{% set x = [1] * 10**9 %}",
    "center": "{{ 'a'.center(2 * 10**9) }}",
    "center filter": "{{ 'a'|center(2000000000) }}",
    "percent": "{{ '%9999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "percent filter": "{{ '%9999999999d'|format(1) }}",
    "format": "{{ '{:>9999999999}'.format(1) }}",
    "format nested": "{{ '{:>{}}'.format(1, 10**9) }}",
    "power": "{% set x = 9 ** (9 ** 9) %}",
    "double by plus": GROW + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "double by concat": GROW + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "double by block": GROW + "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"
    "{% endfor %}",
    "double list": GROW + "{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "shared lists": GROW + "{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}"
    "{{ ns.l == ns.m }}",
    "text of a list": "{{ ['a' * 1000000] * 900000 }}",
    "replace": "{{ ('a' * 100000)|replace('a', 'b' * 100000) }}",
    "replace nothing": "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
    "join": "{{ range(99999)|join('b' * 100000) }}",
    "join method": "{{ ('b' * 100000).join(['a'] * 10000) }}",
    "indent": "{{ ('\n' * 100000)|indent(100000) }}",
    "json indent": "{{ [1]|tojson(indent=10**9) }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list|length }}",
    "bytes of a number": "{{ (1).to_bytes(10**9, 'big') }}",
    "date width": "{{ strftime_now('%9999999999d') }}",
    "keep texts": "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}"
    "{% set ns.l = ns.l + ['a' * (4000000 + i)] %}{% endfor %}",
    "keep slices": "{% set big = 'a' * 4000000 %}{% set ns = namespace(l=[]) %}"
    "{% for i in range(99999) %}{% set ns.l = ns.l + [big[1:]] %}{% endfor %}",
    "output": "{% for a in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
    "sum of lists": "{{ ([[1, 2, 3]] * 90000)|sum(start=[])|length }}",
    "filters while compiling": "{{ 'a'|center(4000000)" + "|upper" * 150 + " }}",
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_template_stops_at_its_limits(bomb):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with pytest.raises(TemplateError):
        ChatTemplate(bomb).render(USER)
    assert time.process_time() - start < 2.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB


def test_the_deadline_holds_off_the_main_thread():
    found = []

    def run():
        try:
            ChatTemplate(BOMBS["nested loops"], limits=Limits(seconds=0.2)).render(USER)
        except TemplateError as error:
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=30)
    assert found == ["chat template: still running, needs to end in 0.2 s"]


def test_each_rendering_has_its_own_budget():
    template = ChatTemplate("{{ 'a' * 1000 }}", limits=Limits(memory_bytes=4000))
    assert {len(template.render(USER)) for _ in range(20)} == {1000}


def test_a_long_conversation_is_within_the_limits():
    messages = [{"role": "user", "content": "word " * 400}] * 1000
    template = ChatTemplate(TURNS, bos_token="", eos_token="")
    assert len(template.render(messages)) > 1_900_000
