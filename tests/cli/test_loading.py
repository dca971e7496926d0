"""Which device a model ends up on, and what is said about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from wgpu_backend.cli import loading
from wgpu_backend.errors import DeviceError, OutOfMemory
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.backend import LoadCancelled

CARD = DeviceInfo("vulkan:0", "Card", kind="discrete", api="Vulkan")
NUMPY = DeviceInfo("cpu", "NumPy", kind="cpu", api="NumPy")
RUN = ("run", "story", "hi", "--num-predict", "1")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine have a card, which is the best device."""

    def choose(which: str | None) -> tuple[str, DeviceInfo]:
        return ("cpu", NUMPY) if which == "cpu" else ("wgpu", CARD)

    monkeypatch.setattr(loading, "choose_device", choose)


def failing_on_the_card(error: Exception) -> Any:
    real = loading.load

    def load(path: Path, *, device: DeviceInfo, **how: Any) -> Any:
        if device is CARD:
            raise error
        return real(path, device=device, **how)

    return load


@pytest.mark.usefixtures("card")
def test_an_adapter_that_does_not_open_leaves_the_cpu_and_a_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = DeviceError("device vulkan:0: the driver\n  is too old")
    monkeypatch.setattr(loading, "load", failing_on_the_card(error))
    done = cli(*RUN)
    assert done.code == 0
    assert done.err == (
        "wgpu-backend: device vulkan:0: the driver is too old; "
        "using the CPU with NumPy, which is slow\n"
    )


@pytest.mark.parametrize("words", [("hi",), (), ("--no-warmup",)], ids=" ".join)
def test_chats_run_towers_as_they_load_and_single_answers_do_not(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    given: list[bool] = []
    real = loading.load

    def load(path: Path, *, warmup: bool, **how: Any) -> Any:
        given.append(warmup)
        return real(path, **how)

    monkeypatch.setattr(loading, "load", load)
    monkeypatch.setattr("wgpu_backend.cli.commands.run.is_terminal", lambda _: True)
    monkeypatch.setattr("wgpu_backend.cli.repl.converse", lambda _: None)
    done = cli("run", "story", *words, "--num-predict", "1", "--device", "cpu")
    assert (done.code, given) == (0, [not words]), done.err


@pytest.mark.usefixtures("card")
def test_a_device_that_the_user_named_is_not_replaced(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load", failing_on_the_card(DeviceError("device: too old")))
    assert cli(*RUN, "--device", "card").code == 1


@pytest.mark.usefixtures("card")
def test_a_model_that_does_not_fit_is_not_put_on_the_cpu(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load", failing_on_the_card(OutOfMemory("weights: 9 GiB")))
    done = cli(*RUN)
    assert (done.code, done.err) == (1, "wgpu-backend: weights: 9 GiB\n")


@pytest.mark.usefixtures("card")
def test_loading_that_is_called_off_ends_with_130(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load", failing_on_the_card(LoadCancelled("called off")))
    done = cli(*RUN)
    assert (done.code, done.out, done.err) == (130, "", "")


@pytest.mark.slow
@pytest.mark.gpu
def test_verbose_says_that_a_software_rasteriser_runs(cli: Cli, adapter: str) -> None:
    if loading.choose_device(adapter)[1].kind != "software":
        pytest.skip("needs a machine whose best adapter is a software rasteriser")
    assert cli(*RUN).err == ""
    first = cli(*RUN, "--verbose").err.splitlines()[0]
    assert first.startswith(f"wgpu-backend: no GPU, using the software rasteriser {adapter} ")


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("profile", ["full", "baseline"])
def test_every_profile_answers_alike(cli: Cli, adapter: str, profile: str) -> None:
    greedy = ("Tell me a story.", "--temperature", "0", "--num-predict", "5", "--kv", "f32")
    done = cli("run", "story", *greedy, "--device", adapter, "--profile", profile)
    assert done.out == cli("run", "story", *greedy, "--device", "cpu").out
