"""The commands of docs/cluster.md, on two Ray nodes of this machine."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

ray = pytest.importorskip("ray", reason="clusters need Ray")

ROOT = Path(__file__).parents[3]
SECONDS = 240.0
GROUPS = """
import json, sys, ray
from ray.util import placement_group_table
ray.init(sys.argv[1], log_to_driver=False, configure_logging=False)
print(json.dumps([*placement_group_table().values()], default=str))
"""


def free_port():
    # Below the ports that Ray gives to its own processes.
    for port in range(6390, 9990):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port")


@pytest.fixture
def short_folder():
    """A folder whose path leaves room for the sockets that Ray makes in it."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield name


@pytest.fixture
def started(tmp_path):
    """Runs a command until the test ends."""
    running = []

    def start(command):
        paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        env = {**os.environ, "PATH": paths, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        env |= {"RAY_USAGE_STATS_ENABLED": "0", "OLLAMA_MODELS": str(tmp_path)}
        running.append(subprocess.Popen(command, shell=True, env=env, start_new_session=True))

    yield start
    for each in reversed(running):
        os.killpg(each.pid, signal.SIGKILL)
        each.wait()


def generate(port, body):
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/generate", data)
    end = time.monotonic() + SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as found:
                return json.load(found)
        except urllib.error.URLError:
            assert time.monotonic() < end
            time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stages", [1, 2])
def test_the_commands_of_the_page_serve_a_model(started, short_folder, stages):
    page = (ROOT / "docs" / "cluster.md").read_text("utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    head, node, serve = blocks[1].splitlines()
    if stages == 2:
        serve = blocks[2].strip()
        assert "--stages 2" in serve
    port, own = free_port(), 20000 + os.getpid() % 9000
    small = " --block --num-cpus 1 --object-store-memory 80000000 --disable-usage-stats"
    at = [line.replace("HOST", "127.0.0.1").replace("6379", str(port)) for line in (head, node)]
    started(f"{at[0]}{small} --include-dashboard false --temp-dir {short_folder}")
    time.sleep(10)
    started(at[1] + small)
    line = serve.replace("HOST", "127.0.0.1").replace("6379", str(port))
    line = line.replace("wgpu-backend", f"{sys.executable} -m wgpu_backend")
    started(f"{line} --device cpu --port {own}")
    body = {"model": "story", "prompt": "Once upon", "stream": False}
    body["options"] = {"num_predict": 8, "temperature": 0}
    assert generate(own, body)["response"].startswith("Once upon a time")
    if stages == 2:
        with urllib.request.urlopen(f"http://127.0.0.1:{own}/props?model=story") as found:
            placed = json.load(found)["placement"]
        assert re.search(r"cpu: embedding, layers 0-\d; cpu@.*: layers \d-5, output", placed)
        # A placement group has one stage on each node.
        found = subprocess.run(
            [sys.executable, "-c", GROUPS, f"127.0.0.1:{port}"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        [group] = json.loads(found.stdout.splitlines()[-1])
        assert group["strategy"] == "STRICT_SPREAD"
        assert group["state"] == "CREATED"
        assert len(set(group["bundles_to_node_id"].values())) == 2
        for bundle in group["bundles"].values():
            assert bundle["wgpu_adapter"] > 0
            assert bundle.get("wgpu_memory", 1) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("fastapi") is None, reason="needs ray[serve]")
def test_the_application_of_the_page_is_deployed(started, short_folder, tmp_path):
    page = (ROOT / "docs" / "cluster.md").read_text("utf-8")
    [config] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    head = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[1].splitlines()[0]
    [deploy] = re.findall(r"^serve deploy .*$", page, re.MULTILINE)
    port, board, own = free_port(), 30000 + os.getpid() % 9000, 20000 + os.getpid() % 9000
    small = " --block --num-cpus 2 --object-store-memory 80000000 --disable-usage-stats"
    ports = f" --dashboard-port {board} --dashboard-host 127.0.0.1 --temp-dir {short_folder}"
    started(head.replace("6379", str(port)) + small + ports)
    changed = config.replace("8000", str(own)).replace("num_ctx: 4096", "num_ctx: 256, device: cpu")
    (tmp_path / "config.yaml").write_text(changed.replace("max_replicas: 4", "max_replicas: 1"))
    words = deploy.replace("http://127.0.0.1:8265", f"http://127.0.0.1:{board}").split()
    line = [sys.executable, "-m", "ray.serve.scripts", *words[1:]]
    end = time.monotonic() + SECONDS
    # The dashboard answers some time after the start.
    while subprocess.run(line, cwd=tmp_path, check=False).returncode:
        assert time.monotonic() < end
        time.sleep(2)
    body = {"model": "story", "prompt": "Once upon", "stream": False}
    body["options"] = {"num_predict": 8, "temperature": 0}
    assert generate(own, body)["response"].startswith("Once upon a time")
