"""The table of endpoints: each answers, is documented, and is what the OpenAPI document says."""

import hashlib
import re
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

from tests.server.serving import client_of
from wgpu_backend.engine.loading import bundled

PAGE = Path(__file__).parents[2] / "docs/server.md"
# A picture of one black pixel.
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"
)
SHORT = {"num_predict": 1, "temperature": 0}
SAID = [{"role": "user", "content": "Hi"}]
STORY = f"sha256:{hashlib.sha256(bundled().read_bytes()).hexdigest()}"
# A body, or what a path's parameter is, or both; and the status where it is not 200.
ANSWERED = {
    ("GET", "/"): None,
    ("GET", "/api/version"): None,
    ("GET", "/api/tags"): None,
    ("GET", "/api/ps"): None,
    ("POST", "/api/show"): {"model": "tale"},
    ("POST", "/api/copy"): {"source": "tale", "destination": "twin"},
    ("DELETE", "/api/delete"): {"model": "twin"},
    ("POST", "/api/push"): ({"model": "none"}, None, 404),
    ("POST", "/api/pull"): ({"model": "http://localhost/library/none"}, None, 400),
    ("POST", "/api/create"): {"model": "made", "from": "tale"},
    ("HEAD", "/api/blobs/{digest}"): (None, STORY, 200),
    ("POST", "/api/blobs/{digest}"): (None, "sha256:" + hashlib.sha256().hexdigest(), 200),
    ("POST", "/api/generate"): {"model": "tale", "prompt": "a", "options": SHORT},
    ("POST", "/api/chat"): {"model": "tale", "messages": SAID, "options": SHORT},
    ("POST", "/api/embed"): {"model": "tale", "input": "a"},
    ("POST", "/api/embeddings"): {"model": "tale", "prompt": "a"},
    ("POST", "/v1/chat/completions"): {"model": "tale", "messages": SAID, "max_tokens": 1},
    ("POST", "/chat/completions"): {"messages": SAID, "max_tokens": 1},
    ("POST", "/chat/completions/input_tokens"): {"model": "tale", "messages": SAID},
    ("POST", "/v1/chat/completions/input_tokens"): {"model": "tale", "messages": SAID},
    ("POST", "/responses"): {"input": "Hi", "max_output_tokens": 1},
    ("POST", "/v1/completions"): {"model": "tale", "prompt": "a", "max_tokens": 1},
    ("POST", "/v1/responses"): {"model": "tale", "input": "Hi", "max_output_tokens": 1},
    ("POST", "/v1/embeddings"): {"model": "tale", "input": "a"},
    ("POST", "/v1/images/generations"): {"prompt": "a red circle", "steps": 1},
    ("POST", "/v1/images/edits"): {"prompt": "a red circle", "steps": 2, "image": PIXEL},
    **dict.fromkeys(
        [("POST", f"/v1/audio/{end}") for end in ("transcriptions", "translations")],
        ({"model": "tale", "file": "UklGRg=="}, None, 400),
    ),
    ("GET", "/v1/models"): None,
    ("GET", "/v1/models/{name}"): (None, "tale", 200),
    ("GET", "/models"): None,
    ("POST", "/v1/messages"): {"model": "tale", "messages": SAID, "max_tokens": 1},
    ("POST", "/v1/messages/count_tokens"): {"model": "tale", "messages": SAID},
    **dict.fromkeys(
        [("POST", path) for path in ("/v1/rerank", "/v1/reranking", "/rerank", "/reranking")],
        ({"model": "tale", "query": "a", "documents": ["b"]}, None, 400),
    ),
    ("POST", "/completion"): {"model": "tale", "prompt": "a", "n_predict": 1},
    ("POST", "/completions"): {"model": "tale", "prompt": "a", "n_predict": 1},
    ("POST", "/infill"): {"model": "actor", "input_prefix": "a", "n_predict": 1},
    ("POST", "/tokenize"): {"model": "tale", "content": "a"},
    ("POST", "/detokenize"): {"model": "tale", "tokens": [5]},
    ("POST", "/apply-template"): {"model": "tale", "messages": SAID},
    ("POST", "/embedding"): {"model": "tale", "content": "a"},
    ("POST", "/embeddings"): {"model": "tale", "content": "a"},
    ("POST", "/slots/{slot}"): (None, "0?action=erase", 200),
    ("POST", "/extras/tokenize"): {"model": "tale", "input": "a"},
    ("POST", "/extras/tokenize/count"): {"model": "tale", "input": "a"},
    ("POST", "/extras/detokenize"): {"model": "tale", "tokens": [5]},
    ("GET", "/props"): None,
    ("GET", "/tokenizer_info"): None,
    ("GET", "/lora-adapters"): None,
    ("POST", "/lora-adapters"): ([{"id": 0}], None, 400),
    ("GET", "/slots"): None,
    ("GET", "/health"): None,
    ("GET", "/v1/health"): None,
    ("GET", "/metrics"): None,
    ("GET", "/openapi.json"): None,
    ("GET", "/page/{name}"): (None, "page.js", 200),
    ("GET", "/inspect/machine"): None,
    ("POST", "/inspect/attention"): {"model": "tale", "prompt": "a fox", "layer": 0},
    ("POST", "/inspect/graph"): {"model": "tale", "tokens": 5},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with client_of(tmp_path_factory.mktemp("store"), default_model="tale") as client:
        yield client


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    root = tmp_path_factory.mktemp("strict")
    with client_of(root, default_model="tale", strict=True) as client:
        yield client


@pytest.fixture(scope="module")
def described(client):
    return client.get("/openapi.json").json()


def operations(described):
    return {
        (method.upper(), path): operation
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    }


def test_every_endpoint_is_in_this_table(described):
    assert set(operations(described)) == set(ANSWERED)


@pytest.mark.parametrize("endpoint", ANSWERED, ids=" ".join)
def test_an_endpoint_answers(client, endpoint):
    given = ANSWERED[endpoint]
    body, parameter, status = given if isinstance(given, tuple) else (given, None, 200)
    if endpoint[0] == "DELETE":
        # Made here: another process may run the test of /api/copy.
        client.post("/api/copy", json={"source": "tale", "destination": body["model"]})
    path = re.sub(r"\{\w+\}", parameter or "", endpoint[1])
    found = (
        client.request(endpoint[0], path, json=body) if body else client.request(endpoint[0], path)
    )
    assert found.status_code == status, found.text


@pytest.mark.parametrize("endpoint", [e for e, given in ANSWERED.items() if given], ids=" ".join)
def test_fields_are_those_of_the_document(client, strict, described, endpoint):
    operation = operations(described).get(endpoint, {})
    if "requestBody" not in operation:
        return
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    given = ANSWERED[endpoint]
    body = given[0] if isinstance(given, tuple) else given
    assert set(body) <= set(schema["properties"])
    other = {**body, "no_such_field": 1}
    wrong = strict.request(*endpoint, json=other)
    assert (wrong.status_code, "no_such_field: no such field" in wrong.text) == (400, True)
    ignored = client.request(*endpoint, json={**dict.fromkeys(body), "no_such_field": 1})
    assert ignored.headers["warning"] == '299 wgpu-backend "ignored: no_such_field"'
    for name in schema.get("required", []):
        found = client.request(*endpoint, json={k: v for k, v in body.items() if k != name})
        assert (found.status_code, f"{name} is required" in found.text) == (400, True)
    for name, field in schema["properties"].items():
        if "boolean" in field["type"] and "string" not in field["type"]:
            found = client.request(*endpoint, json={**body, name: "yes"})
            assert (found.status_code, f"{name}: 'yes', needs" in found.text) == (400, True)


def test_every_endpoint_is_on_the_page(described):
    table = PAGE.read_text().split("## Endpoints")[1].split("\n\n")[1]
    rows = dict(re.findall(r"^\| (\w[\w-]*) \| (.*) \|$", table, re.MULTILINE))
    found = {api: set(re.findall(r"`([A-Z]+ /[^`]*)`", text)) for api, text in rows.items()}
    wanted: dict[str, set[str]] = {}
    for (method, path), operation in operations(described).items():
        wanted.setdefault(operation["tags"][0], set()).add(f"{method} {path}")
    assert {api: rows for api, rows in found.items() if rows} == wanted
