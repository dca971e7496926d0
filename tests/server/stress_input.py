"""Bad input for a running server, as the command ``input`` of `tests.server.stress`.

Each request has to be answered within its time, by no 5xx but 503, and by a server that goes on
with the worker that it has; `malformed` alone gets another one, as a context of a size of its own
loads the model again.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from tests import builders
from tests.server.running import ServerProcess
from wgpu_backend.files.store.modelfile import Modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create

MOST_SECONDS = 20.0
Headers = dict[str, str]
Bad = tuple[str, str, bytes, Headers]
"""Method, path, body, and headers beside the usual ones."""
ASKS = {
    "/api/generate": lambda text: {"prompt": text, "raw": True},
    "/api/chat": lambda text: {"messages": [{"role": "user", "content": text}]},
    "/api/embed": lambda text: {"input": text},
    "/v1/completions": lambda text: {"prompt": text},
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}]},
    "/v1/responses": lambda text: {"input": text},
    "/v1/embeddings": lambda text: {"input": text},
    "/v1/messages": lambda text: {
        "messages": [{"role": "user", "content": text}], "max_tokens": 2,
    },
    "/v1/rerank": lambda text: {"query": text, "documents": [text]},
    "/completion": lambda text: {"prompt": text},
    "/infill": lambda text: {"input_prefix": text, "input_suffix": text},
    "/tokenize": lambda text: {"content": text},
    "/apply-template": lambda text: {"messages": [{"role": "user", "content": text}]},
}  # fmt: skip


def posted(path: str, body: Any, **headers: str) -> Bad:
    given = body if isinstance(body, bytes) else json.dumps(body).encode()
    return "POST", path, given, headers


def large() -> Iterator[Bad]:
    """Prompts of ten megabytes: words, one word, digits, emoji, and what no tokenizer merges."""
    size = 10 << 20
    random_bytes = random.Random(1).randbytes(size).decode("latin-1")
    texts = ("once upon a time " * (size // 17), "a" * size, "7" * size, "🦙" * (size // 4))
    for (path, ask), text in product(ASKS.items(), texts):
        yield posted(path, {"model": "tiny", **ask(text)})
    yield posted("/tokenize", {"content": random_bytes})
    yield posted("/detokenize", {"tokens": [1] * (size // 2)})
    yield posted("/completion", {"prompt": [1] * (size // 2)})
    yield posted("/completion", {"prompt": "a", "stop": ["b" * size], "n_predict": 2})
    yield posted("/completion", {"prompt": "a", "logit_bias": [[1, 1]] * 500_000, "n_predict": 2})
    yield posted(
        "/api/chat", {"model": "tiny", "messages": [{"role": "user", "content": "a"}] * 200_000}
    )
    yield posted("/v1/embeddings", {"model": "tiny", "input": ["a"] * 1_000_000})
    yield posted("/api/generate", b" " * (65 << 20))


def malformed() -> Iterator[Bad]:
    """What is no JSON, or too much of it."""
    bodies = (
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"\x00", b'{"model": NaN}', b'{"model": "\\ud800"}',
        b"[" * 1_000_000, b'{"a":' * 200_000, b'{"model": ' + b"9" * 1_000_000 + b"}",
        b'{"options": {"num_predict": 1e999}}', b'{"options": {"seed": ' + b"9" * 5000 + b"}}",
        b'{"model": "tiny", "model": {}}', b'{"model": "tiny", "prompt": {"a": [{}]}}',
        b'{"model": "tiny", "options": {"num_ctx": -1}}',
        b'{"model": "tiny", "options": {"num_ctx": 1e18}}',
        b'{"model": "tiny", "keep_alive": "9h9q"}', b"\xef\xbb\xbf{}", b"a=b&c=d",
    )  # fmt: skip
    for path, body in product(ASKS, bodies):
        yield posted(path, body)
        yield posted(path, body, **{"Content-Type": "multipart/form-data; boundary=x"})


def paths() -> Iterator[Bad]:
    """Names, digests and places that lead out of the store."""
    names = (
        "../../etc/passwd", "/etc/passwd", "a/../../b", "a\\..\\b", "\x00", "a" * 100_000, "\ud800",
        "http://169.254.169.254/a/b", "file:///etc/passwd", "a:b:c", "..", ".", " ", "%2e%2e/a",
    )  # fmt: skip
    for name in names:
        for path in ("/api/show", "/api/generate", "/api/delete", "/api/push", "/v1/completions"):
            method = "DELETE" if path == "/api/delete" else "POST"
            yield method, path, json.dumps({"model": name, "prompt": "a"}).encode(), {}
        yield posted("/api/copy", {"source": "tiny", "destination": name})
        yield posted("/api/create", {"model": "x", "from": name})
        yield posted("/api/create", {"model": "x", "files": {name: name}})
        yield posted("/api/create", {"model": "x", "from": "tiny", "adapters": {"a": name}})
        yield posted("/api/create", {"model": name, "from": "tiny"})
    places = ("..", "../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/x", "%00")
    digests = (*places, "sha256:..", "sha256:" + "g" * 64, "sha256:" + "a" * 63, "md5:" + "a" * 64)
    for digest in digests:
        yield posted(f"/api/blobs/{digest}", b"x")
        yield "HEAD", f"/api/blobs/{digest}", b"", {}
    for place in places:
        yield "GET", f"/page/{place}", b"", {}
        yield "GET", f"/v1/models/{place}", b"", {}


def poisoned() -> Iterator[Bad]:
    """Schemas, grammars and options that would keep a server busy."""
    rules = {f"r{i}": {"$ref": f"#/$defs/r{i + 1}"} for i in range(5_000)}
    both: Any = {"type": "string"}
    for _ in range(40):
        both = {"anyOf": [both, both]} if len(json.dumps(both)) < 200_000 else both
    schemas: tuple[Any, ...] = (
        {"type": "string", "pattern": "(a+)+$"},
        {"type": "string", "pattern": "(.*a){1,200}(.*b){1,200}"},
        {"type": "string", "pattern": "a{1,1000000000}"},
        {"type": "string", "pattern": "(" * 5000 + "a" + ")" * 5000},
        {"allOf": [{"type": "string", "pattern": f"(.*a.{{{i}}})"} for i in range(1, 30)]},
        {"$defs": {**rules, "r5000": {}}, "$ref": "#/$defs/r0"},
        {"$ref": "#"}, {"$ref": "http://127.0.0.1:1/x"}, {"$ref": "file:///etc/passwd"},
        {"type": "array", "items": {}, "minItems": 10**9},
        {"type": "string", "minLength": 10**9},
        {"enum": list(range(200_000))},
        {"properties": {f"p{i}": {} for i in range(20_000)}},
        both, {"type": "string", "format": "x" * 100_000}, {"not": {}}, False,
    )  # fmt: skip
    ask = {"model": "tiny", "prompt": "a", "stream": False, "options": {"num_predict": 4}}
    for schema in schemas:
        yield posted("/api/generate", {**ask, "format": schema})
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
        yield posted("/v1/chat/completions", {**chat, "response_format": form})
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        yield posted("/v1/chat/completions", {**chat, "tools": [tool]})
    nested = b'{"items":' * 20_000 + b"{}" + b"}" * 20_000
    yield posted("/api/generate", b'{"model":"tiny","prompt":"a","format":' + nested + b"}")
    grammars = (
        "root ::= root", "root ::= " + "(" * 9_000, 'root ::= "a"{1000000000}', "x" * 400_000,
        'root ::= ("a"*)*', 'root ::= a b\na ::= b*\nb ::= a*', 'root ::= [^\\x00-\\x7f]{1,99999}',
    )  # fmt: skip
    for grammar in grammars:
        yield posted("/completion", {"prompt": "a", "n_predict": 4, "grammar": grammar})
    for name, value in product(
        ("n_predict", "temperature", "top_k", "repeat_last_n", "n_probs", "seed", "n"),
        (-(10**30), 10**30, "x", [], None, 1e308),
    ):
        yield posted("/completion", {"prompt": "a", "n_predict": 2, name: value})


TEMPLATES = (
    "{% for i in range(10**9) %}{% for j in range(10**9) %}x{% endfor %}{% endfor %}",
    "{{ 'x' * 10**10 }}", "{{ '%1000000000d' % 1 }}", "{{ '{:>1000000000}'.format(1) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ 10 ** 10 ** 10 }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages|map(attribute='__class__') }}",
    "{% set x = [1] %}{% for i in range(60) %}{% set _ = x.extend(x) %}{% endfor %}{{ x }}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
    "{% endfor %}",
    "{% include '/etc/passwd' %}", "{% import 'os' as os %}", "{{ cycler.__init__.__globals__ }}",
    "{{ '" + "a" * 100_000 + "' | wordwrap(1) }}", "{" * 100_000, "{{ " + "(" * 5_000 + ")" * 5_000,
    "{{ range(99999) | list | tojson(indent=100000) }}", "{{ lipsum(n=100000) }}",
    "{{ 'a'.center(10**10) }}", "{{ ['a' * 1000] | join('b' * 10**9) }}",
    "{{ dict(a=1) | pprint | indent(10**9) }}", "{{ 'a' | replace('a', 'b' * 10**9) }}",
)  # fmt: skip


def templates(server: ServerProcess, folder: Path) -> Iterator[Bad]:
    """Models whose chat templates are poisoned: made, then asked."""
    for i, template in enumerate(TEMPLATES):
        path = _model(folder / "t.gguf", template)
        content, name = path.read_bytes(), f"t{i}"
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        yield posted(f"/api/blobs/{digest}", content)
        yield posted("/api/create", {"model": name, "files": {"a.gguf": digest}})
        chat = {"model": name, "messages": [{"role": "user", "content": "a"}], "stream": False}
        yield posted("/api/show", {"model": name})
        yield posted("/apply-template", chat)
        yield posted("/api/chat", {**chat, "options": {"num_predict": 2}, "keep_alive": 0})
        yield "DELETE", "/api/delete", json.dumps({"model": name}).encode(), {}
    assert server.process.poll() is None


def strangers() -> Iterator[Bad]:
    """Pages of other names and origins, as DNS rebinding makes them."""
    hosts = (
        "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:11434", "evil.example:80",
        "[::ffff:1.2.3.4]", "0x7f.1", "2130706433", "localhost@evil.example", "", "a" * 10_000,
    )  # fmt: skip
    for path in ("/api/tags", "/", "/metrics", "/health", "/page/app.js", "/openapi.json"):
        for host in hosts:
            yield "GET", path, b"", {"Host": host}
    for origin in ("https://evil.example", "null", "http://localhost.evil.example", "file://"):
        yield posted("/api/generate", {"model": "tiny", "prompt": "a"}, Origin=origin)
        yield (
            "OPTIONS",
            "/api/chat",
            b"",
            {"Origin": origin, "Access-Control-Request-Method": "POST"},
        )


@dataclass
class Answers:
    """Statuses of a group, and the slowest."""

    statuses: dict[int, int] = field(default_factory=dict[int, int])
    seconds: float = 0.0
    slowest: str = ""
    wrong: list[str] = field(default_factory=list[str])

    def note(self, bad: Bad, status: int, seconds: float) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        told = f"{bad[0]} {bad[1][:60]} {bad[2][:90]!r} {str(bad[3])[:60]}"
        if seconds > self.seconds:
            self.seconds, self.slowest = seconds, told
        if (status >= 500 and status != 503) or seconds > MOST_SECONDS:
            self.wrong.append(f"wrong: {status} after {seconds:.1f} s: {told}")


def answered(server: ServerProcess, bad: Bad) -> int:
    """Status of an answer, read to its end; 499 where the server closes, which it may do early."""
    method, path, body, headers = bad
    with closing(server.connection()) as connection:
        try:
            connection.putrequest(method, path, skip_host="Host" in headers)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                connection.putheader(name, value)
            connection.endheaders()
            connection.send(body)
            response = connection.getresponse()
            told = response.read()
        except (ConnectionError, http.client.RemoteDisconnected, socket.gaierror):
            return 499
        return _within(told) or response.status


def _within(told: bytes) -> int:
    """Status of an error that ends a stream; 0 where there is none."""
    with suppress(ValueError, IndexError):
        last = json.loads(told.splitlines()[-1])
        if isinstance(last, dict) and "error" in last:
            return cast("dict[str, Any]", last).get("status", 0)
    return 0


def inputs(folder: Path, _count: int, _rng: random.Random) -> Iterator[str]:
    """Send all of them, and compare the server before and after."""
    _made(folder)
    ask = {"model": "tiny", "prompt": "a", "stream": False, "options": {"num_predict": 2}}
    with ServerProcess(folder, "--num-ctx", "256", "--model", "tiny") as server:
        assert server.ask("POST", "/api/generate", {**ask, "keep_alive": -1})[0] == 200
        before = (server.files, server.mib)
        groups = {
            "prompts of 10 MB": large(), "malformed": malformed(), "paths": paths(),
            "schemas and options": poisoned(), "templates": templates(server, folder),
            "strangers": strangers(),
        }  # fmt: skip
        for name, group in groups.items():
            found, worker = Answers(), server.workers[0]
            for bad in group:
                begin = time.monotonic()
                status = answered(server, bad)
                found.note(bad, status, time.monotonic() - begin)
            statuses = ", ".join(
                f"{count} x {code}" for code, count in sorted(found.statuses.items())
            )
            yield f"{name}: {statuses}; slowest {found.seconds:.1f} s: {found.slowest}"
            yield f"  the same worker: {worker in server.workers}"
            yield from found.wrong
        yield f"then: {server.ask('POST', '/api/generate', ask)[0]}"
        yield f"files {before[0]} before, {server.files} after"
        yield f"memory {before[1]:.0f} MiB before, {server.mib:.0f} MiB after"
    yield f"server ended with {server.process.returncode}"


def _model(path: Path, template: str) -> Path:
    with patch.object(builders, "CHAT_TEMPLATE", template):
        return builders.tiny_model(path)


def _made(folder: Path) -> None:
    path = _model(folder / "m.gguf", "{% for m in messages %}{{ m.content }}{% endfor %}")
    create(Store(folder / "models"), ModelName.parse("tiny"), Modelfile(str(path), {}), folder)
