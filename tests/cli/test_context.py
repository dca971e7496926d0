"""A context that is full: the chat goes on, and reports what it leaves out."""

from __future__ import annotations

import pytest

import wgpu_backend
from tests.cli.conftest import Cli
from wgpu_backend.cli.chat import Chat
from wgpu_backend.errors import ContextFull
from wgpu_backend.ops.sampling.host import SamplingOptions

GREEDY = SamplingOptions(temperature=0)
QUESTION = "Tell me a story about a fox named Pip."


@pytest.mark.slow
def test_a_chat_longer_than_the_context_goes_on_and_says_so_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with wgpu_backend.load(device="cpu", num_ctx=96) as model:
        chat = Chat(model, "Tell of Pip.", GREEDY, num_predict=6)
        for _ in range(7):
            chat.ask(QUESTION)
        said = capsys.readouterr().err.splitlines()
        assert said == [
            "wgpu-backend: the conversation is longer than the context of 96 tokens: its oldest "
            "messages are left out from here on"
        ]
        assert len(chat.messages) < 14
        with pytest.raises(ContextFull, match="newest message"):
            chat.ask("fox " * 96)
        assert chat.ask(QUESTION).text
        chat.messages.clear()
        chat.ask(QUESTION)
        assert capsys.readouterr().err == ""


def test_an_answer_that_the_context_cuts_says_so(cli: Cli) -> None:
    words = ("run", "story", "Tell me a story.", "--device", "cpu", "--temperature", "0")
    done = cli(*words, "--num-ctx", "32", "--verbose")
    said = done.err.splitlines()
    assert done.code == 0
    assert said[0] == (
        "wgpu-backend: the answer ends here, as the context of 32 tokens is full; "
        "--num-ctx makes it larger"
    )
    assert said[-1].split() == ["done", "reason:", "length"]
    assert "full" not in cli(*words, "--num-predict", "3").err
