"""Clients of other projects against `wgpu-backend serve`, a script for each.

The variable WGPU_BACKEND_CLIENTS names a Python that has them, this one is the default; NODE_PATH
names a folder of npm's packages; WGPU_BACKEND_CLIENTS_MODEL a GGUF file in the place of the story
model. `pytest -m clients -s` prints what each does.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from PIL import Image, ImageDraw

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

from tests.files.store.registry import Registry
from tests.models.outlines import a_reranker
from tests.server.scripted import BRIEF, SCRIPTS, scripted
from wgpu_backend.engine.loading import bundled
from wgpu_backend.files.store.modelfile import Modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create

pytestmark = pytest.mark.clients
HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
PYTHON = os.environ.get("WGPU_BACKEND_CLIENTS", sys.executable)
NODE = os.environ.get("NODE_PATH", "")
MODEL = Path(os.environ.get("WGPU_BACKEND_CLIENTS_MODEL", "") or bundled())
PACKAGES = {
    "ollama_client.py": "ollama",
    "openai_client.py": "openai",
    "anthropic_client.py": "anthropic",
    "litellm_client.py": "litellm",
    "langchain_client.py": "langchain_ollama",
    "structured_client.py": "outlines, guidance",
    "agents_client.py": "agents, langchain, langchain_openai, langchain_ollama, "
    "llama_index.llms.openai_like, llama_index.llms.ollama",
    "frameworks_client.py": "pydantic_ai, instructor",
    "kits_client.py": "agno, any_llm, agent_framework.openai",
    "haystack_client.py": "haystack, haystack_integrations.components.generators.ollama",
    "strands_client.py": "strands, ollama, anthropic",
    "inspect_client.py": "inspect_ai, anthropic",
    "programs_client.py": "json",
    "ollama_client.mjs": "ollama",
    "openai_client.mjs": "openai",
    "anthropic_client.mjs": "@anthropic-ai/sdk",
    "ai_client.mjs": "ollama-ai-provider-v2",
}
# What Claude Code and Codex are made to call.
BASH = '{"name": "Bash", "arguments": {"command": "echo seen", "description": "Say it"}}'
EXEC = '{"name": "exec_command", "arguments": {"cmd": "echo seen"}}'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    store = Store(folder)
    models = {
        "tale": MODEL,
        "actor": scripted(folder / "actor.gguf"),
        "judge": a_reranker(folder / "judge.gguf"),
        "claude": _caller(folder / "claude.gguf", BASH, 1 << 15),
        "codex": _caller(folder / "codex.gguf", EXEC, 1 << 15),
        "narrow": _caller(folder / "narrow.gguf", "", 7000),
    }
    for name, path in models.items():
        create(store, ModelName.parse(name), Modelfile(str(path)), folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    here = {"OLLAMA_HOST": address, "OLLAMA_MODELS": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "wgpu_backend", "serve", "--model", "tale"]
    process = subprocess.Popen(command, env={**os.environ, **here})
    for _ in range(200):
        try:
            urlopen(f"http://{address}/health").close()
            break
        except OSError:
            time.sleep(0.1)
    yield f"http://{address}"
    process.terminate()
    assert process.wait(60) in (0, -signal.SIGTERM)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder with squares as the bundled model ``eyes`` knows them."""
    folder = tmp_path_factory.mktemp("pictures")
    for name, colour in (("red", "#d82323"), ("blue", "#2850d7")):
        image = Image.new("RGB", (96, 96), "white")
        ImageDraw.Draw(image).rectangle((24, 24, 72, 72), fill=colour)
        image.save(folder / f"{name}.png")
    return folder


def _caller(path: Path, call: str, context: int) -> Path:
    """Write a model that makes a call if it can, and then speaks."""
    scripts = {**SCRIPTS, "<|tools|>": ["<tool_call>", call or "{}", "</tool_call>"]}
    template = BRIEF.replace("CALLS", str(bool(call)))
    return scripted(path, scripts=scripts, template=template, context=context)


def _command(script: str) -> list[str]:
    package = PACKAGES[script]
    if script.endswith(".mjs"):
        if not shutil.which("node") or not (Path(NODE) / package).is_dir() or not NODE:
            pytest.skip(f"node, or {package} in NODE_PATH, is not there")
        return ["node"]
    tried = subprocess.run([PYTHON, "-c", f"import {package}"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"{PYTHON} has no {package}; WGPU_BACKEND_CLIENTS names another Python")
    return [PYTHON]


@pytest.mark.parametrize("script", PACKAGES)
def test_a_client_gets_what_it_asks_for(script, request):
    command = _command(script)
    url = request.getfixturevalue("server")
    pictures = request.getfixturevalue("pictures")
    with Registry(MODEL.read_bytes()) as registry:
        told = subprocess.run(
            [*command, HERE / script, url, registry.name, pictures],
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
    sys.stdout.write(f"\n{script}\n{told.stdout}")
    assert told.returncode == 0, told.stderr
    features = re.findall(r"^(\w+): (.*)$", told.stdout, re.MULTILINE)
    assert features
    assert {name: result for name, result in features if result != "ok"} == {}
