"""Groups of requests in a pipeline: each device has one, and the text is that of one device."""

import time

import numpy as np
import pytest

import wgpu_backend
from tests.builders import Dims, tiny_model
from tests.patience import PATIENCE
from wgpu_backend.engine.batching.pace import TRIED, UNTRIED, Groups
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.placement import Placement
from wgpu_backend.ops.sampling.host import SamplingOptions

GREEDY = SamplingOptions(temperature=0.0)
SEEDED = SamplingOptions(temperature=0.8, seed=5, repeat_penalty=1.3)
PROMPTS = ([1, 2, 3, 4], [9, 8, 7], list(range(20, 60)), [5, 6], [40, 2, 7], [3] * 9)


class Busy:
    """Results that are there once the device has worked for them."""

    def __init__(self, result, ready, device):
        self._result, self._ready, self._device = result, ready, device

    def wait(self):
        time.sleep(max(0.0, self._ready - time.monotonic()))
        self._device.under_way -= 1
        return self._result.wait()


class SlowRecorded:
    """A recorded graph each run of which takes a while."""

    def __init__(self, inner, device):
        self._inner, self._device = inner, device

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def replay(self):
        device = self._device
        rows = self._inner.arrays["positions"].size
        took = device.seconds * (1 + rows) / 2
        device.ready = max(device.ready, time.monotonic()) + took
        device.under_way += 1
        device.seen.append(tuple(each.under_way for each in device.devices))
        return Busy(self._inner.replay(), device.ready, device)


class SlowDevice:
    """A device that works next to the host, half of `seconds` for a run and each of its rows.

    `seen` has the runs under way on each of the devices whenever one begins.
    """

    def __init__(self):
        self._inner, self.seconds, self.ready = NumpyExecutor(), 0.0, 0.0
        self.under_way, self.seen, self.devices = 0, [], [self]

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def record(self, outputs, **options):
        return SlowRecorded(self._inner.record(outputs, **options), self)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    dims = Dims(layers=4)
    return tiny_model(tmp_path_factory.mktemp("groups") / "tiny.gguf", dims=dims, tied=True)


def open_placed(path, seconds, count, room=8, num_ctx=128):
    """Open a model on slow devices of several nodes."""
    devices = [SlowDevice() for _ in range(count)]
    names = ("cpu", *(f"cpu@10.0.0.{at}:7" for at in range(1, count)))
    layers = tuple(layer * count // 4 for layer in range(4))
    given = dict(zip(names, devices, strict=True))
    openers = {name: lambda _, name=name: given[name] for name in names}
    model = wgpu_backend.load(
        path, num_ctx=num_ctx, num_parallel=room, exact=True, openers=openers,
        placement=Placement(names, layers, 0, count - 1),
    )  # fmt: skip
    for device in devices:
        device.seconds, device.devices = seconds, devices
    return model, devices


def answer(model, options=GREEDY, prompts=PROMPTS, **how):
    """Answers of requests that run together, and again from the prefix cache."""
    with wgpu_backend.Engine(model, **how) as engine:
        found = []
        for length in (14, 20):
            made = [
                engine.submit(
                    wgpu_backend.Request(p, options, max_tokens=length + i, ignore_eos=True)
                )
                for i, p in enumerate(prompts)
            ]
            found += [list(each.result(PATIENCE).choices[0].tokens) for each in made]
        return found, engine.status()


@pytest.fixture(scope="module")
def wanted(path):
    with wgpu_backend.load(path, device="cpu", num_ctx=128, num_parallel=8, exact=True) as model:
        return {options: answer(model, options)[0] for options in (GREEDY, SEEDED)}


@pytest.mark.slow
@pytest.mark.parametrize("options", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("count", [2, 3])
def test_groups_write_the_text_of_one_device(path, wanted, count, options):
    model, _ = open_placed(path, 0.0, count)
    with model:
        found, status = answer(model, options)
    assert found == wanted[options]
    assert status.cached_tokens > 0


@pytest.mark.slow
def test_choices_that_give_their_room_to_others_go_on_with_the_same_text(path):
    """Six of up to 75 positions in a cache of 256, in groups."""
    prompts = [[5 + n] * 40 for n in range(6)]
    with wgpu_backend.load(path, device="cpu", num_ctx=128, num_parallel=8, exact=True) as model:
        alone, _ = answer(model, prompts=prompts, prefix_cache=False)
    model, _ = open_placed(path, 0.0, 2, room=2)
    paused = []
    with model:
        assert model.cache.positions < 6 * 54
        with wgpu_backend.Engine(model, num_parallel=6) as engine:
            pause = engine._core._pause
            engine._core._pause = lambda each: paused.append(each) or pause(each)
            made = [
                engine.submit(wgpu_backend.Request(p, GREEDY, max_tokens=14 + i, ignore_eos=True))
                for i, p in enumerate(prompts)
            ]
            found = [list(each.result(PATIENCE).choices[0].tokens) for each in made]
    assert paused
    assert found == alone[: len(found)]


def test_all_stages_work_at_once_while_several_choices_run(path, monkeypatch):
    """Whenever the first stage begins with a step, the last has one of another group."""
    monkeypatch.setattr(Groups, "choose", lambda _, choices: min(choices, 2))
    model, devices = open_placed(path, 0.01, 2)
    with model, wgpu_backend.Engine(model) as engine:
        made = [
            engine.submit(wgpu_backend.Request(p, GREEDY, max_tokens=30, ignore_eos=True))
            for p in PROMPTS[:4]
        ]
        for each in made:
            each.result(PATIENCE)
        both = sum(min(seen) > 0 for seen in devices[0].seen)
        steps = len(devices[0].seen)
        # One choice alone has one step after the other.
        del devices[0].seen[:]
        engine.submit(wgpu_backend.Request([1], GREEDY, max_tokens=9)).result(PATIENCE)
        assert set(devices[0].seen) == {(1, 0)}
    # 30 steps of each group, and all but the first and the last ones overlap.
    assert 60 <= steps <= 66
    assert both > steps // 2


def test_parts_of_a_prompt_that_is_alone_are_on_all_stages_at_once(path):
    model, devices = open_placed(path, 0.001, 2, room=2, num_ctx=512)
    with model, wgpu_backend.Engine(model, num_parallel=2) as engine:
        prompt = [i % 90 for i in range(400)]
        engine.submit(wgpu_backend.Request(prompt, GREEDY, max_tokens=1)).result(PATIENCE)
    # Of four passes, three begin while the last stage has the one before.
    assert devices[0].seen == [(1, 0), (2, 0), (1, 1), (1, 1)]


def test_drafts_have_one_group(path):
    model, _ = open_placed(path, 0.0, 2)
    with model:
        for draft, groups in (("ngram", 1), (None, 2)):
            with wgpu_backend.Engine(model, draft=draft) as engine:
                assert engine._core._options.groups == groups


def run_trials(groups, rates, choices=4, tokens=2000):
    """Count the tokens of steps at the rate of the number of groups that is chosen."""
    now, chosen = 0.0, []
    while len(chosen) < tokens:
        found = groups.choose(choices)
        each = -(-choices // found)
        now += each / rates[found]
        groups.count(choices, each, now)
        chosen += [found] * each
    return chosen


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({1: 100.0, 2: 170.0, 3: 150.0}, 2),
        ({1: 100.0, 2: 160.0, 3: 180.0}, 3),
        ({1: 100.0, 2: 60.0, 3: 40.0}, 1),
        # Not worth a change.
        ({1: 102.0, 2: 100.0, 3: 103.0}, 2),
    ],
)
def test_the_number_of_groups_that_was_fastest_is_taken(rates, best):
    chosen = run_trials(Groups(2), rates)
    assert chosen.count(best) > 0.9 * len(chosen)
    assert chosen[-100:] == [best] * 100


def test_the_number_of_groups_is_tried_again_after_a_while():
    groups = Groups(2)
    assert run_trials(groups, {1: 100.0, 2: 170.0, 3: 150.0})[-1] == 2
    found = run_trials(groups, {1: 100.0, 2: 60.0, 3: 50.0}, tokens=(UNTRIED + 20 * TRIED) * 4)
    assert found[-1] == 1
    # Prompts between the steps say nothing about them, and one choice has no groups.
    groups.skip()
    assert groups.choose(1) == 1
    assert Groups(1).choose(8) == 1


def test_trials_end_while_the_number_of_choices_changes_at_every_step():
    groups, now, chosen = Groups(8), 0.0, []
    draw = np.random.default_rng(3)
    # A group takes a time of its own, as where the weights take most of it: more are slower.
    seconds = {1: 1.0, 8: 8.0, 9: 9.0}
    for _ in range(3000):
        choices = int(draw.integers(66, 129))
        found = groups.choose(choices)
        chosen.append(found)
        now += seconds[found] / found
        groups.count(choices, -(-choices // found), now)
    # The others are trials: a round of eight groups is eight steps.
    assert chosen[-2000:].count(1) > 1200


@pytest.mark.parametrize("between", [3, 20, 60])
def test_prompts_that_interrupt_a_trial_do_not_leave_a_slow_number_of_groups(between):
    """One group has an eighth of the speed; a prompt comes every few rounds."""
    groups, now, spent = Groups(8), 0.0, {1: 0.0, 8: 0.0, 9: 0.0}
    until_prompt, choices = float(between), 64
    while now < 400.0:
        found = groups.choose(choices)
        took = (1.0 if found == 1 else 0.125) / found
        now, spent[found] = now + took, spent[found] + took
        groups.count(choices, -(-choices // found), now)
        # Requests end, so prompts come, at a rate of tokens.
        until_prompt -= 1 / found
        if until_prompt <= 0:
            until_prompt += between
            groups.skip()
    assert spent[1] < 0.12 * now


def test_the_trial_of_a_slow_number_of_groups_ends_early():
    chosen = run_trials(Groups(2), {1: 10.0, 2: 170.0, 3: 150.0})
    # One round takes longer than a whole trial of the best one, which has eleven.
    assert chosen.count(1) <= 8
