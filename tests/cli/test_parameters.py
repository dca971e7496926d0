"""How answers are made is chosen alike on the command line and in a chat."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest

from tests.cli.conftest import Cli
from wgpu_backend.cli.chat import Chat
from wgpu_backend.cli.parameters import PARAMETERS, SAMPLING, Parameter
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.loading import load
from wgpu_backend.errors import OptionError
from wgpu_backend.ops.sampling.host import SamplingOptions

USAGE = 2
NUMBERS = [p for p in PARAMETERS.values() if p.kind != "texts"]
FIXED = ("--device", "cpu", "--temperature", "0", "--num-predict", "8")


@pytest.fixture
def chat() -> Chat:
    """A conversation with no model behind it, which parameters do not need."""
    model = cast("LanguageModel", type("Model", (), {"num_ctx": 64})())
    return Chat(model)


def test_the_table_has_every_option_of_the_sampler_and_its_default() -> None:
    defaults = {f.name: f.default for f in fields(SamplingOptions)}
    assert {name: PARAMETERS[name].default for name in SAMPLING} == defaults


@pytest.mark.parametrize("name", [p.name for p in NUMBERS if p.name in SAMPLING])
def test_ranges_are_those_of_the_sampler(name: str) -> None:
    parameter = PARAMETERS[name]
    step = 1 if parameter.kind == "whole" else 1e-3
    for value in (parameter.low, parameter.high):
        SamplingOptions(**cast("Any", {name: value}))
    for value in (parameter.low - step, parameter.high + step):
        with pytest.raises(OptionError, match=name):
            SamplingOptions(**cast("Any", {name: value}))


def test_run_has_an_option_for_every_parameter(cli: Cli) -> None:
    shown = cli("run", "--help").out
    assert [p.option for p in PARAMETERS.values() if f" {p.option} " not in shown] == []


def wrong(parameter: Parameter) -> list[str]:
    outside = [str(int(parameter.low) - 1), str(parameter.high + 1), "9" * 400, "-" + "9" * 400]
    return [
        *outside,
        "",
        "nan",
        "inf",
        "-inf",
        "many",
        "1e999",
        "\u0661",
        "1_0",
        "1\n2",
        "0x1",
        "--",
    ]


@pytest.mark.parametrize("parameter", NUMBERS, ids=lambda p: p.name)
def test_an_impossible_value_is_refused_with_name_value_and_range(
    cli: Cli, chat: Chat, parameter: Parameter
) -> None:
    expected = f": {{}}, needs a {'whole ' * (parameter.kind == 'whole')}number from "
    for text in wrong(parameter):
        shown = repr(text if len(text) < 60 else text[:60] + "…")
        done = cli("run", "story", "hi", f"{parameter.option}={text}")
        assert (done.code, done.out) == (USAGE, ""), text
        said = f"{parameter.option}{expected.format(shown)}{parameter.low} to {parameter.high}"
        assert done.err == f"wgpu-backend: {said}\n"
        with pytest.raises(
            OptionError, match=re.escape(said.replace(parameter.option, parameter.name))
        ):
            chat.set_parameter(parameter.name, [text])


@pytest.mark.parametrize("parameter", NUMBERS, ids=lambda p: p.name)
def test_the_ends_of_a_range_are_taken(parameter: Parameter) -> None:
    for value in (parameter.low, parameter.high):
        assert parameter.number(str(value)) == value


def test_a_parameter_set_in_a_chat_is_that_of_the_command_line(
    cli: Cli, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Chat] = []
    monkeypatch.setattr(Chat, "ask", lambda self, prompt: seen.append(self))
    values = {p.name: "1" for p in NUMBERS if p.name != "num_ctx"}
    words = [f"{PARAMETERS[name].option}={value}" for name, value in values.items()]
    cli("run", "story", "hi", *words, "--stop", "fox", "--stop", "the end", "--device", "cpu")
    for name, value in values.items():
        chat.set_parameter(name, [value])
    chat.set_parameter("stop", ["fox", "the end"])
    [given] = seen
    assert (given.options, given.num_predict, given.stop) == (
        chat.options, chat.num_predict, chat.stop,
    )  # fmt: skip
    assert given.stop == ("fox", "the end")


def test_an_empty_stop_text_is_refused(cli: Cli) -> None:
    done = cli("run", "story", "hi", "--stop", "")
    assert (done.code, done.err) == (
        USAGE, "wgpu-backend: --stop: '', needs at least one character\n",
    )  # fmt: skip


def test_an_answer_ends_at_a_stop_text(cli: Cli) -> None:
    whole = cli("run", "story", "Tell me a story.", *FIXED).out
    word = whole.split()[3]
    cut = cli("run", "story", "Tell me a story.", *FIXED, "--stop", word).out
    assert cut.strip() == whole[: whole.index(word)].strip()


def test_a_chat_loads_the_model_again_for_another_context(tiny: Path) -> None:
    made: list[LanguageModel] = []

    def reopen(num_ctx: int) -> LanguageModel:
        made.append(load(tiny, device="cpu", num_ctx=num_ctx))
        return made[-1]

    chat = Chat(reopen(64), reopen=reopen)
    chat.set_parameter("num_ctx", ["96"])
    assert chat.model is made[1]
    assert chat.parameters()["num_ctx"] == 96
    for model in made:
        model.close()


def test_json_has_the_answer_and_what_it_took_under_ollamas_names(cli: Cli) -> None:
    words = ("run", "story", "Tell me a story.", *FIXED)
    done = cli(*words, "--json")
    answered = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert answered["response"] + "\n" == cli(*words).out
    assert answered["model"] == "story"
    assert (answered["done"], answered["done_reason"], answered["eval_count"]) == (
        True,
        "length",
        8,
    )
    durations = [answered[f"{n}_duration"] for n in ("total", "load", "prompt_eval", "eval")]
    assert all(isinstance(duration, int) and duration > 0 for duration in durations)
    assert durations[0] == pytest.approx(sum(durations[1:]), abs=2)
    assert answered["prompt_eval_count"] > 3
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", answered["created_at"])


def test_json_of_a_chat_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wgpu_backend.cli.commands.run.is_terminal", lambda stream: True)
    done = cli("run", "story", "--json")
    assert (done.code, done.err) == (USAGE, "wgpu-backend: run: --json needs a prompt\n")
