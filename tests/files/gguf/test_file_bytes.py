"""Only regular files are opened; one that is cut or written over while it is read is an error."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.builders import tiny_model
from tests.patience import PATIENCE
from wgpu_backend import new_backend
from wgpu_backend.errors import GGUFError
from wgpu_backend.files.gguf import file_bytes
from wgpu_backend.files.gguf.file_bytes import FileBytes
from wgpu_backend.files.gguf.reader import open_gguf

NAME = "blk.1.ffn_down.weight"


def opened_in_time(path: str) -> str:
    """What opening a file says, from a thread that is left behind if it never says anything."""
    said: list[str] = []

    def attempt() -> None:
        with pytest.raises(GGUFError) as caught:
            open_gguf(path)
        said.append(str(caught.value))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert said, f"opening {path} blocks"
    return said[0]


def pipe(path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("no named pipes on this system")
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    if not hasattr(socket, "AF_UNIX"):
        pytest.skip("no sockets in folders on this system")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)  # relative: the path of a socket is short


@pytest.mark.parametrize(
    ("make", "kind"), [(Path.mkdir, "a directory"), (pipe, "a pipe"), (unix_socket, "a socket")]
)
def test_what_is_no_regular_file_is_named_as_what_it_is(tmp_path, monkeypatch, make, kind):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "m.gguf")
    assert opened_in_time("m.gguf") == f"m.gguf: {kind}, needs a regular file"


@pytest.mark.skipif(not Path("/dev/zero").is_char_device(), reason="needs a device with a name")
def test_a_device_is_named_as_one():
    assert opened_in_time("/dev/zero") == "/dev/zero: a device, needs a regular file"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_that_takes_the_place_of_a_file_between_looking_and_opening(tmp_path, monkeypatch):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    looked = file_bytes.require_regular

    def swapped(path: Path, mode: int) -> None:
        looked(path, mode)
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    monkeypatch.setattr(file_bytes, "require_regular", swapped)
    with pytest.raises(GGUFError, match="a pipe, needs a regular file"):
        open_gguf(path)


@pytest.mark.skipif(not Path("/dev/stdin").exists(), reason="stdin has no name here")
def test_piped_into_stdin_is_a_pipe():
    script = "import sys; from wgpu_backend import open_gguf; open_gguf('/dev/stdin')"
    done = subprocess.run(
        [sys.executable, "-c", script], input="GGUF", capture_output=True, text=True, check=False,
        timeout=PATIENCE,
    )  # fmt: skip
    assert "GGUFError: /dev/stdin: a pipe, needs a regular file" in done.stderr


def test_a_link_to_a_file_is_that_file(tmp_path):
    tiny_model(tmp_path / "m.gguf")
    link = tmp_path / "link.gguf"
    try:
        link.symlink_to("m.gguf")
    except OSError:
        pytest.skip("this user may make no links")
    with open_gguf(link) as file:
        assert file.data("output_norm.weight")


def test_a_name_that_no_system_has_is_an_error():
    with pytest.raises(GGUFError, match=r"null (byte|character)"):
        open_gguf("m\0.gguf")


def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as on systems that know no reads at a place."""
    monkeypatch.delattr(file_bytes.os, "preadv", raising=False)


@pytest.mark.parametrize("positional", [True, False])
def test_bytes_are_read_at_their_place(tmp_path, monkeypatch, positional):
    if not positional:
        plain(monkeypatch)
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)))
    file = FileBytes(path)
    assert file.read("all", 0, 256) == bytes(range(256))
    assert file.read("some", 7, 3) == b"\7\10\11"
    file.close()


def test_threads_read_each_its_own_place(tmp_path, monkeypatch):
    plain(monkeypatch)
    path = tmp_path / "bytes"
    values = np.arange(1 << 16, dtype="<u4")
    path.write_bytes(values.tobytes())
    file = FileBytes(path)
    wrong: list[int] = []

    def read(first: int) -> None:
        for at in range(first, len(values), 8):
            right = file.read("value", 4 * at, 4) == values[at].tobytes()
            wrong.extend([] if right else [at])

    threads = [threading.Thread(target=read, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    assert not wrong


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "m.gguf", dtype="q8_0")


@pytest.mark.parametrize("positional", [True, False])
def test_a_tensor_of_a_file_that_was_cut_names_both_sizes(path, monkeypatch, positional):
    if not positional:
        plain(monkeypatch)
    with open_gguf(path) as file:
        info = file.tensors[NAME]
        size, cut = path.stat().st_size, info.offset + info.nbytes // 2
        os.truncate(path, cut)
        with pytest.raises(GGUFError) as caught:
            file.data(NAME)
    assert str(caught.value) == (
        f"{path}: tensor '{NAME}': the file has {cut} bytes, it had {size} when it was opened; "
        "it was changed meanwhile, open it again"
    )


def test_a_file_written_over_in_place_is_found(path):
    with open_gguf(path) as file:
        file.data(NAME)
        data = path.read_bytes()
        with path.open("r+b") as over:
            over.write(data)
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))  # the clock of files is coarse
        with pytest.raises(GGUFError, match=f"tensor '{NAME}': the file was written to after"):
            file.data(NAME)


def test_a_file_replaced_by_another_of_its_name_stays_what_it_was(path, tmp_path):
    with open_gguf(path) as file:
        before = bytes(file.data(NAME))
        other = tmp_path / "other.gguf"
        other.write_bytes(bytes(100))
        try:
            other.replace(path)
        except PermissionError:
            pytest.skip("this system replaces no open files")
        assert bytes(file.data(NAME)) == before


@pytest.mark.parametrize("kind", ["cpu", pytest.param("wgpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("size", [0, 0.5, 0.9])
def test_a_file_cut_while_it_loads_is_an_error(request, path, kind, size):
    if kind == "wgpu":
        request.getfixturevalue("full")
    cut = int(path.stat().st_size * size)
    with new_backend(path, name=kind) as backend:
        names = iter(backend.file.tensors)

        def cancelled() -> bool:
            if next(names) == "blk.0.attn_q.weight":
                os.truncate(path, cut)
            return False

        with pytest.raises(GGUFError, match=rf"m\.gguf: tensor '.*': the file has {cut} bytes, it"):
            backend.load(cancelled=cancelled)


@pytest.mark.gpu
@pytest.mark.usefixtures("full")
def test_a_weight_read_back_from_a_file_that_was_cut_is_an_error(path):
    with new_backend(path) as backend:
        backend.load()
        os.truncate(path, 100)
        with pytest.raises(GGUFError, match=f"tensor '{NAME}': the file has 100 bytes"):
            backend.require(NAME).numpy()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system tells no sizes")
def test_loading_holds_no_more_of_a_file_than_a_chunk(tmp_path):
    script = (
        "import sys; from wgpu_backend import open_gguf\n"
        "from wgpu_backend.ml.wgpu.weight_rows import Rows\n"
        "def peak():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return next(int(l.split()[1]) for l in lines if l.startswith('VmHWM'))\n"
        "with open_gguf(sys.argv[1]) as file:\n"
        "    rows, before = Rows([file.source('big')], 4096), peak()\n"
        "    assert sum(len(rows[at : at + 256]) for at in range(0, len(rows), 256)) == 32768\n"
        "    print(peak() - before)\n"
    )
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "big.gguf", "llama")
    writer.add_tensor("big", np.ones((32768, 1024), "f4"))  # 128 MiB
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "big.gguf")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) < 16 << 10  # KiB
