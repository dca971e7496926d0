import dataclasses
import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.ops.fused import titled
from tests.patience import PATIENCE
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.node import Node
from wgpu_backend.kernels import FAMILIES
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.calibration import self_test as module
from wgpu_backend.ml.calibration.device_cache import one_process_at_a_time
from wgpu_backend.ml.calibration.self_test import (
    BEFORE,
    Finding,
    LeftOutWarning,
    apply_verdict,
    cases,
    fused_cases,
    fused_test,
    make_trust,
    remembered_trust,
    require_trust,
    self_test,
)
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu.dry_run import DryRunExecutor
from wgpu_backend.ops.linear.activation_rounding import EVERY_PRODUCT
from wgpu_backend.ops.op import fusions


def test_numpy_agrees_with_itself() -> None:
    assert [f.error for f in self_test(NumpyExecutor())] == [0.0] * len(list(cases()))


@pytest.mark.gpu
@pytest.mark.parametrize("profile", ["full", "baseline"])
def test_adapter_passes(profile) -> None:
    try:
        executor = make_executor("wgpu", BackendParams(profile=profile, self_test=False))
    except DeviceError as error:
        pytest.skip(f"no adapter: {error}")
    try:
        assert [f.name for f in self_test(executor) if not f.passed] == []
    finally:
        executor.close()


def test_nan_is_no_pass() -> None:
    assert not Finding("x", float("nan")).passed


@pytest.mark.parametrize("by", [-0.01, 0.01])
def test_a_finding_has_the_normalised_error_whichever_way_a_device_errs(by) -> None:
    class Off(NumpyExecutor):
        def read(self, node):
            values = super().read(node)
            return values + np.float32(by) * np.abs(values)

    _, make = next(cases())
    assert module._error(Off(), make) == pytest.approx(by**2, rel=1e-3)


def test_a_pass_is_remembered(tmp_path: Path, monkeypatch) -> None:
    cache = tmp_path / "folder" / "trusted.json"
    require_trust(NumpyExecutor(), "full", cache)
    monkeypatch.setattr(module, "self_test", lambda *_: pytest.fail("ran again"))
    require_trust(NumpyExecutor(), "full", cache)

    assert len(json.loads(cache.read_text())) == 1
    with pytest.raises(pytest.fail.Exception):
        require_trust(NumpyExecutor(), "baseline", cache)


def test_processes_that_open_a_device_together_test_it_once(tmp_path: Path, monkeypatch) -> None:
    def tested(*_: object) -> list[module.Finding]:
        time.sleep(0.05)
        runs.append(1)
        return []

    runs: list[int] = []
    monkeypatch.setattr(module, "self_test", tested)
    with ThreadPoolExecutor(4) as threads:
        list(
            threads.map(
                partial(require_trust, NumpyExecutor()),
                ["full", "baseline"] * 2,
                [tmp_path / "trusted.json"] * 4,
            )
        )
    assert len(runs) == 2
    assert len(json.loads((tmp_path / "trusted.json").read_text())) == 2


def test_a_process_that_never_ends_its_test_is_not_waited_for(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "TURN_SECONDS", 0.1)
    cache = tmp_path / "trusted.json"
    with one_process_at_a_time(cache, 1):
        require_trust(NumpyExecutor(), "full", cache)
    assert len(json.loads(cache.read_text())) == 1


@pytest.mark.parametrize("content", ["", "{", "3", '{"a": 1}'])
def test_a_damaged_memory_is_made_anew(tmp_path: Path, content) -> None:
    cache = tmp_path / "trusted.json"
    cache.write_text(content)
    require_trust(NumpyExecutor(), "full", cache)

    assert len(json.loads(cache.read_text())) == 1


def test_wrong_values_are_refused_and_not_remembered(tmp_path: Path, monkeypatch) -> None:
    class Wrong(NumpyExecutor):
        def read(self, node):
            return super().read(node) + np.float32(1)

    cache = tmp_path / "trusted.json"
    with pytest.raises(DeviceError, match=r"softmax \(NMSE"):
        require_trust(Wrong(), "full", cache)

    assert not cache.exists()


@pytest.mark.slow
@pytest.mark.gpu
def test_a_device_with_wrong_subgroups_does_without(executors, tmp_path, monkeypatch) -> None:
    executor = executors("full")
    if not executor.capabilities.subgroups:
        pytest.skip(f"needs subgroups, which {executor.info.name} has not")
    real = self_test

    def miscompiled(tested, run) -> list[Finding]:
        there = run._executors[0].capabilities.subgroups
        return [*real(tested, run), Finding("softmax", 0.5 if there else 0.0)]

    monkeypatch.setattr(executor, "rules", {})
    monkeypatch.setattr(module, "self_test", miscompiled)
    cache = tmp_path / "trusted.json"
    with pytest.warns(LeftOutWarning, match=r"subgroups are not used, .* softmax \(NMSE 5\.0e-01"):
        assert require_trust(executor, "full", cache) == {module.SUBGROUPS}
    assert executor.capabilities.subgroups  # nothing changes what an executor goes by
    monkeypatch.setattr(module, "self_test", lambda *_: pytest.fail("ran again"))
    assert require_trust(executor, "full", cache) == {module.SUBGROUPS}
    found = apply_verdict(executor.capabilities, {module.SUBGROUPS})
    assert (found.subgroups, found.lanes) == (False, 0)
    assert apply_verdict(executor.capabilities, {"linear_q8"}) is executor.capabilities


@pytest.mark.slow
@pytest.mark.gpu
def test_adapter_passes_with_fused_ops(executors) -> None:
    executor = executors("baseline")
    before = executor.rules
    try:
        assert [f.name for f in fused_test(executor) if not f.passed] == []
    finally:
        executor.rules = before


@pytest.mark.gpu
def test_every_rule_has_a_case_in_which_it_applies(executors) -> None:
    # Rounding to sixteen bits pays by a kernel of one family alone, and does not apply without it.
    sixteen_bits = find_spec("wgpu_backend.kernels.gpu") is not None
    fast = {"rounded": EVERY_PRODUCT, "f16": True, "lanes": 8, "integer_dot": True}
    devices = [
        executor.as_if(dataclasses.replace(executor.capabilities, **fast))
        for executor in map(executors, ("wide", "full"))
    ]
    of_families = {trial.rule for family in FAMILIES for trial in family.cases}
    for name, _, make in fused_cases():
        if name in of_families or ("q16" in name and not sixteen_bits):
            continue  # the first have a test like this of their own
        before = BEFORE.get(name, ())
        assert any(
            recorded_by(device, (*before, name), make) != recorded_by(device, before, make)
            for device in devices
        ), name


def options(node) -> list[tuple[str, str]]:
    """What an op was told by keyword beside its operands."""
    plain = ((k, v) for k, v in node.call.kwargs.items() if not isinstance(v, Node))
    return sorted((name, str(value)) for name, value in plain)


def recorded_by(executor, rules, make) -> list[str]:
    """Ops of a case, as these rules leave them."""
    executor.rules = fusions(rules, exact=False)
    with Context(DryRunExecutor(executor, lambda shader: None)) as context:
        recorded = context.record(make(context, np.random.default_rng(1)))
        return [f"{titled(node)} {options(node)}" for node, _ in recorded.plan.steps]


@pytest.mark.gpu
def test_a_wrong_fused_op_is_left_out_and_remembered(executors, tmp_path, monkeypatch) -> None:
    executor = executors("full")
    monkeypatch.setattr(module, "self_test", lambda *_: [])
    monkeypatch.setattr(module, "fused_test", lambda *_: [Finding("linear_q8", 0.5, 1e-3)])
    cache = tmp_path / "trusted.json"
    assert require_trust(executor, "full", cache) == frozenset()
    trust = make_trust(executor, "full", cache)
    with pytest.warns(LeftOutWarning, match=r"linear_q8 \(NMSE 5\.0e-01, at most 1e-03"):
        assert trust.find_wrong({"linear_q8", "linear"}) == {"linear_q8"}

    monkeypatch.setattr(module, "fused_test", lambda *_: pytest.fail("ran again"))
    assert trust.find_wrong({"linear_q8"}) == {"linear_q8"}
    assert make_trust(executor, "full", cache).find_wrong({"linear_q8"}) == {"linear_q8"}
    assert require_trust(executor, "full", cache) == {"linear_q8"}
    rules = fusions(exact=False, without={"linear_q8"})
    assert "linear_q8" not in {rule.name for named in rules.values() for rule in named}


def in_turn(monkeypatch) -> list[list[str]]:
    """Let rules be right, and note those of each test."""
    asked: list[list[str]] = []

    def tested(executor, run, names) -> list[Finding]:
        assert (executor.rules, executor.trust) == ({}, None)
        asked.append(sorted(names))
        return [Finding(name, 0.0) for name in names]

    monkeypatch.setattr(module, "fused_test", tested)
    return asked


@pytest.mark.gpu
def test_a_rule_is_tested_before_a_graph_first_uses_it(full, tmp_path, monkeypatch, rng) -> None:
    asked = in_turn(monkeypatch)
    executor = full.as_if(full.capabilities)
    executor.rules = fusions(["chain", "rms_norm_add"], exact=True)
    executor.trust = make_trust(executor, "full", tmp_path / "trusted.json")
    x = rng.standard_normal((3, 8), "f4")

    def run(make) -> None:
        with Context(executor) as context:
            make(context.from_numpy(x)).numpy()

    run(lambda x: x.silu())
    assert asked == []
    for _ in range(2):
        run(lambda x: x.silu().tanh())
    assert asked == [["chain"]]
    run(lambda x: x + x.silu().tanh().rms_norm(eps=1e-5))
    assert asked == [["chain"], ["rms_norm_add"]]
    found = json.loads((tmp_path / "trusted.json").read_text())
    assert [*found.values()] == [{"chain": True, "rms_norm_add": True}]
    # Another process takes the verdict.
    executor.trust = make_trust(executor, "full", tmp_path / "trusted.json")
    run(lambda x: x.silu().tanh())
    assert len(asked) == 2


@pytest.mark.gpu
def test_a_graph_does_without_a_rule_found_wrong(full, tmp_path, monkeypatch, rng) -> None:
    monkeypatch.setattr(module, "fused_test", lambda *_: [Finding("chain", 1.0)])
    executor = full.as_if(full.capabilities)
    executor.rules = fusions(["chain", "rms_norm_add"], exact=True)
    executor.trust = make_trust(executor, "full", tmp_path / "trusted.json")
    x = rng.standard_normal((3, 8), "f4")
    with Context(executor) as context:
        y = context.from_numpy(x).silu().tanh()
        with pytest.warns(LeftOutWarning, match="chain"):
            recorded = context.record(y)
        assert [titled(node) for node, _ in recorded.plan.steps] == ["silu", "tanh"]
        recorded.close()


@pytest.mark.gpu
def test_an_op_whose_rule_never_applies_here_is_tested_all_the_same(full, tmp_path, monkeypatch):
    asked = in_turn(monkeypatch)
    trust = make_trust(full, "full", tmp_path / "trusted.json")
    trust.note({"scaled_attention", "softmax"})
    trust.test_noted()
    trust.test_noted()
    assert asked == [["scaled_attention_matrix"]]


def test_each_op_of_the_table_names_a_case() -> None:
    assert set(module.ALSO.values()) <= {name for name, _, _ in fused_cases()}


def few(monkeypatch, wanted: int = 3) -> None:
    """Let the self-test consist of a few cases that need no fusion."""
    some = [*cases()][-wanted:]
    monkeypatch.setattr(module, "cases", lambda: iter(some))
    monkeypatch.setattr(module, "fused_cases", lambda: iter([]))


def test_the_first_use_says_what_takes_so_long_and_where_it_is_kept(
    tmp_path: Path, monkeypatch, caplog
) -> None:
    few(monkeypatch)
    cache, shares = tmp_path / "folder" / "trusted.json", []
    with caplog.at_level(logging.WARNING, "wgpu_backend"):
        require_trust(NumpyExecutor(), "full", cache, progress=shares.append)
        first, last = [record.getMessage() for record in caplog.records]
        require_trust(NumpyExecutor(), "full", cache, progress=shares.append)
    assert first == (
        "first use of NumPy: testing its kernels, some seconds; "
        f"remembered in {tmp_path / 'folder'}"
    )
    assert last == "NumPy is tested, 0 s"
    assert len(caplog.records) == 2
    assert shares == [0.0, *(pytest.approx(n / 3) for n in (1, 2, 3))]


def test_a_test_that_is_called_off_is_not_remembered(tmp_path: Path, monkeypatch) -> None:
    few(monkeypatch)

    def stop(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    cache = tmp_path / "trusted.json"
    with pytest.raises(KeyboardInterrupt):
        require_trust(NumpyExecutor(), "full", cache, progress=stop)
    assert not cache.exists()


def test_what_computes_nothing_that_matters_does_not_wait(tmp_path: Path, monkeypatch) -> None:
    cache = tmp_path / "trusted.json"
    monkeypatch.setattr(module, "self_test", lambda *_: pytest.fail("ran"))
    assert remembered_trust(NumpyExecutor(), "full", cache) == frozenset()
    assert not cache.exists()
    key = module.device_key(NumpyExecutor(), "full")
    cache.write_text(json.dumps({key: {"linear_q8": False, "chain": True}}))
    assert remembered_trust(NumpyExecutor(), "full", cache) == {"linear_q8"}


def test_several_devices_share_the_work_and_the_order_stays() -> None:
    threads, both = set(), threading.Barrier(2, timeout=PATIENCE)

    def find(executor, case) -> Finding:
        if case < 2:
            both.wait()  # which needs two at work
        threads.add(threading.get_ident())
        return Finding(str(case), 0.0)

    run = module.Run([NumpyExecutor(), NumpyExecutor()])
    found = run.findings(range(20), find)
    assert [f.name for f in found] == [str(n) for n in range(20)]
    assert len(threads) == 2


def test_what_fails_on_a_helping_device_is_not_lost() -> None:
    first, other = NumpyExecutor(), NumpyExecutor()

    def find(executor, case) -> Finding:
        if executor is other:
            raise DeviceError("lost")
        return Finding(str(case), 0.0)

    run = module.Run([first, other])
    with pytest.raises(DeviceError, match="lost"):
        run.findings(range(2000), find)


@pytest.mark.gpu
def test_a_rasteriser_is_tested_on_several_devices(full, tmp_path, monkeypatch) -> None:
    if not full.capabilities.software:
        pytest.skip(f"needs a rasteriser, not {full.info.name}")
    few(monkeypatch, 4)
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(full, "rules", {})
    seen, real = set(), module._error
    monkeypatch.setattr(module, "_error", lambda ex, make: (seen.add(ex), real(ex, make))[1])
    assert require_trust(full, "full", tmp_path / "trusted.json") == frozenset()
    assert (full in seen, len(seen)) == (True, 2)
    [other] = seen - {full}
    assert other.capabilities == full.capabilities
