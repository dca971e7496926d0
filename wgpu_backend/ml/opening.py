"""Contexts that own their device: tensors without a model's file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import DeviceInfo, Profile
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.placed_executor import PlacedExecutor
from wgpu_backend.ml.placement import Placement


def choose_device(which: str | int | DeviceInfo | None) -> tuple[str, DeviceInfo]:
    """Return the kind of backend and the device for a name; the best device for None.

    Raises
    ------
    DeviceError
        Nothing goes by that name.
    """
    from wgpu_backend.device.adapters import Devices

    if isinstance(which, DeviceInfo):
        info = which
    else:
        devices = Devices()
        info = devices[0] if which is None else devices.find(which)
    return ("cpu" if info.kind == "cpu" else "wgpu"), info


def open_executor(
    device: str | DeviceInfo | None = None,
    *,
    profile: Profile = "full",
    fusion: bool | Collection[str] = True,
    exact: bool = True,
) -> Executor:
    """Open an executor on a device by name; see `context`."""
    kind, info = choose_device(device)
    return make_executor(kind, BackendParams(info, profile, fusion=fusion, exact=exact))


OpenDevice = Callable[[BackendParams], Executor]
"""A function that opens a device which is not among this machine's."""


def open_placed(
    placement: Placement,
    params: BackendParams,
    *,
    tied: bool = False,
    openers: Mapping[str, OpenDevice] | None = None,
    known: Mapping[str, DeviceInfo] | None = None,
) -> Executor:
    """Open the devices of a placement: a plain executor for a single local device.

    Weights and states that the placement wants in the host's memory are made there.

    Parameters
    ----------
    params : BackendParams
        Options of each device.
    tied : bool
        See `PlacedExecutor`.
    openers : mapping of str to callable
        Functions that open the devices of these ids, as on other machines.
    known : mapping of str to DeviceInfo
        Devices that were found already, by id.

    Raises
    ------
    DeviceError
        There is no such device, or it cannot read the host's memory and has to, as one that a
        function opens.
    """
    from wgpu_backend.device.adapters import split_copy

    openers, known = openers or {}, known or {}
    children: list[Executor] = []
    tested: dict[str, Executor] = {}
    try:
        for name in placement.devices:
            if name in openers:
                _require_own_memory(placement, len(children))
                children.append(openers[name](params))
                continue
            kind, info = choose_device(known.get(name, name))
            # Another device on an adapter takes the verdict of the first.
            adapter = split_copy(info.id)[0]
            own = replace(params, device=info, self_test=params.self_test and adapter not in tested)
            children.append(_open_child(kind, own, placement, len(children), tied=tied))
            _take_trust(children[-1], tested.setdefault(adapter, children[-1]))
    except BaseException:
        for child in children:
            child.close()
        raise
    # A device of another machine has the placement's name, and may be opened again after a loss.
    is_here = openers.keys().isdisjoint(placement.devices)
    if len(children) == 1 and is_here:
        return children[0]
    return PlacedExecutor(children, placement, tied=tied)


def _take_trust(executor: Executor, first: Executor) -> None:
    """Let a device test rules where the first one of its adapter does."""
    from wgpu_backend.ml.wgpu.executor import WgpuExecutor

    if isinstance(executor, WgpuExecutor) and isinstance(first, WgpuExecutor):
        executor.trust = first.trust


def _require_own_memory(placement: Placement, at: int) -> None:
    """Refuse layers in the host's memory for a device of another machine."""
    far = placement.host_memory(at)
    if not far.layers and not far.caches:
        return
    what = f"layers {sorted(far.layers)}" if far.layers else "caches"
    raise DeviceError(
        f"placement: {what} of {placement.devices[at]!r} in host memory, which a device that a "
        "function opens cannot read; leave them in its own memory"
    )


def _open_child(
    kind: str, params: BackendParams, placement: Placement, at: int, *, tied: bool
) -> Executor:
    """Open the device at a position of a placement."""
    from wgpu_backend.device.adapters import requested_implementation
    from wgpu_backend.ml.wgpu.executor import WgpuExecutor

    if kind == "cpu" or not placement.uses_host_memory:
        return make_executor(kind, params)
    assert isinstance(params.device, DeviceInfo)
    if requested_implementation(params.device, params.implementation) == "auto":
        # Dawn lets no kernel bind the host's memory.
        params = replace(params, implementation="wgpu")
    executor = make_executor(kind, params)
    if isinstance(executor, WgpuExecutor):
        executor.use_host_memory(placement, at, tied=tied)
    return executor


class DeviceContext(Context):
    """A context that owns its device and closes it, too."""

    def close(self) -> None:
        """Release the tensors' memory and the device; calling it again is harmless."""
        super().close()
        self.executor.close()


def context(
    device: str | DeviceInfo | None = None,
    *,
    profile: Profile = "full",
    fusion: bool | Collection[str] = True,
    exact: bool = True,
) -> Context:
    """Open a device without a model, and make a context on it.

    ::

        with wgpu_backend.context() as ctx:
            print((ctx.from_numpy([1.0, 2.0]) + 1).numpy())

    Parameters
    ----------
    device : str, DeviceInfo or None
        What ``Devices().find`` understands: an id, a kind, or a part of a name, as the command
        takes it; ``"cpu"`` is NumPy. None for the best there is.
    profile : str
        ``full``, or ``baseline`` for WebGPU's default limits and no optional feature.
    fusion : bool or collection of str
        Which fusion rules are used: all, none, or those of these names.
    exact : bool
        Keep activations in f32 where products with block formats would be faster with eight bits.

    Returns
    -------
    Context
        Close it, or use it as a context manager: that closes the device, too.

    Raises
    ------
    DeviceError
        There is no such device.
    """
    return DeviceContext(open_executor(device, profile=profile, fusion=fusion, exact=exact))
