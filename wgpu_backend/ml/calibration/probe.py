"""The capabilities of a device, put together once, before anything runs on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wgpu_backend.device.lanes import lanes_together
from wgpu_backend.graph.capabilities import Capabilities, Profile
from wgpu_backend.kernels import complete
from wgpu_backend.ml.calibration.self_test import (
    apply_verdict,
    make_trust,
    remembered_trust,
    require_trust,
)
from wgpu_backend.ml.calibration.tuning_cache import add_tuning
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ml.wgpu.trust import Trust


def probe_capabilities(
    executor: WgpuExecutor,
    profile: Profile,
    *,
    self_test: bool,
    progress: Callable[[float], None] | None = None,
) -> tuple[Capabilities, frozenset[str], Trust | None]:
    """Combine the adapter's features, a probe, the self-test's verdict, tuning and kernel families.

    Parameters
    ----------
    executor : WgpuExecutor
        On the device; it stays as it is.
    self_test : bool
        Run the self-test where there is no verdict; else go on without.
    progress : callable or None
        See `require_trust`.

    Returns
    -------
    Capabilities
    frozenset of str
        Ops that fusion rules may not make.
    Trust or None
        Tests further rules before their first use; None without the self-test.

    Raises
    ------
    DeviceError
        The device computes wrong values.
    """
    device = executor.device
    probed = replace(device.capabilities, lanes=lanes_together(device))
    asked = executor.as_if(complete(probed))
    if self_test:
        verdict = require_trust(asked, profile, progress=progress)
    else:
        verdict = remembered_trust(asked, profile)
    judged = apply_verdict(probed, verdict)
    trust = make_trust(executor.as_if(complete(judged)), profile) if self_test else None
    return complete(add_tuning(judged, asked, profile)), verdict, trust
