"""generate(format=…) and chat(format=…) of a model and of its sessions."""

import json
import re

import pytest

import wgpu_backend
from tests.builders import tiny_model
from tests.patience import PATIENCE
from wgpu_backend import Grammar
from wgpu_backend.errors import GrammarError

HOT = {"temperature": 2.0, "seed": 5, "top_k": 0}
SCHEMA = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}
CHAT = {"tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tiny_model(tmp_path_factory.mktemp("format") / "model.gguf", extra=CHAT)
    with wgpu_backend.load(path, device="cpu") as model:
        yield model


def booleans(text):
    found = json.loads(text)
    return len(found) in (2, 3) and all(isinstance(each, bool) for each in found)


@pytest.mark.parametrize("options", [HOT, {"temperature": 0}, {**HOT, "repeat_penalty": 1.5}])
def test_an_answer_is_what_was_asked_for(model, options):
    for form in (SCHEMA, json.dumps({**SCHEMA, "title": "both"}), Grammar.json_schema(SCHEMA)):
        assert booleans(model.generate("the", format=form, options=options))
    assert model.stats.done_reason == "stop"
    assert booleans("".join(model.chat("the", stream=True, format=SCHEMA, options=options)))
    with model.session() as session:
        assert booleans(session.chat("the", format=SCHEMA, options=options))


def test_the_same_seed_gives_the_same_text_as_an_engine(model):
    move = Grammar.regex("[a-h][1-8] [a-h][1-8]")
    made = [model.generate("the", raw=True, format=move, options=HOT) for _ in range(2)]
    assert made[0] == made[1]
    assert re.fullmatch(move.text, made[0])
    with wgpu_backend.Engine(model) as engine:
        # With log probabilities an engine chooses every token, too.
        asked = engine.complete("the", grammar=move, options=HOT, logprobs=0)
        assert asked.result(PATIENCE).text == made[0]


def test_any_object_and_limits(model):
    made = model.generate("the", format="json", options=HOT, num_predict=3)
    assert made.startswith("{")
    assert (model.stats.done_reason, model.stats.tokens) == ("length", 3)


def test_what_cannot_be_used_is_told_before_anything_is_made(model):
    with pytest.raises(GrammarError, match="format: 'yaml'"):
        model.generate("the", format="yaml")
    with pytest.raises(GrammarError, match="Unimplemented"):
        model.generate("the", stream=True, format={"not": {}})
    assert model.generate("the", num_predict=2)
