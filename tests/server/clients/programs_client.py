"""Programs: coding agents, `llm` and lm-evaluation-harness, those that are installed."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from features import picture, try_all, url

# Programs of npm's folder, and of this Python's.
FOLDERS = (Path(os.environ.get("NODE_PATH", "")) / ".bin", Path(sys.executable).parent)
CODEX = """
model_provider = "here"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[model_providers.here]
name = "here"
base_url = "{url}/v1"
wire_api = "responses"
"""
PI = {"baseUrl": url(), "api": "anthropic-messages", "apiKey": "none", "models": [{"id": "claude"}]}
CALLER = PI["models"][0]["id"]  # a model that calls a shell once, and then speaks
CONTINUE = """
name: here
version: 1.0.0
schema: v1
models:
  - {{name: claude, provider: ollama, model: claude, apiBase: "{url}", roles: [chat]}}
"""
LLM = """
- {{model_id: t, model_name: tale, api_base: "{url}/v1", api_key_name: k, supports_schema: true}}
- {{model_id: a, model_name: actor, api_base: "{url}/v1", api_key_name: k, supports_tools: true}}
"""
TASK = """
task: own
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/questions.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: right
"""
QUESTIONS = [
    {"question": "Once upon a", "choices": ["time", "fork"], "right": 0},
    {"question": "They lived happily ever", "choices": ["spoon", "after"], "right": 1},
]


def run(*command, home, **variables):
    """Run a program in a folder of its own, and give what it printed."""
    fixed = {"HOME": str(home), "CODEX_HOME": str(home), "LLM_USER_PATH": str(home)}
    done = subprocess.run(
        [shutil.which(command[0], path=_path()), *map(str, command[1:])],
        cwd=home, env={**os.environ, **fixed, **variables}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-500:], done.stderr[-500:])
    return done.stdout


def _path():
    return os.pathsep.join(map(str, FOLDERS))


def _ask_claude(home, model, *more):
    fixed = {"ANTHROPIC_BASE_URL": url(), "ANTHROPIC_AUTH_TOKEN": "none", "IS_SANDBOX": "1"}
    fixed |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "ANTHROPIC_API_KEY": ""}
    fixed |= {"ANTHROPIC_DEFAULT_HAIKU_MODEL": model}
    asked = ("-p", "--model", model, "--dangerously-skip-permissions", *more)
    return run("claude", *asked, home=home, **fixed)


def claude(home):
    lines = _ask_claude(home, "claude", "Hi", "--output-format", "stream-json", "--verbose")
    events = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    assert events[-1]["result"] == "It is cold."
    results = [e["message"]["content"][0] for e in events if e["type"] == "user"]
    assert [each["content"] for each in results] == ["seen"]


def claude_shortens(home):
    """The third turn no longer fits, and it goes on with a summary."""
    for turn in range(4):
        said = f"{turn} " + "word " * 290
        more = ["--continue"] if turn else []
        assert _ask_claude(home, "narrow", said, *more).strip().endswith("Hello there now.")


def codex(home):
    (home / "config.toml").write_text(CODEX.format(url=url()))
    lines = run("codex", "exec", "-m", "codex", "--json", "--skip-git-repo-check", "Hi", home=home)
    items = [json.loads(line).get("item", {}) for line in lines.splitlines() if line[0] == "{"]
    assert items[-2]["text"] == "It is cold."
    outputs = [item.get("aggregated_output") for item in items]
    assert "seen\n" in outputs


def aider(home):
    keys = {"OPENAI_API_BASE": f"{url()}/v1", "OPENAI_API_KEY": "none"}
    keys |= {"OLLAMA_API_BASE": url(), "AIDER_ANALYTICS_DISABLE": "1"}
    fixed = ("--no-show-model-warnings", "--no-check-update", "--yes-always", "--no-git")
    for model in ("openai/narrow", "ollama_chat/narrow"):
        asked = ("--model", model, "--edit-format", "ask", "--message", "Hi")
        assert "Hello there now." in run("aider", *fixed, *asked, home=home, **keys)


def cline(home):
    here = ("-p", "openai", "-k", "none", "-m", "claude", "-b", f"{url()}/v1")
    run("cline", "auth", *here, home=home)
    assert "It is cold." in run("cline", "--json", "Say hello to me", home=home)


def cn(home):
    """Continue."""
    (home / "config.yaml").write_text(CONTINUE.format(url=url()))
    said = run("cn", "-p", "--config", home / "config.yaml", "Hi", home=home)
    assert "It is cold." in said


def pi(home):
    apis = {"anthropic-messages": "", "openai-completions": "/v1", "openai-responses": "/v1"}
    providers = {a: {**PI, "api": a, "baseUrl": url() + path} for a, path in apis.items()}
    (home / ".pi" / "agent").mkdir(parents=True)
    (home / ".pi" / "agent" / "models.json").write_text(json.dumps({"providers": providers}))
    for api in apis:
        said = run("pi", "-p", "--provider", api, "--model", "claude", "Hi", home=home)
        assert said.strip() == "It is cold."


def opencode(home):
    model = {CALLER: {"name": CALLER, "limit": {"context": 30000, "output": 500}}}
    given = {"npm": "@ai-sdk/openai-compatible", "models": model}
    given["options"] = {"baseURL": f"{url()}/v1", "apiKey": "none"}
    here = {"autoupdate": False, "share": "disabled", "provider": {"here": given}}
    (home / "opencode.json").write_text(json.dumps({**here, "small_model": f"here/{CALLER}"}))
    fixed = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    fixed["PWD"] = str(home)  # where it looks for its settings
    asked = ("--model", f"here/{CALLER}", "--format", "json", "Say hello")
    said = run("opencode", "run", *asked, home=home, **fixed)
    assert "It is cold." in said
    assert "seen" in said


def qwen(home):
    """The command of qwen-code."""
    keys = {"OPENAI_BASE_URL": f"{url()}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": CALLER}
    said = run("qwen", "--auth-type", "openai", "-y", "-p", "Say hello", home=home, **keys)
    assert "It is cold." in said


def llm(home):
    (home / "extra-openai-models.yaml").write_text(LLM.format(url=url()))
    (home / "keys.json").write_text('{"k": "none"}')
    assert run("llm", "-m", "a", "Hi", home=home).strip() == "Hello there now."
    found = json.loads(run("llm", "-m", "t", "--schema", "warm bool", "Hi", home=home))
    assert isinstance(found["warm"], bool)
    tool = "def weather(city: str) -> str:\n    return city + ': 3'\n"
    assert run("llm", "-m", "a", "--functions", tool, "Hi", home=home).strip() == "It is cold."


def llm_ollama(home):
    """The plugin for Ollama of `llm`, with a picture."""
    here = {"OLLAMA_HOST": url()}
    plain = ("llm", "-m", "ollama/actor", "-o", "think", "false")
    assert run(*plain, "Hi", home=home, **here).strip() == "Hello there now."
    tool = "def weather(city: str) -> str:\n    return city + ': 3'\n"
    assert run(*plain, "--functions", tool, "Hi", home=home, **here).strip() == "It is cold."
    found = run("llm", "-m", "ollama/tale", "--schema", "warm bool", "Hi", home=home, **here)
    assert isinstance(json.loads(found)["warm"], bool)
    shown = ("-a", picture("red"), "What is this?")
    assert "red square" in run("llm", "-m", "ollama/eyes", *shown, home=home, **here)


def lm_eval(home):
    (home / "own.yaml").write_text(TASK.format(folder=home))
    (home / "questions.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    fixed = "model=tale,num_concurrent=2,tokenizer_backend=remote,add_bos_token=True"
    model = f"{fixed},base_url={url()}/v1/completions"
    run(
        "lm_eval", "--model", "local-completions", "--model_args", model, "--tasks", "own",
        "--include_path", home, "--output_path", home / "out", "--log_samples",
        home=home, HF_HUB_OFFLINE="1",
    )  # fmt: skip
    (samples,) = home.glob("out/**/samples_own_*.jsonl")
    for line in samples.read_text().splitlines():
        sample = json.loads(line)
        assert sample["acc"] == 1.0, sample
        assert all(float(logprob) < 0 for logprob, _ in sample["filtered_resps"])


def _installed():
    for feature in (claude, claude_shortens, codex, aider, cline, cn, pi, llm, llm_ollama, lm_eval):
        program = feature.__name__.removesuffix("_shortens").removesuffix("_ollama")
        if feature is llm_ollama and not find_spec("llm_ollama"):
            continue
        if shutil.which(program, path=_path()):
            yield feature


def _is_installed(feature):
    return shutil.which(feature.__name__, path=_path())


def _in_own_home(feature):
    def wrapped():
        with TemporaryDirectory() as folder:
            feature(Path(folder))

    wrapped.__name__ = feature.__name__
    return wrapped


if __name__ == "__main__":
    features = [*_installed(), *filter(_is_installed, (opencode, qwen))]
    try_all(map(_in_own_home, features))
