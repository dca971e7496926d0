"""`run` asks a server that runs already, and frames a model's reasoning as Ollama does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.cli.conftest import Cli
from wgpu_backend.cli.reply import format_parts, parse_parts
from wgpu_backend.text.output_parsers import parser_for

FAILED, USAGE = 1, 2
PIECES = [{"thinking": "Hm, "}, {"thinking": "red."}, {"content": "It is "}, {"content": "red."}]
REPLY = "Thinking...\nHm, red.\n...done thinking.\n\nIt is red.\n"


class Handler(BaseHTTPRequestHandler):
    """Ollama's API with one model, `tiny`."""

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        models = [{"name": "tiny:latest", "context_length": 64}]
        found = {"/api/version": self.server.version, "/api/ps": {"models": models}}
        self._send(200, [found[self.path]])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        if body["model"] == "damaged":
            self._send(400, [{"error": "damaged: header: starts with b'XXXX'"}])
        elif body["model"] != "tiny":
            self._send(404, [{"error": "model not found"}])
        elif self.path == "/api/show":
            self._send(200, [{"template": "{{ messages }}", "details": {"family": "llama"}}])
        elif self.path == "/api/generate":
            self._send(200, [{"response": " more"}, {"response": "", "done": True}])
        else:
            end = {"done": True, "done_reason": "stop", "eval_count": 4, "prompt_eval_count": 9}
            self._send(200, [*({"message": each} for each in PIECES), end])

    def _send(self, status: int, lines: list[dict[str, Any]]) -> None:
        data = "\n".join(map(json.dumps, lines)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Handler) as found:
        found.asked, found.version = [], {"version": "0.12.0", "wgpu_backend": "0.1.0"}
        threading.Thread(target=found.serve_forever, daemon=True).start()
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{found.server_port}")
        monkeypatch.delenv("WGPU_BACKEND_DEVICE", raising=False)
        yield found
        found.shutdown()


def test_a_model_of_a_running_server_is_asked_there(cli: Cli, server: HTTPServer) -> None:
    done = cli("run", "tiny", "Which colour?", "--top-k", "3", "--system", "Be brief.", "--think")
    assert (done.code, done.out) == (0, REPLY)
    path, body = server.asked[-1]
    assert path == "/api/chat"
    assert body["options"] == {"top_k": 3}  # the model has its own for all others
    assert (body["think"], [each["role"] for each in body["messages"]]) == (
        True,
        ["system", "user"],
    )


def test_hidethinking_keepalive_and_a_schema_reach_the_server(cli: Cli, server: HTTPServer) -> None:
    schema = '{"type": "string"}'
    words = ("--hidethinking", "--keepalive", "0", "--format", schema, "--num-ctx", "32")
    assert cli("run", "tiny", "Which colour?", *words).out == "It is red.\n"
    body = server.asked[-1][1]
    assert (body["keep_alive"], body["format"]) == ("0", json.loads(schema))
    assert body["options"] == {"num_ctx": 32}


def test_raw_text_is_continued_there_and_json_has_its_counts(cli: Cli, server: HTTPServer) -> None:
    assert cli("run", "tiny", "Once", "--raw").out == " more\n"
    assert server.asked[-1][1]["raw"] is True
    told = json.loads(cli("run", "tiny", "Once", "--json").out)
    assert (told["response"], told["eval_count"], told["done_reason"]) == ("It is red.", 4, "stop")


@pytest.mark.parametrize("option", [("--local",), ("--device", "cpu"), ("--exact",)])
def test_what_asks_for_a_model_here_is_not_sent(
    cli: Cli, server: HTTPServer, option: tuple[str, ...]
) -> None:
    done = cli("run", "tiny", "Which colour?", *option)
    assert (done.code, server.asked) == (USAGE, [])
    assert "no model of that name in the store" in done.err


def test_a_model_that_the_server_lacks_is_looked_for_here(cli: Cli, server: HTTPServer) -> None:
    assert cli("run", "other", "hi").code == USAGE
    assert [path for path, _ in server.asked] == ["/api/show"]


def test_keepalive_without_a_server_is_refused(cli: Cli) -> None:
    done = cli("run", "story", "hi", "--keepalive", "5m")
    assert (done.code, "--keepalive" in done.err) == (USAGE, True)


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("hides", "shown"),
    [(False, "Thinking...\nHm.\n...done thinking.\n\nYes."), (True, "Yes.")],
)
def test_reasoning_in_tags_is_framed_or_left_out(size: int, hides: bool, shown: str) -> None:
    text = "<think>\nHm.\n</think>\n\nYes."
    pieces = (text[at : at + size] for at in range(0, len(text), size))
    parser = parser_for("{{ '<think>' }}{% for m in messages %}{{ m }}{% endfor %}</think>")
    said: list[str] = []
    assert "".join(format_parts(parse_parts(pieces, parser), said, hides_thinking=hides)) == shown
    assert "".join(said) == "Yes."


def test_a_damaged_model_of_the_server_is_told_of(cli: Cli, server: HTTPServer) -> None:
    done = cli("run", "damaged", "hi")
    assert done.code == FAILED
    assert "header: starts with" in done.err
