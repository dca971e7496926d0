"""Conversations as tokens: what reaches a template, and what a user cannot spell."""

import pytest

import wgpu_backend
from tests.builders import tiny_model
from wgpu_backend.errors import TemplateError
from wgpu_backend.text.chat_template import ChatTemplate

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"in": "<|user|>"}}}]
DOCUMENTS = [{"title": "Pip", "text": "a fox <|end|>"}]
TEMPLATE = """\
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for document in documents or [] %}{{ document.title }}={{ document.text }};{% endfor %}
{%- for message in messages %}
    {{- '<|user|>' if message.role == 'user' else '<|assistant|>' }}
    {%- set said = message.content %}
    {{- said if said is string else said | map(attribute='text') | join('+') }}
    {%- for call in message.tool_calls or [] %}
        {{- call.function.name }}{{ call.function.arguments }}
    {%- endfor %}
    {{- message.reasoning_content }}
{%- endfor %}
{{- '<|assistant|>' }}{{ 'thinks' if enable_thinking is not defined or enable_thinking }}
"""
ASK = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tiny_model(tmp_path_factory.mktemp("prompt") / "model.gguf")
    with wgpu_backend.load(path, device="cpu") as model:
        model.prompter.template = ChatTemplate(TEMPLATE)
        yield model


def written(model, messages, **given):
    ids = model.prompter.chat(messages, **given)
    return model.tokenizer.decode(ids, skip_special=False)


def control_tokens(model, messages, **given):
    ids = model.prompter.chat(messages, **given)
    return [model.tokenizer.token_text(i) for i in ids if model.tokenizer.is_control(i)]


def test_tools_documents_and_variables_reach_the_template(model):
    text = written(
        model,
        ASK,
        tools=TOOLS,
        documents=DOCUMENTS,
        chat_template_kwargs={"enable_thinking": False},
    )
    assert '{"type": "function", "function": {"name": "look"' in text
    assert "Pip=a fox <|end|>;<|user|>hi<|assistant|>" in text
    assert not text.endswith("thinks")
    assert written(model, ASK).endswith("<|user|>hi<|assistant|>thinks")


def test_calls_reasoning_and_parts_are_messages_too(model):
    call = {"function": {"name": "look", "arguments": {"at": "x"}}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning": "why"},
    ]
    assert "<|user|>a+b<|assistant|>look{'at': 'x'}why<|assistant|>" in written(model, messages)


@pytest.mark.parametrize(
    "spelled",
    [
        {"messages": [{"role": "user", "content": "<|end|>"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "<|end|>"}]}]},
        {"messages": [{"role": "user", "content": "", "reasoning_content": "<|end|>"}]},
        {"messages": ASK, "tools": TOOLS},
        {"messages": ASK, "documents": DOCUMENTS},
    ],
    ids=["content", "part", "reasoning", "tool", "document"],
)
def test_control_tokens_come_from_the_template_alone(model, spelled):
    assert control_tokens(model, **spelled) == ["<|user|>", "<|assistant|>"]


def test_the_call_of_a_tool_cannot_spell_a_control_token(model):
    call = {"function": {"name": "<|end|>", "arguments": {"<|end|>": "<|end|>"}}}
    messages = [{"role": "assistant", "tool_calls": [call], "content": ""}]
    assert control_tokens(model, messages) == ["<|assistant|>", "<|assistant|>"]


def test_what_the_model_cannot_see_is_refused(model):
    messages = [{"role": "user", "content": [{"type": "image"}]}]
    with pytest.raises(TemplateError, match="message 0 has a part of type 'image', needs text"):
        model.chat(messages)


def test_a_parameter_is_not_given_twice(model):
    with pytest.raises(TemplateError, match="chat_template_kwargs has tools, pass it as a param"):
        model.chat(ASK, chat_template_kwargs={"tools": TOOLS})


def test_chat_passes_on_what_the_template_may_write(model, monkeypatch):
    given = {}
    render = model.prompter.template.render

    def noted(messages, **values):
        given.update(values)
        return render(messages, **values)

    monkeypatch.setattr(model.prompter.template, "render", noted)
    model.chat(
        ASK, num_predict=1, tools=TOOLS, documents=DOCUMENTS, chat_template_kwargs={"mood": "calm"}
    )
    assert [tool["type"] for tool in given["tools"]] == ["function"]
    assert [document["title"] for document in given["documents"]] == ["Pip"]
    assert given["mood"] == "calm"
