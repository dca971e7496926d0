"""Ctrl-C is noted while something is under way, and raised where everything is in order."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from tests.builders import tiny_model
from tests.device.test_lifetime import counts
from wgpu_backend import Context, LanguageModel, load
from wgpu_backend.device import interrupts
from wgpu_backend.device.interrupts import deliver, held, uninterrupted, wait_until
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ops.sampling.host import SamplingOptions


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_is_raised_at_the_end():
    reached: list[str] = []

    def act() -> None:
        with held():
            with held():
                press()
                reached.append("inside")
            reached.append("still held")

    with pytest.raises(KeyboardInterrupt):
        act()
    assert reached == ["inside", "still held"]


def test_an_interrupt_is_raised_where_it_is_safe():
    with held():
        deliver()  # nothing was noted
        press()
        with pytest.raises(KeyboardInterrupt):
            deliver()
        deliver()  # once is enough


def test_the_handler_is_the_same_afterwards():
    before = signal.getsignal(signal.SIGINT)
    with held():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_finaliser_at_the_end_does_not_take_the_interrupt(monkeypatch: pytest.MonkeyPatch):
    module = interrupts._signal
    finalising: list[bool] = []

    def set_handler(number: int, handler: Any) -> None:
        module.signal(number, handler)
        if handler is signal.default_int_handler and not finalising:
            finalising.append(True)  # as Python may run one between any two lines
            with suppress(KeyboardInterrupt), held():
                pass

    patched = SimpleNamespace(getsignal=module.getsignal, signal=set_handler)
    monkeypatch.setattr(interrupts, "_signal", patched)

    def act() -> None:
        with held():
            press()

    with pytest.raises(KeyboardInterrupt):
        act()
    assert finalising


def test_an_error_gives_way_to_the_interrupt():
    def act() -> None:
        with held():
            press()
            raise ValueError("of no interest now")

    with pytest.raises(KeyboardInterrupt) as raised:
        act()
    assert isinstance(raised.value.__context__, ValueError)


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """Signals that a program's own handler, which raises nothing, was called with."""
    numbers: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGINT, before)


def test_a_handler_of_the_program_is_called_afterwards(handled: list[int]):
    with held():
        press()
        assert handled == []
    assert handled == [signal.SIGINT]


def test_a_handler_that_was_set_meanwhile_stays(handled: list[int]):
    def other(_number: int, _frame: FrameType | None) -> None: ...

    with held():
        signal.signal(signal.SIGINT, other)
    assert signal.getsignal(signal.SIGINT) is other


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_where_no_handler_is_nothing_is_held(handled: list[int], handler: signal.Handlers):
    signal.signal(signal.SIGINT, handler)
    with held():
        assert signal.getsignal(signal.SIGINT) is handler


def test_other_threads_hold_nothing():
    found: list[Any] = []

    def look() -> None:
        with held():
            found.append(signal.getsignal(signal.SIGINT))
            deliver()

    def press_beside_a_thread() -> None:
        with held():
            noted.append(signal.getsignal(signal.SIGINT))
            press()
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()

    noted: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        press_beside_a_thread()
    assert found == noted
    look()  # here it is held
    assert found[1] is not signal.getsignal(signal.SIGINT)


def test_waiting_for_another_thread_can_be_interrupted():
    asked: list[float] = []

    def ready(seconds: float) -> bool:
        asked.append(seconds)
        press()
        return len(asked) > 5

    with held(), pytest.raises(KeyboardInterrupt):
        wait_until(ready)
    assert len(asked) == 1


def test_a_function_may_be_held_as_a_whole():
    @uninterrupted
    def pressed(value: int) -> int:
        press()
        done.append(value)
        return value

    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        pressed(3)
    assert done == [3]


class Presser:
    """Presses Ctrl-C before the n-th line that Python runs, in whatever file; counts them."""

    def __init__(self, at: int = -1) -> None:
        self.lines = 0
        self._at = at

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and frame.f_code is not Presser.__exit__.__code__:
            self.lines += 1
            if self.lines == self._at:
                press()
        return self._trace

    def __enter__(self) -> Presser:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


def pressed_within(act: Callable[[], object], times: int) -> Iterator[int]:
    """Do something again and again, with Ctrl-C at lines spread over all that it runs."""
    act()  # what is recorded the first time is another matter
    with Presser() as counting:
        act()
    for turn in range(times):
        at = 1 + (2 * turn + 1) * counting.lines // (2 * times)
        with pytest.raises(KeyboardInterrupt), Presser(at):
            act()
        yield at


GREEDY = SamplingOptions(temperature=0)
TEXT = "the and on in the and"
ACTS: dict[str, Callable[[LanguageModel], object]] = {
    "generate": lambda m: m.generate(TEXT, raw=True, num_predict=6, options=GREEDY),
    "logits": lambda m: m.logits(m.tokenizer.encode(TEXT)).tobytes(),
    "embed": lambda m: m.embed([TEXT, "the"]).tobytes(),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("interrupts") / "tiny.gguf")


@pytest.fixture(scope="module", params=["gpu", "cpu"])
def model(request: pytest.FixtureRequest, path: Path) -> Iterator[LanguageModel]:
    if request.param == "gpu":
        request.getfixturevalue("full")  # skips where there is no adapter
    with load(path, device="cpu" if request.param == "cpu" else None) as loaded:
        yield loaded


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("act", ACTS)
def test_a_model_goes_on_after_an_interrupt_at_any_line(model: LanguageModel, act: str):
    right = {name: ask(model) for name, ask in ACTS.items()}
    for at in pressed_within(lambda: ACTS[act](model), 12):
        for name in (act, "generate"):
            assert ACTS[name](model) == right[name], at


@pytest.mark.slow
@pytest.mark.gpu
def test_a_load_that_is_interrupted_at_any_line_leaves_nothing(full: Executor, path: Path):
    before: dict[str, int] = {}
    for at in pressed_within(lambda: load(path).close(), 4):
        gc.collect()  # the exception's frames hold on to what is destroyed
        before = before or counts()
        assert counts() == before, at


@pytest.mark.gpu
def test_a_context_goes_on_after_an_interrupt_at_any_line(full: Executor):
    with Context(full) as context:
        a = context.from_floats([1.0, 2.0, 3.0])
        for at in pressed_within(lambda: (a + a).numpy(), 12):
            assert (a * a).numpy().tolist() == [1.0, 4.0, 9.0], at
