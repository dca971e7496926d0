"""Names of models, and those that would lead out of a store."""

import pytest

from wgpu_backend.errors import StoreError
from wgpu_backend.files.store.manifest import digest_hex, parse_manifest
from wgpu_backend.files.store.names import ModelName


@pytest.mark.parametrize(
    ("text", "path", "short"),
    [
        ("llama3", "registry.ollama.ai/library/llama3/latest", "llama3:latest"),
        ("qwen2.5:7b", "registry.ollama.ai/library/qwen2.5/7b", "qwen2.5:7b"),
        ("me/mine:x", "registry.ollama.ai/me/mine/x", "me/mine:x"),
        ("hf.co/a/B-GGUF:Q4_K_M", "hf.co/a/B-GGUF/Q4_K_M", "hf.co/a/B-GGUF:Q4_K_M"),
        ("http://localhost:80/a/b", "localhost:80/a/b/latest", "localhost:80/a/b:latest"),
    ],
)
def test_a_name_has_all_its_parts(text, path, short):
    name = ModelName.parse(text)
    assert str(name.path) == path
    assert str(name) == short
    assert ModelName.parse(str(name)).path == name.path


BAD = [
    "", ":", "a:", ":b", "/", "a/", "/a", "..", "../a", "a/..", "a:..", "../../etc/passwd",
    "a/b/c/d", "./a", "a/.b", ".a", "a\\b", "a:b:c", "a b", "a\n", "a\0", "ä", "a" * 81, "a:%2e%2e",
    "-a", "a/b/..:c", "http://", "http:///a",
    "..:80/a/b", "a:latest/../b", "x/y/z:.", "C:\\a", "a:x.", "~/a:b:c",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_name_is_refused(text):
    with pytest.raises(StoreError, match="model name"):
        ModelName.parse(text)


@pytest.mark.parametrize(
    "text",
    ["", "sha256:", "sha256:../../x", "sha256:" + "g" * 64, "md5:" + "0" * 64, "0" * 64, 5, None],
)
def test_what_is_no_digest_is_refused(text):
    with pytest.raises(StoreError, match="digest"):
        digest_hex(text)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"null", b"\xff", b'{"layers": 5}', b'{"layers": [5], "config": {}}',
     b"[" * 10**5,
     b'{"config": {"mediaType": "a", "digest": "sha256:..", "size": 1}, "layers": []}'],
)  # fmt: skip
def test_what_is_no_manifest_is_refused(data):
    with pytest.raises(StoreError):
        parse_manifest(data, "here")
