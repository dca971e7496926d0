"""Which cases of the tests run in `make test`, and in each part of `make test-all`.

`make test` runs a few cases of every test, chosen so that they differ from each other. Of the
others, each run draws some by its seed, in three shares: on a second driver; on four lanes, for
which LLVM compiles a kernel of a rasteriser in half the time that it takes for eight; and the rest,
on all lanes. What a test needs follows from its folder and its parameters; the lists below have the
exceptions.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import combinations, groupby

import numpy as np
import pytest

SHARES = ("representative", "second", "narrow", "rest")
# What each kind of executor overrides: `wide` takes the kernels meant for hardware on whatever
# device there is, `split` spreads weights over many bindings.
KINDS: dict[str, dict[str, object]] = {
    "full": {},
    "baseline": {},
    "wide": {"software": False},
    "split": {"max_binding_nbytes": 64 << 10},
    "split wide": {"max_binding_nbytes": 64 << 10, "software": False},
}
GPU_FIXTURES = {"executors", "gpu", "any_gpu", "full", "split"}

# Of the cases that `make test` leaves out, a run draws one in so many of each test, by its seed. So
# two runs differ, and what one of them misses a later one finds. `--every-case` runs them all.
# Of slow tests, which take more than half of the time, it draws fewer.
ONE_IN, ONE_IN_SLOW = 6, 12

# A drawn few of the cases that differ little from others and take ten seconds of compiling.
RARE_CASES = 6
# Tests that run again on a second Vulkan driver (SwiftShader), by the start of their names and what
# their parameters have: the self-test, each op of the table, and what drivers have got wrong.
SECOND_DRIVER = {
    "tests/engine/test_sampling.py::test_the_device_takes_the_tokens_of_the_host": "penalties",
    "tests/ml/calibration/test_self_test.py::test_adapter_passes": "",
    "tests/models/test_fusion.py::test_rounding_on_the_default_limits": "",
    "tests/models/test_logits.py::test_any_driver_gives_the_same": "",
    "tests/ops/test_copying.py::test_casts_keep_nan_and_infinity": "",
    "tests/ops/test_division.py::test_quotients_by_the_largest_numbers": "",
    "tests/ops/test_division.py::test_remainders_of_floats_are_exact": "",
    "tests/ops/test_normalization.py::test_softmax_of_rows_with_nan_or_infinity": "",
    "tests/ops/test_sampling.py::test_penalties_agree_with_numpy": "",
    "tests/ops/test_sampling.py::test_weights_on_the_device": "",
    "tests/ops/test_table.py::test_results_are_those_of_the_reference": "-full]",
    "tests/ops/test_transcendental.py::test_a_function_is_within_some_units": "",
}

# Kinds whose kernels are the same however many lanes a rasteriser has.
OF_ANY_WIDTH = {"baseline", "wide", "split wide"}
# Folders of tests that look at the lanes of a rasteriser, but for the kernels of hardware. Of tests
# of ops and models a few cases run on all lanes, and the others on four.
OF_LANES = ("benchmarks", "device", "kernels", "ml", "models", "ops")
OF_FEW = ("models", "ops")
OF_HARDWARE = "tests/kernels/gpu/"
# On four lanes in these folders, too: they take no other kernels on more.
FOUR_LANES = (
    "tests/device/test_wgsl_loops.py",
    "tests/ml/testing/test_cases.py",
    "tests/models/test_architectures.py",
    "tests/ops/test_head_scans.py",
    "tests/ops/test_matmul.py::test_any_number_of_columns_on_hardware_kernels",
    "tests/ops/test_plain_types.py",
    "tests/ops/test_portable_products.py",
    "tests/ops/test_q8.py::test_every_format_in_tiles",
    "tests/ops/test_rope_attention.py::test_the_kernel_for_hardware",
    "tests/ops/test_row_launches.py",
    "tests/ops/test_sorting.py",
    "tests/ops/test_table.py",
)
# On all lanes, for kernels that need them, or because four would take minutes.
ALL_LANES = (
    "tests/engine/batching/test_same_text.py::test_logprobs_have_the_same_bits_whoever_is_beside[gemma3-600",
    "tests/engine/batching/test_same_text.py::test_fifty_stories_alone_and_sixteen_at_a_time",
    "tests/images/test_bundled_pictures.py::test_pictures_show_what_their_sentences_say",
    "tests/models/test_fusion.py::test_exact_logits_stay_exact",
    "tests/models/test_fusion.py::test_rounding_without_one_rule",
    "tests/ops/test_rope_attention.py",
)
# Fixtures that skip a rasteriser of four lanes.
EIGHT_LANE_FIXTURES = {"eight_lanes", "shuffling", "shuffling_split", "tiling"}

# Parameters of a few cases: one of a test on a device, five of any other, and every value of a
# parameter that names what is tested.
ON_A_DEVICE, ELSEWHERE = 1, 5
SUBJECTS = {"architecture", "kernel", "name", "op", "recipe"}

# Marks of cases that differ little from others and compile for ten seconds: `make test-all` runs a
# few that it draws, and `--every-case` all of them.
rare = pytest.mark.slow(rare=True)


def rare_on(*kinds: str) -> pytest.MarkDecorator:
    """Mark the cases on these kinds of executor as rare."""
    assert set(kinds) <= KINDS.keys(), f"{kinds}: there are {list(KINDS)}"
    return pytest.mark.slow(rare=kinds)


Value = tuple[str, str]
Values = tuple[Value, ...]


def choose(
    items: Sequence[pytest.Item], share: str | None, seed: int, *, every_case: bool
) -> set[pytest.Item]:
    """Choose the cases of a share, or without one all that are not rare.

    Parameters
    ----------
    seed : int
        Of the cases that are drawn.
    every_case : bool
        Take whole grids and all rare cases, and draw nothing.
    """
    common = {item for item in items if not is_rare(item)}
    if share is None:
        return set(items) if every_case else common
    drawn = draw_rare(set(items) - common, seed)
    taken = set(items) if every_case else pairwise(common) | drawn
    first = few(i for i in taken & common if not is_slow(i) and not needs_eight_lanes(i))
    if share == "representative":
        return first
    if share == "second":
        return {item for item in taken & common if runs_on_a_second_driver(item)}
    left = taken - first
    wide = {item for item in left if runs_on_all_lanes(item)}
    spared = {i for i in wide if is_in(OF_FEW, i) and not i.nodeid.startswith(ALL_LANES)}
    wide -= spared - few(spared)
    mine = wide if share == "rest" else left - wide
    return mine if every_case else mine & drawn | draw(mine - drawn, first, seed)


def is_slow(item: pytest.Item) -> bool:
    """Whether a case takes more than a second."""
    return any("rare" not in mark.kwargs for mark in item.iter_markers("slow"))


def is_rare(item: pytest.Item) -> bool:
    """Whether a case differs little from others and takes long."""
    rare_marks = (mark.kwargs.get("rare", ()) for mark in item.iter_markers("slow"))
    return any(kinds is True or kinds_of(item) & {*kinds} for kinds in rare_marks)


def draw_rare(items: Iterable[pytest.Item], seed: int) -> set[pytest.Item]:
    """Draw a few rare cases, the same in all processes of a run."""
    line = sorted(items, key=lambda item: item.nodeid)
    count = min(RARE_CASES, len(line))
    places = np.random.default_rng(seed).choice(len(line), count, replace=False) if line else ()
    return {line[int(place)] for place in places}


def draw(
    items: Iterable[pytest.Item], others: Iterable[pytest.Item], seed: int
) -> set[pytest.Item]:
    """Draw one in a few cases of each test, but for slow tests at least one in every second run.

    Parameters
    ----------
    others : iterable of pytest.Item
        Cases that `make test` runs; a test without any of these is slow.
    """
    found = set[pytest.Item]()
    elsewhere = {test_of(item) for item in others}
    for test, cases in groupby(sorted(items, key=lambda item: item.nodeid), key=test_of):
        line = list(cases)
        rng = random.Random(f"{seed} {test}")  # not NumPy's: a text is a seed as it is
        mean = len(line) / ONE_IN if test in elsewhere else max(len(line) / ONE_IN_SLOW, 1 / 2)
        # Rounded up or down by chance, so that each case is as likely as any other.
        found.update(rng.sample(line, int(mean + rng.random())))
    return found


def runs_on_a_second_driver(item: pytest.Item) -> bool:
    """Whether a case is listed as one that runs on a second driver."""
    name = item.nodeid
    return any(name.startswith(start) and part in name for start, part in SECOND_DRIVER.items())


def kinds_of(item: pytest.Item) -> set[object]:
    """Kinds of executor that a case has among its parameters."""
    spec = getattr(item, "callspec", None)
    return {p for p in spec.params.values() if isinstance(p, str) and p in KINDS} if spec else set()


def is_on_device(item: pytest.Item) -> bool:
    """Whether a case needs an adapter."""
    return item.get_closest_marker("gpu") is not None


def is_in(folders: Iterable[str], item: pytest.Item) -> bool:
    """Whether a test's file lies in one of these folders of the tests."""
    return item.nodeid.startswith(tuple(f"tests/{folder}/" for folder in folders))


def needs_eight_lanes(item: pytest.Item) -> bool:
    """Whether a case skips a rasteriser of four lanes, as that of `make test` is."""
    return bool(EIGHT_LANE_FIXTURES.intersection(getattr(item, "fixturenames", ())))


def runs_on_all_lanes(item: pytest.Item) -> bool:
    """Whether a case shows another part of the code the more lanes a rasteriser has."""
    if needs_eight_lanes(item):
        return True
    if not is_on_device(item) or item.nodeid.startswith((*FOUR_LANES, OF_HARDWARE)):
        return False
    if kinds := kinds_of(item):
        return not kinds & OF_ANY_WIDTH
    return item.nodeid.startswith(ALL_LANES) or is_in(OF_LANES, item)


# A few cases of every test.


def few(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Choose a few cases of every test, which differ from each other."""
    tests = groupby(sorted(items, key=test_of), key=test_of)
    return {case for _, cases in tests for case in chosen(list(cases))}


def chosen(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Cases of one test that have, together, most values of its parameters."""
    on_device = [case for case in cases if is_on_device(case)]
    most = ON_A_DEVICE if on_device else ELSEWHERE
    # In an order that has nothing to do with that of the parameters, the same in every run, but for
    # the profile: kernels of the full one are mostly compiled already, for other tests.
    line = sorted(on_device or cases, key=lambda case: (_comes_later(case), _drawn(case)))
    missing = set[Value]().union(*map(values_of, line))
    # The largest gain first; gains only fall, so only the first of the heap has to be up to date.
    heap = [(*_gain(case, missing), place) for place, case in enumerate(line)]
    heapify(heap)
    found: list[pytest.Item] = []
    while heap:
        *_, place = heappop(heap)
        subjects, wide, others = _gain(line[place], missing)
        if heap and heap[0] < (subjects, wide, others, place):
            heappush(heap, (subjects, wide, others, place))
            continue
        if found and not subjects and (not others or len(found) >= most):
            break
        found.append(line[place])
        missing -= values_of(line[place])
    return found


def _gain(case: pytest.Item, missing: set[Value]) -> tuple[int, bool, int]:
    """Less how many subjects, and how many values of any kind, a case has that are missing.

    Between the two, whether it compiles for seconds: another case with as many subjects is taken.
    """
    new = values_of(case) & missing
    subjects = len([name for name, _ in new if name in SUBJECTS])
    return -subjects, _is_wide(case), -len(new)


def _is_wide(case: pytest.Item) -> bool:
    """Whether a case takes the kernels for hardware where there are others."""
    return any("wide" in text for _, text in values_of(case))


def _comes_later(case: pytest.Item) -> bool:
    """Whether a case takes the baseline profile, or where every fourth begins with it another."""
    kinds = kinds_of(case)
    rest = case.nodeid
    for kind in kinds:
        rest = rest.replace(str(kind), "")
    return ("baseline" in kinds) != (zlib.crc32(rest.encode()) % 4 == 0)


def _drawn(case: pytest.Item) -> int:
    return zlib.crc32(case.nodeid.encode())


# Grids of parameters: so many cases that every two values of the parameters meet in one. Nearly all
# faults show where one or two parameters have certain values (D. R. Kuhn, D. R. Wallace and A. M.
# Gallo, "Software fault interactions and implications for software testing", 2004).


def pairwise(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Choose the cases that run: of tests on a device as many as have all pairs, of others all."""
    left = sorted(items, key=test_of)
    on_device = [i for i in left if is_on_device(i) and hasattr(i, "callspec")]
    tests = groupby(on_device, key=test_of)
    found = {case for _, cases in tests for case in covering(list(cases))}
    return found | (set(left) - set(on_device))


def covering(cases: Sequence[pytest.Item]) -> Iterable[pytest.Item]:
    """Choose cases of one test that have, together, every pair of values."""
    pairs = [set(combinations(sorted(values_of(case)), 2)) for case in cases]
    missing = set[Values]().union(*pairs)
    if not missing:
        return cases
    # In an order that has nothing to do with that of the parameters, the same in every run.
    line = [(-len(pairs[n]), zlib.crc32(c.nodeid.encode()), n) for n, c in enumerate(cases)]
    heapify(line)
    found: list[pytest.Item] = []
    while missing:
        _, drawn, number = heappop(line)
        new = pairs[number] & missing
        if line and -line[0][0] > len(new):  # others have more by now, as far as is known
            heappush(line, (-len(new), drawn, number))
            continue
        found.append(cases[number])
        missing -= new
    return found


@cache
def values_of(case: pytest.Item) -> frozenset[tuple[str, str]]:
    """Parameters of a case, and the texts of their values."""
    spec = getattr(case, "callspec", None)
    return (
        frozenset((name, _text(value)) for name, value in spec.params.items())
        if spec
        else frozenset()
    )


def test_of(item: pytest.Item) -> str:
    """Name of a test without the parameters."""
    return item.nodeid.partition("[")[0]


def _text(value: object) -> str:
    """Name of a function or a type, as others have their address in their text."""
    return str(getattr(value, "__qualname__", value))
