"""The WGSL files compiled by Chromium's Tint, which checks that all threads reach each barrier.

A barrier or a subgroup operation that not all threads reach is undefined on hardware, and does no
harm on the rasterisers that the other tests run on.
"""

import json
import queue
import re
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests import hardware
from tests.browser import HEADLESS, needs_browser
from tests.patience import PATIENCE
from tests.test_shaders import CASES
from wgpu_backend.device.wgsl.limits import blank_comments
from wgpu_backend.device.wgsl.module import load

WEBGPU = (
    "--enable-unsafe-webgpu",
    "--enable-features=Vulkan",
    "--ignore-gpu-blocklist",
    "--use-webgpu-adapter=swiftshader",
)
PAGE = """<!DOCTYPE html><script type="module">
const tell = (found) => fetch("/found", { method: "POST", body: JSON.stringify(found) });
const adapter = await navigator.gpu?.requestAdapter();
if (adapter?.features.has("subgroups")) {
  const halves = adapter.features.has("shader-f16");
  const requiredFeatures = halves ? ["subgroups", "shader-f16"] : ["subgroups"];
  const device = await adapter.requestDevice({ requiredFeatures });
  const found = [];
  for (const code of await (await fetch("/texts")).json()) {
    if (/^(enable subgroups; )?enable f16;/.test(code) && !halves) {
      found.push([]);
      continue;
    }
    const { messages } = await device.createShaderModule({ code }).getCompilationInfo();
    found.push(messages.map((m) => [m.type, m.lineNum, m.linePos, m.message]));
  }
  await tell(found);
} else {
  await tell(null);
}
</script>"""
# What naga knows and WGSL does not.
NAGA_ONLY = re.compile(r"\b[iu]64\b")
DIVERGENT = """
@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(local_invocation_index) lane: u32) {
    if lane < 32u {
        y[lane] = CALLED;
    }
}
fn barrier() -> u32 {
    workgroupBarrier();
    return 1u;
}
"""
BARRIER = DIVERGENT.replace("CALLED", "barrier()")
SUBGROUP = DIVERGENT.replace("CALLED", "subgroupAdd(1u)")


class Exchange(ThreadingHTTPServer):
    """Gives the page and texts, and takes what was found."""

    def __init__(self, texts):
        super().__init__(("127.0.0.1", 0), Answer)
        self.texts = json.dumps(texts)
        self.found = queue.Queue()


class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer("text/html", self.server.texts if self.path == "/texts" else PAGE)

    def do_POST(self):
        self.server.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer("text/plain", "")

    def answer(self, kind, text):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


def messages_of(texts, profile):
    """Tint's messages about each text: kind, line, column, words."""
    texts = [f"enable subgroups; {t}" if "subgroup" in blank_comments(t) else t for t in texts]
    with Exchange(texts) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        browser = subprocess.Popen(
            [
                *HEADLESS,
                *WEBGPU,
                f"--user-data-dir={profile}",
                f"http://127.0.0.1:{server.server_port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return server.found.get(timeout=PATIENCE)
        except queue.Empty:
            pytest.skip(f"Chromium did not answer in {PATIENCE} s")
        finally:
            browser.terminate()
            browser.wait(30)
            server.shutdown()
            thread.join()


def places(messages):
    return [(line, column, words) for kind, line, column, words in messages if kind == "error"]


def faults(shaders, profile, first=()):
    """Tint's errors about each of `first`, and lines about each shader it does not take."""
    known = [s for s in shaders if not NAGA_ONLY.search(blank_comments(s.text))]
    found = messages_of([*first, *(s.text for s in known)], profile)
    if found is None:
        pytest.skip("Chromium has no WebGPU with subgroups here")
    of_texts = list(map(places, found))
    rest = zip(known, of_texts[len(first) :], strict=True)
    lines = [str(s.make_error(max(f[0], 1), *f[1:])) for s, found in rest for f in found]
    return of_texts[: len(first)], lines


@pytest.mark.slow
@needs_browser
def test_all_threads_reach_barriers_and_subgroup_operations(tmp_path):
    shaders = [load(*case) for case in CASES]
    (barrier, subgroup), lines = faults(shaders, tmp_path / "profile", (BARRIER, SUBGROUP))
    assert "uniform" in barrier[0][2]
    assert "uniform" in subgroup[0][2]
    assert lines == []


@pytest.mark.slow
@needs_browser
def test_so_they_do_in_the_kernels_of_whole_models_on_hardware(full, tmp_path):
    shaders = hardware.every_shader(full.info, tmp_path)
    assert faults(shaders, tmp_path / "profile")[1] == []
