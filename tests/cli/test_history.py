"""Where what is typed in a chat is kept, and that a chat goes on where it cannot be."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prompt_toolkit.history import InMemoryHistory

from wgpu_backend.cli.chat import Chat
from wgpu_backend.cli.history import history_file, open_history
from wgpu_backend.cli.slash_commands import run_slash_command


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "wgpu-backend" / "history"


def test_prompts_come_back_in_a_later_chat(state: Path) -> None:
    open_history(lambda: True).append_string("Tell me\na story.")
    assert [*open_history(lambda: True).load_history_strings()] == ["Tell me\na story."]
    assert state.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_only_the_user_may_read_them(state: Path) -> None:
    state.parent.mkdir()
    state.touch(0o644)
    open_history(lambda: True).append_string("a secret")
    assert state.stat().st_mode & 0o777 == 0o600


def test_nothing_is_kept_where_that_is_not_wanted(state: Path) -> None:
    open_history(lambda: False).append_string("a secret")
    assert not state.exists()


def test_what_is_typed_is_kept_from_when_that_is_wanted(state: Path) -> None:
    open_history(lambda: True).append_string("before")
    chat = SimpleNamespace(keeps=False)
    history = open_history(lambda: chat.keeps)
    assert [*history.load_history_strings()] == []
    history.append_string("a secret")
    run_slash_command("/set history", cast("Chat", chat))
    history.append_string("no secret")
    assert [*open_history(lambda: True).load_history_strings()] == ["no secret", "before"]
    state.unlink()
    state.mkdir()
    with pytest.raises(OSError, match="directory"):
        run_slash_command("/set history", cast("Chat", chat))


@pytest.mark.parametrize("obstacle", ["file", "folder"])
def test_a_file_that_cannot_be_written_is_told_and_the_chat_goes_on(
    state: Path, obstacle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if obstacle == "file":
        state.parent.write_text("no folder")
    else:
        state.mkdir(parents=True)
    history = open_history(lambda: True)
    assert isinstance(history, InMemoryHistory)
    history.append_string("hi")
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("the input history is not stored: ")


def test_a_disk_that_fills_up_ends_no_chat(state: Path) -> None:
    history = open_history(lambda: True)
    state.unlink()
    state.mkdir()  # every write fails from here on
    history.append_string("hi")
    assert history.get_strings() == ["hi"]


@pytest.mark.parametrize(
    ("platform", "folder"),
    [
        ("linux", ".local/state"),
        ("darwin", "Library/Application Support"),
        ("win32", "AppData/Local"),
    ],
)
def test_the_folder_is_the_platforms(
    platform: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert history_file() == tmp_path / folder / "wgpu-backend" / "history"


def test_a_user_without_a_home_chats_without_history(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert isinstance(open_history(lambda: True), InMemoryHistory)
    assert "set XDG_STATE_HOME" in capsys.readouterr().err
