"""Chatting on a terminal, typed at through a pseudo-terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("termios", reason="needs a POSIX terminal")

from tests.cli.terminal import Terminal
from tests.files.store.registry import Registry
from wgpu_backend.engine.loading import bundled

OPTIONS = ("--device", "cpu", "--temperature", "0", "--num-predict", "12")


@pytest.fixture
def chat() -> Iterator[Terminal]:
    with Terminal("run", "story", *OPTIONS) as terminal:
        yield terminal


@pytest.fixture(scope="module")
def shared() -> Iterator[Terminal]:
    """Chat for commands that leave nothing behind."""
    with Terminal("run", "story", *OPTIONS) as terminal:
        yield terminal


@pytest.mark.slow
def test_a_prompt_is_answered_and_another_one_awaited(chat: Terminal) -> None:
    chat.line("Tell me a story.")
    chat.expect("(Once|Long|One|There|In)[^>]+\n>>> ")
    chat.type("/bye\r")
    assert chat.leave() == 0


@pytest.mark.slow
def test_ctrl_d_leaves(chat: Terminal) -> None:
    chat.expect(">>> ")
    chat.type("\x04")
    assert chat.leave() == 0


@pytest.mark.slow
def test_ctrl_c_at_the_prompt_says_how_to_leave(chat: Terminal) -> None:
    chat.expect(">>> ")
    chat.type("\x03")
    chat.expect("Ctrl-D or /bye leaves")
    chat.line("/bye")
    assert chat.leave() == 0


@pytest.mark.slow
def test_ctrl_c_stops_an_answer_and_the_chat_goes_on() -> None:
    with Terminal("run", "story", *OPTIONS[:4], "--verbose") as chat:
        chat.line("Tell me a story.")
        chat.expect(r"story\.\n\w+ \w+")
        chat.type("\x03")
        chat.expect("done reason: +interrupted")
        chat.line("/set parameter num_predict 3")
        chat.expect("num_predict is 3")
        chat.line("Tell me a story.")
        chat.expect("done reason: +length")
        chat.line("/bye")
        assert chat.leave() == 0


@pytest.mark.slow
def test_a_text_of_several_lines_is_one_prompt(chat: Terminal) -> None:
    chat.line("/set verbose")
    chat.line("Tell me")
    alone = chat.expect("prompt eval count: +[0-9]+")
    chat.line('"""Tell me')
    chat.expect(r"\.\.\.")
    chat.type("a story\r")
    chat.expect(r"\n\.\.\.")
    chat.type('about a fox."""\r')
    together = chat.expect("prompt eval count: +[0-9]+")
    assert int(together.split()[-1]) > int(alone.split()[-1])


def prompt_tokens(chat: Terminal) -> int:
    """Tokens of the conversation that the next answer is given, computed or cached."""
    chat.line("Tell me a story.")
    stats = chat.expect("eval rate: +[0-9.]+ tokens/s\\s+(prompt cached: +[0-9]+)?")
    chat.expect("done reason")
    return sum(map(int, re.findall(r"prompt (?:eval count|cached): +(\d+)", stats)))


@pytest.mark.slow
def test_clear_forgets_the_conversation(chat: Terminal) -> None:
    chat.line("/set verbose")
    first, longer = prompt_tokens(chat), prompt_tokens(chat)
    chat.line("/clear")
    chat.expect("conversation cleared")
    assert (first < longer, prompt_tokens(chat)) == (True, first)


@pytest.mark.slow
def test_parameters_are_set_and_shown(chat: Terminal) -> None:
    chat.line("/set parameter top_k 7")
    chat.expect("top_k is 7")
    chat.line("/set parameter stop fox 'the end'")
    chat.expect(r"stop is \['fox', 'the end'\]")
    chat.line("/show parameters")
    chat.expect("top_k +7")
    chat.line("/set parameter num_ctx 100")
    chat.expect("num_ctx is 100")
    chat.line("/set parameter")
    chat.expect("top_k +7 +0 or more +Sample from")
    chat.expect("num_ctx +100 ")


@pytest.mark.parametrize(
    ("typed", "answered"),
    [
        ("/nonsense", "/nonsense: no such command"),
        ("/set nonsense", "/set: needs parameter, system, format, verbose"),
        ("/set parameter nonsense 1", "parameter 'nonsense': unknown, needs one of temperature"),
        ("/set parameter stop ''", "stop: '', needs at least one character"),
        ("/set parameter seed x", "seed: 'x', needs a whole number"),
        ("/set parameter temperature -1", "temperature: '-1', needs a number from 0 to 100"),
        ("/show nonsense", "/show: needs info"),
        ("/help", "/set parameter NAME VALUE"),
        ("/?", "/bye"),
        ("/show info", "architecture +llama"),
        ("/show template", r"\{%-? ?for"),
        ("/show system", "none"),
    ],
)
def test_a_command_answers(shared: Terminal, typed: str, answered: str) -> None:
    shared.line(typed)
    shared.expect(answered)


@pytest.mark.slow
def test_the_system_message_is_kept(chat: Terminal) -> None:
    chat.line('/set system "You tell stories."')
    chat.expect("the system message is set")
    chat.line("/show system")
    chat.expect("You tell stories.\n")


@pytest.mark.slow
def test_what_was_typed_is_there_in_the_next_chat(tmp_path: Path) -> None:
    kept = tmp_path / "wgpu-backend" / "history"
    kept.parent.mkdir()
    kept.write_text("\n# an earlier chat\n+/bye\n", encoding="utf-8")
    homes = {"XDG_STATE_HOME": str(tmp_path), "WGPU_BACKEND_NO_HISTORY": ""}
    with Terminal("run", "story", *OPTIONS, **homes) as chat:
        chat.line("/set quiet")
        chat.expect(">>> ")
        chat.type("\x1b[A\x1b[A")  # up, twice
        chat.expect("/bye")
        chat.type("\r")
        assert chat.leave() == 0
    assert "+/set quiet\n" in kept.read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_answer_follows_a_window_that_changes() -> None:
    with Terminal("run", "story", *OPTIONS[:4], columns=90) as chat:
        chat.line("Tell me a story.")
        wide = chat.expect(r"\n(\S+ ){5,}[^\n]*\n")
        chat.resize(30)
        rest = chat.expect(">>> ")
    assert max(map(len, wide.splitlines())) > 60
    # The line that was begun, and what the window had no part in, may be longer.
    assert max(map(len, rest.splitlines()[2:-1])) <= 30


@pytest.mark.slow
def test_a_conversation_longer_than_the_context_is_one_line() -> None:
    with Terminal("run", "story", *OPTIONS, "--num-ctx", "32") as chat:
        chat.line("fox " * 40)
        chat.expect("the context holds 32; shorten it")
        chat.line("/bye")
        assert chat.leave() == 0


@pytest.mark.slow
def test_a_chat_is_saved_and_gone_on_with(tmp_path: Path) -> None:
    models = {"OLLAMA_MODELS": str(tmp_path)}
    with Terminal("run", "story", *OPTIONS, **models) as chat:
        chat.line("/set system Be brief.")
        chat.line("/set parameter num_predict 4")
        chat.expect("num_predict is 4")
        chat.line("Tell me a story.")
        chat.line("/save mine")
        chat.expect("saved as mine:latest")
        chat.line("/load nowhere")
        chat.expect("nowhere: no such file")
        chat.line("/clear")
        chat.line("/load mine")
        chat.expect("Loading mine [^>]+loaded mine with 2 messages")
        chat.line("/show modelfile")
        chat.expect("PARAMETER num_predict 4[^>]+MESSAGE user .Tell me a story")
        chat.line("/show system")
        chat.expect("Be brief")
        chat.line("/set format json")
        chat.expect("answers follow the format")
        chat.line("/set noformat")
        chat.expect("answers have no format")
        chat.line("/bye")
        assert chat.leave() == 0


@pytest.mark.slow
def test_a_missing_model_is_pulled_where_the_user_says_so(tmp_path: Path) -> None:
    models = {"OLLAMA_MODELS": str(tmp_path)}
    with Registry(bundled().read_bytes()) as registry:
        words = ("run", registry.name, "--insecure", "--device", "cpu")
        with Terminal(*words, **models) as chat:
            chat.expect(r"is not here; pull it from 127\.0\.0\.1:\d+\? \[y/N\] ")
            chat.type("n\n")
            assert chat.leave() == 2
        assert registry.asked == []
        with Terminal(*words, **models) as chat:
            chat.expect("pull it from")
            chat.type("y\n")
            chat.line("/bye")
            assert chat.leave() == 0
