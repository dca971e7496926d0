"""Chat templates: what they render, and what the sandbox forbids."""

import inspect
import json
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.tests import TESTS as JINJA_TESTS

from tests.patience import PATIENCE
from tests.text.chat_template.attacks import ATTACKS, USER
from wgpu_backend.errors import TemplateError
from wgpu_backend.text.chat_template import ChatTemplate, Limits, estimates
from wgpu_backend.text.chat_template.budget import Budget
from wgpu_backend.text.chat_template.sandbox import Sandbox

HERE = Path(__file__).parents[2]
TEMPLATES = HERE.parent.parent / "shared" / "data" / "chat_templates"
RECORDED = json.loads((HERE / "data" / "chat_templates" / "expected.json").read_text("utf-8"))

ENVIRONMENT = Sandbox(Budget(Limits()))

ITEMS_PER_THREAD = """\
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
    template = ChatTemplate(ITEMS_PER_THREAD, bos_token="<s>", eos_token="</s>")
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


@pytest.fixture(scope="module")
def broken_out():
    """What the attacks and some random templates took beyond their limits, each by its name."""
    if not sys.platform.startswith("linux"):
        pytest.skip("a cap of address space is Linux's")
    command = [sys.executable, "-m", "tests.text.chat_template.attacks", "30"]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_no_template_takes_more_time_or_memory_than_it_may(broken_out):
    assert broken_out == {}


@pytest.mark.parametrize("name", ["format: nested fields", "loop: long refusal"])
def test_an_attack_is_refused_in_a_few_words(name):
    with pytest.raises(TemplateError, match=r"^chat template: .{1,1100}$"):
        ChatTemplate(ATTACKS[name]).render(USER)


# What the limits must let through: nothing here makes much.
HARMLESS = {
    "{{ 'of 99999999 %s' % 'x' }}": "of 99999999 x",
    "{{ '%(a)s %(b)5.1f%%' % {'a': 'y', 'b': 2} }}": "y   2.0%",
    "{{ '%*d|%-*s|' % (4, 1, 3, 'a') }}": "   1|a  |",
    "{{ '{0:{1}{2}}|{a!r:>5}'.format(1, 0, 4, a='b') }}": "0001|  'b'",
    "{{ 'in {x} of {y}'.format_map({'x': 1, 'y': 2026}) }}": "in 1 of 2026",
    "{{ [{'a': {'b': 2}}, {'a': {'b': 3}}]|sum('a.b', start=0) }}": "5",
    "{{ [[1], [2]]|sum(start=[]) }}": "[1, 2]",
    "{{ [1]|batch(10**9)|list }}": "[[1]]",
    "{{ 'aXbX'.replace('X', '-', 1) ~ 'aXbX'|replace('X', '-', count=1) }}": "a-bXa-bX",
    "{{ 'a b'.rsplit(' ', maxsplit=1)|join('|') }}": "a|b",
    "{% autoescape true %}{{ '<' ~ ('<'|safe) }}{% endautoescape %}": "&lt;<",
    "{{ cycler(*'ab').next() }}": "a",
    "{{ 2.5|round(none) }}{{ 2.25|round(1, 'ceil') }}": "22.3",
    "{{ 3 is odd }}{{ 4 is divisibleby 2 }}": "TrueTrue",
    "{{ {'a': [1, {}]}|tojson(indent='  ') }}": '{\n  "a": [\n    1,\n    {}\n  ]\n}',
    "{{ dict(a=1).items()|list }}{{ dict.fromkeys('ab', 0) }}": "[('a', 1)]{'a': 0, 'b': 0}",
    "{{ namespace(self=1).self }}": "1",
}


@pytest.mark.parametrize("source", HARMLESS)
def test_what_makes_little_is_let_through(source):
    assert ChatTemplate(source).render(USER) == HARMLESS[source]


METHOD_CALLS = (
    *("'aXb'.replace('X', '-')", "'a'.center(5)", "'a'.ljust(3) ~ '|'", "'7'.zfill(3)"),
    *("'a\tb'.expandtabs(tabsize=2)", "'-'.join(['a', 'b'])", "'{}!'.format(1)", "'a b'.split()"),
    "'xay'.strip('xy')",
)


@pytest.mark.parametrize("call", METHOD_CALLS)
@pytest.mark.parametrize(
    "around",
    [
        "{%% for m in messages %%}{{ %s }}{%% endfor %%}",
        "{%% block b %%}{{ %s }}{%% endblock %%}",
        "{%% for m in messages %%}{%% block c scoped %%}{{ %s }}{%% endblock %%}{%% endfor %%}",
    ],
    ids=["loop", "block", "block in a loop"],
)
def test_methods_of_text_work_in_loops_and_blocks(around, call):
    alone = ChatTemplate("{{ " + call + " }}").render(USER)
    assert ChatTemplate(around % call).render(USER) == alone


CONTEXTS = ("context", "environment", "env", "eval_ctx")


def parameters(function, *left_out):
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found if p.name not in left_out]


@pytest.mark.parametrize("name", sorted(ENVIRONMENT.filters))
def test_filters_have_jinja_s_signatures(name):
    mine, theirs = ENVIRONMENT.filters[name], JINJA_FILTERS[name]
    if name != "tojson":  # Hugging Face has its own
        assert parameters(mine) == parameters(theirs)
    if name in estimates.FILTERS:
        assert parameters(estimates.FILTERS[name], "budget") == parameters(theirs, *CONTEXTS)


@pytest.mark.parametrize("name", sorted(estimates.TESTS))
def test_checks_of_tests_have_jinja_s_signatures(name):
    assert parameters(estimates.TESTS[name], "budget") == parameters(JINJA_TESTS[name])


@pytest.mark.parametrize("name", ["batch", "slice"])
def test_jinja_s_own_keywords_are_understood(name):
    keyword = {"batch": "linecount", "slice": "slices"}[name]
    source = f"{{{{ [1, 2, 3]|{name}({keyword}=2, fill_with=0)|list }}}}"
    assert ChatTemplate(source).render(USER) == str([[1, 2], [3, 0]])


def test_what_a_template_is_given_is_plain_data():
    class Name(str):
        def secret(self):
            return "told"

    source = "{{ messages[0].content }}{{ messages[0].content.secret is defined }}"
    assert ChatTemplate(source).render([{"role": "user", "content": Name("hi")}]) == "hiFalse"
    with pytest.raises(TemplateError, match=r"messages\[0\]\.image is of type bytes, needs text"):
        ChatTemplate(source).render([{"role": "user", "image": b"x"}])


def test_what_is_none_in_a_message_is_left_out():
    source = "{{ 'content' in messages[0] }}{{ messages[0].tool_calls is defined }}"
    assert ChatTemplate(source).render([{"content": None, "tool_calls": None}]) == "FalseFalse"


def test_a_content_of_none_is_none_or_empty_where_a_template_needs_one():
    source = (
        "{% for m in messages %}{% if m['content'] is not none %}"
        "{{ m.role }}: {{ m['content'].split('</think>')[-1] }}{% else %}call{% endif %}"
        "{% endfor %}"
    )
    template = ChatTemplate(source)
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    said = {"role": "user", "content": "Hi"}
    assert template.render([said, call]) == "user: Hicall"
    with pytest.raises(TemplateError, match="no attribute 'content'"):  # as in transformers
        template.render([said, {"role": "assistant", "tool_calls": call["tool_calls"]}])
    plain = "{% for m in messages %}{{ m.content.strip() ~ m.role }}{% endfor %}"
    assert ChatTemplate(plain + "{# tool_calls #}").render([said, call]) == "Hiuserassistant"
    with pytest.raises(TemplateError, match="no attribute 'content'"):
        ChatTemplate(plain).render([said, call])
    with pytest.raises(TemplateError, match="no attribute 'name'"):
        ChatTemplate("{{ messages[0].name.first }}").render([call])


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_found_under_the_names_that_templates_know(name):
    source = "{{ messages[0].reasoning_content }} {{ messages[0].thinking }}"
    assert ChatTemplate(source).render([{name: "so"}]) == "so so"


def test_the_deadline_holds_off_the_main_thread():
    found = []

    def run():
        try:
            ChatTemplate(ATTACKS["loop: nested loops"], limits=Limits(seconds=0.2)).render(USER)
        except TemplateError as error:
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=PATIENCE)
    assert found == ["chat template: still running, needs to end in 0.2 s"]


def test_time_in_which_others_have_the_processor_does_not_count():
    def late():
        time.sleep(0.1)
        return datetime(2026, 7, 31)

    source = "{% for _ in range(3) %}{{ strftime_now('%d') }}{% endfor %}"
    template = ChatTemplate(source, limits=Limits(seconds=0.09), clock=late)
    assert template.render(USER) == "313131"


def test_each_rendering_has_its_own_budget():
    template = ChatTemplate("{{ 'a' * 1000 }}", limits=Limits(memory_bytes=4000))
    assert {len(template.render(USER)) for _ in range(20)} == {1000}


def test_a_long_conversation_is_within_the_limits():
    messages = [{"role": "user", "content": "word " * 400}] * 1000
    template = ChatTemplate(ITEMS_PER_THREAD, bos_token="", eos_token="")
    assert len(template.render(messages)) > 1_900_000
