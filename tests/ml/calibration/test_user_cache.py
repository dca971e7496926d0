import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wgpu_backend.ml.calibration import device_cache
from wgpu_backend.ml.calibration.device_cache import cache_file, read, write
from wgpu_backend.ml.calibration.self_test import require_trust
from wgpu_backend.ml.numpy_executor import NumpyExecutor


def test_a_user_without_a_home_remembers_nothing_and_works(monkeypatch):
    monkeypatch.setattr(device_cache, "user_cache_path", lambda *_, **__: Path("~/.cache/wgpu"))
    assert cache_file("trusted.json") is None
    assert require_trust(NumpyExecutor(), "full") == frozenset()
    with pytest.raises(FileNotFoundError, match="no home folder"):
        write(None, {})


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="those have other customs")
def test_the_folder_is_where_the_user_wants_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert cache_file("a.json") == tmp_path / "caches" / "wgpu-backend" / "a.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_file("a.json") == tmp_path / ".cache" / "wgpu-backend" / "a.json"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a file where a folder should be")
def test_a_home_that_nobody_may_look_into_is_none(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.write_text("a file, under which there is no folder, whoever asks")
    monkeypatch.setattr(device_cache, "user_cache_path", lambda *_, **__: home / ".cache")
    assert require_trust(NumpyExecutor(), "full") == frozenset()
    with pytest.raises(OSError, match=r"tuned\.json"):
        write(cache_file("tuned.json"), {"a": []})


@pytest.mark.parametrize("content", [b"", b"{", b"3", b"\xff\xfe", b"[" * 100_000])
def test_damage_is_nothing_remembered(tmp_path, content):
    path = tmp_path / "tuned.json"
    path.write_bytes(content)
    assert read(path) == {}
    assert read(tmp_path) == {}


def test_writers_at_once_leave_a_whole_file_and_nothing_else(tmp_path):
    path = tmp_path / "folder" / "tuned.json"
    entries = [{f"device {n}": ["x" * 10_000]} for n in range(32)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda each: write(path, each), entries))
        assert read(path) in entries
    assert [*path.parent.iterdir()] == [path]


def test_a_disk_that_fills_up_keeps_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "tuned.json"
    write(path, {"a": [1]})

    def full(self, *_, **__):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=r"tuned\.json"):
        write(path, {"b": [2]})
    assert read(path) == {"a": [1]}
    assert [*tmp_path.iterdir()] == [path]


def test_the_latest_devices_are_kept(tmp_path):
    write(tmp_path / "t.json", {str(n): [] for n in range(100)})
    kept = json.loads((tmp_path / "t.json").read_text())
    assert [*kept] == [str(n) for n in range(100 - device_cache.DEVICES_KEPT, 100)]
