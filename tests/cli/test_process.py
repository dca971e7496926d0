"""The command as a process: pipes that break, signals, answers that stream."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE

pytest.importorskip("termios", reason="needs POSIX pipes and signals")

from tests.cli.terminal import COMMAND, Terminal, environment
from wgpu_backend.cli import main

RUN = [*COMMAND, "run", "story", "--device", "cpu", "--temperature", "0"]


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RUN, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error() -> None:
    with start("Tell me a story.") as process:
        assert process.stdout
        assert process.stderr
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


@pytest.mark.slow
def test_a_trace_is_written_for_a_reader_that_leaves_the_tables(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    words = ["profile", "story", "--device", "cpu", "-p", "2", "--trace", str(trace)]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *words], stdout=writer, stderr=subprocess.PIPE, check=False, env=environment()
    )
    os.close(writer)
    assert done.returncode == 1
    assert json.loads(trace.read_text())["traceEvents"]


@pytest.mark.slow
def test_a_page_of_a_graph_is_written_for_a_reader_that_leaves_the_tables(tmp_path: Path) -> None:
    page = tmp_path / "graph.html"
    words = ["graph", "story", "--device", "cpu", "-p", "2", "--html", str(page)]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *words], stdout=writer, stderr=subprocess.PIPE, check=False, env=environment()
    )
    os.close(writer)
    assert done.returncode == 1
    assert page.read_text().rstrip().endswith("</html>")


@pytest.mark.skipif(sys.platform != "linux", reason="libwayland is Linux's")
@pytest.mark.parametrize("value", [None, "", "run/user/0"])
def test_a_container_without_a_runtime_folder_gets_one(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", value or "")
    if value is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert main(["--version"]) == 0
    assert Path(os.environ["XDG_RUNTIME_DIR"]).is_dir()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closed", "answered"),
    [("0<&-", True), ("1>&-", False), ("2>&-", True), ("1>&- 2>&-", False)],
)
def test_a_stream_that_the_caller_closed_leads_nowhere(closed: str, answered: bool) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *RUN, "hi", "--num-predict", "2"]
    done = subprocess.run(command, capture_output=True, check=False, env=environment())
    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(done.stdout) == answered


@pytest.mark.slow
def test_an_answer_comes_in_pieces() -> None:
    with start("Tell me a story.") as process:
        assert process.stdout
        first = os.read(process.stdout.fileno(), 4096)
        assert process.poll() is None
        rest = process.stdout.read()
    assert len(first) < len(rest)


@pytest.mark.slow
def test_ctrl_c_ends_an_answer_with_130() -> None:
    with start("Tell me a story.") as process:
        assert process.stdout
        assert process.stderr
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.stderr.read() == ""
    assert rest.endswith("\n")
    assert process.returncode == 130


@pytest.mark.slow
def test_piped_text_comes_before_the_prompt() -> None:
    def count(stdin: str, *words: str) -> int:
        command = [*RUN, "--num-predict", "1", "--verbose", *words]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=environment(), check=True
        )
        return int(done.stderr.split("prompt eval count:")[1].split()[0])

    alone = count("", "Tell me a story.")
    assert count("a fox\n", "Tell me a story.") > alone
    assert count("Tell me a story.\n", "") == alone


@pytest.mark.slow
def test_a_terminal_sees_whole_words_in_its_width() -> None:
    words = ("run", "story", "Tell me a story.", "--device", "cpu", "--temperature", "0")
    with Terminal(*words, columns=40) as terminal:
        assert terminal.leave() == 0
    lines = [line for line in terminal.text.splitlines() if line.strip()]
    told = [line for line in lines if "Loading" not in line]
    assert len(told) > 3
    assert max(map(len, told)) <= 40


@pytest.mark.slow
def test_loading_shows_a_bar_on_a_terminal() -> None:
    with Terminal("run", "story", "hi", "--num-predict", "1", "--device", "cpu") as terminal:
        assert terminal.leave() == 0
    assert "Loading story.gguf" in terminal.text


@pytest.mark.slow
def test_an_interrupted_answer_is_quick_to_end() -> None:
    with start("Tell me a story.", "--num-ctx", "512") as process:
        assert process.stdout
        process.stdout.read(1)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=PATIENCE)
    assert time.monotonic() - begin < PATIENCE
