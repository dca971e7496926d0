"""The Backend: a model's file on a device. It loads and returns weights, and makes contexts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from wgpu_backend.device.interrupts import deliver, uninterrupted
from wgpu_backend.dtypes import DType
from wgpu_backend.errors import BackendError, ContextError, GGUFError, ModelError, Unclosed
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.files.gguf.one_file import text_part
from wgpu_backend.files.gguf.reader import GGUFFile, TensorInfo
from wgpu_backend.files.huggingface.folder import open_model_file
from wgpu_backend.graph.capabilities import DeviceInfo, Profile
from wgpu_backend.graph.node import Storage
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import MAX_GRAPH_NODES, Context
from wgpu_backend.ml.executor import Array, Executor
from wgpu_backend.ml.fused_weights import FusedWeights, fused_groups, fused_spec
from wgpu_backend.ml.placed_executor import PlacedExecutor
from wgpu_backend.ml.placement import TABLE, HostMemory, Placement
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ops import plugins
from wgpu_backend.ops.op import fusions

Progress = Callable[[float], None]


class LoadCancelled(BackendError):
    """Loading was cancelled by its `cancelled` callback."""


@dataclass(frozen=True, slots=True)
class BackendParams:
    """Options for opening a backend.

    Parameters
    ----------
    device : str, DeviceInfo or None
        What ``Devices().find`` understands, an entry of it, or None for the best.
    profile : str
        ``full``, or ``baseline`` for WebGPU's default limits and no optional feature.
    native : bool
        Call the graphics library directly where that is faster.
    self_test : bool
        Compare the adapter with NumPy before it is first trusted; otherwise only what is remembered
        of that counts.
    fusion : bool or collection of str
        Which fusion rules may be used: all, none, or those that make the ops of these names.
    exact : bool
        Keep activations in f32. Otherwise products may round them where that is faster on the
        device, to f16 or to two parts of eight bits with a scale every 32.
    coarse : bool
        Unless `exact`, let them round to eight bits alone, which is faster yet and changes some
        answers, see `wgpu_backend.graph.fusion.Rule`.
    progress : callable or None
        Called with the share of the self-test that is done, 0 to 1, where it runs.
    implementation : str or None
        WebGPU implementation that opens the device: ``wgpu``, ``dawn``, ``auto``; see
        `wgpu_backend.device.adapters.find_adapter`.
    """

    device: str | DeviceInfo | None = None
    profile: Profile = "full"
    native: bool = True
    self_test: bool = True
    fusion: bool | Collection[str] = True
    exact: bool = True
    coarse: bool = False
    progress: Progress | None = None
    implementation: str | None = None


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The layout that a backend needs of caches; see `Backend.cache_config`.

    Parameters
    ----------
    padding : int
        Positions of a cache come in multiples of this.
    permuted_values : bool
        Whether values lie with positions last.
    mask : DType or None
        Type of mask tensors; None where no mask is given, as attention reads positions.
    """

    padding: int = 32
    permuted_values: bool = False
    mask: DType | None = None


MakeExecutor = Callable[[BackendParams], Executor]
_BACKENDS: dict[str, MakeExecutor] = {}


def register_backend(name: str, make: MakeExecutor) -> None:
    """Register a kind of backend under a name.

    Raises
    ------
    ValueError
        The name is taken.
    """
    if name in _BACKENDS:
        raise ValueError(f"backend {name}: already registered")
    _BACKENDS[name] = make
    plugins.note(f"backend {name}")


@uninterrupted
def make_executor(name: str, params: BackendParams) -> Executor:
    """Make an executor of a kind of backend, without a model.

    Raises
    ------
    BackendError
        There is no such kind.
    """
    # Plug-ins are imported only when asked for.
    if name not in _BACKENDS:
        plugins.load("wgpu_backend.backends", name)
    try:
        make = _BACKENDS[name]
    except KeyError:
        known = ", ".join(sorted({*_BACKENDS, *plugins.names("wgpu_backend.backends")}))
        raise BackendError(f"backend {name!r}: unknown, needs one of {known}") from None
    return make(params)


@uninterrupted
def new_backend(
    path: str | Path, params: BackendParams | None = None, *, name: str = "wgpu"
) -> Backend:
    """Open a model's file on a device; `Backend.load` then loads the weights.

    Parameters
    ----------
    path : str or Path
        GGUF file, or Hugging Face folder.
    name : str
        Kind of backend: ``wgpu``, ``cpu``, or one registered.

    Raises
    ------
    GGUFError
        The file is damaged.
    DeviceError
        There is no such device.
    """
    return backend_on(path, lambda: make_executor(name, params or BackendParams()))


@uninterrupted
def backend_on(path: str | Path, open_executor: Callable[[], Executor]) -> Backend:
    """Open a model's file on an executor that is opened after it; see `new_backend`."""
    file = text_part(open_model_file(path))
    try:
        backend = Backend(file, open_executor())
    except BaseException:
        file.close()
        raise
    backend.unclosed = Unclosed(f"backend of {file.path}", file, backend.executor)
    return backend


_LAYER = re.compile(r"(?:blk|cache)\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of one device, in bytes.

    Parameters
    ----------
    weights : tuple of int
        Of each layer; the last entry is the output layer and what belongs to none.
    cache : tuple of int
        Of each layer.
    graph : int
        Intermediates, inputs and parameters of recorded graphs.
    """

    device_id: str
    name: str
    weights: tuple[int, ...] = ()
    cache: tuple[int, ...] = ()
    graph: int = 0

    @property
    def size(self) -> int:
        """The bytes of weights, cache and graphs together."""
        return sum(self.weights) + sum(self.cache) + self.graph

    def add(self, other: DeviceMemory) -> DeviceMemory:
        """Return the sum of this device's memory and another's."""
        weights, cache = (
            tuple(a + b for a, b in zip_longest(*both, fillvalue=0))
            for both in ((self.weights, other.weights), (self.cache, other.cache))
        )
        return replace(self, weights=weights, cache=cache, graph=self.graph + other.graph)


@dataclass(frozen=True, slots=True)
class BackendMemory:
    """The memory of a backend, in bytes.

    Parameters
    ----------
    input_weights : int
        The embedding, which is counted on its device too.
    cpu : DeviceMemory
        What the NumPy device holds, or a software adapter in its place, and what GPUs read from the
        host's memory; nothing when a GPU holds the model.
    """

    input_weights: int
    cpu: DeviceMemory
    gpus: tuple[DeviceMemory, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of weights, cache and graphs together."""
        return self.cpu.size + self.gpu_size

    @property
    def gpu_size(self) -> int:
        """The bytes on devices other than the NumPy device."""
        return sum(gpu.size for gpu in self.gpus)

    def __str__(self) -> str:
        rows = ["device                    weights      cache      graph   MiB"]
        for device in (self.cpu, *self.gpus):
            parts = (sum(device.weights), sum(device.cache), device.graph)
            cells = "".join(f"{nbytes / 2**20:11.1f}" for nbytes in parts)
            rows.append(f"{device.name[:22]:22}{cells}")
        return "\n".join(rows)


def sum_by_layer(sizes: Mapping[str, int], least: int = 0) -> tuple[int, ...]:
    """Return the bytes of each layer, of `least` layers or more, and those that are in no layer."""
    layers: dict[int, int] = {}
    rest = 0
    for name, nbytes in sizes.items():
        found = _LAYER.match(name)
        if found:
            layers[int(found[1])] = layers.get(int(found[1]), 0) + nbytes
        else:
            rest += nbytes
    count = max(least, max(layers, default=-1) + 1)
    return (*(layers.get(i, 0) for i in range(count)), rest)


def backend_memory(
    info: DeviceInfo,
    weights: Mapping[str, int],
    cache: Mapping[str, int],
    graph: int,
    host: HostMemory | None = None,
) -> BackendMemory:
    """Report the memory of a backend whose model lies on one device.

    Parameters
    ----------
    weights, cache : mapping of str to int
        Bytes by name.
    graph : int
        Bytes of recorded graphs.
    host : HostMemory or None
        What the device reads from the host's memory.
    """
    device, far = _device_memory(info, weights, cache, graph, host or HostMemory())
    # Ollama reports the input weights separately.
    embedding = weights.get(TABLE, 0)
    if info.kind == "cpu":
        return BackendMemory(embedding, device)
    return BackendMemory(embedding, far, (device,))


def _device_memory(
    info: DeviceInfo,
    weights: Mapping[str, int],
    cache: Mapping[str, int],
    graph: int,
    host: HostMemory,
    layers: int = 0,
) -> tuple[DeviceMemory, DeviceMemory]:
    """Return the bytes in a device's own memory, and those that it reads from the host's."""
    layers = max(layers, *(len(sum_by_layer(sizes)) - 1 for sizes in (weights, cache)))

    def split(*, on_host: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        own = {name: n for name, n in weights.items() if host.has_weight(name) == on_host}
        states = {name: n for name, n in cache.items() if host.has_state(name) == on_host}
        return sum_by_layer(own, layers), sum_by_layer(states, layers)

    own, states = split(on_host=False)
    device = DeviceMemory(info.id, info.name, own, states, graph)
    own, states = split(on_host=True)
    far = DeviceMemory("cpu", "NumPy")
    return device, replace(far, weights=own, cache=states) if any(own + states) else far


class Weight(Tensor):
    """A tensor of the model's file; a view of it takes the context of the other operand."""

    __slots__ = ("_executor",)

    def __init__(
        self, spec: Spec, storage: Storage, executor: Executor, source: Tensor | None = None
    ) -> None:
        super().__init__(spec, storage, source=source)
        self._executor = executor

    def numpy(self) -> Array:
        """Return the values on the host, block formats as f32."""
        return self._executor.read(self)

    def beside(self, spec: Spec) -> Tensor:
        """Return a view of the weight."""
        return Weight(spec, self.storage, self._executor, self)


class Backend:
    """The weights of one model on one device.

    Use it as a context manager, or `close` it.
    """

    def __init__(self, file: GGUFFile, executor: Executor) -> None:
        self.file = file
        self.executor = executor
        self._weights: dict[str, Tensor] = {}
        self._closed = False
        # None where the caller passed file and executor, and so may close them.
        self.unclosed: Unclosed | None = None

    def __enter__(self) -> Backend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def config(self) -> Config:
        """The keys and values of the model's file."""
        return self.file.config

    @property
    def device(self) -> DeviceInfo:
        """The device that holds the weights."""
        return self.executor.info

    def backend_devices(self) -> list[DeviceInfo]:
        """Return the devices that this backend uses, in the order of a pass."""
        executor = self.executor
        return executor.devices if isinstance(executor, PlacedExecutor) else [executor.info]

    def Devices(self) -> list[DeviceInfo]:
        """Return `backend_devices`; the capital letter is that of Ollama's interface."""
        return self.backend_devices()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else f", {len(self._weights)} weights loaded"
        return f"Backend({str(self.file.path)!r} on {self.device.id}{state})"

    @uninterrupted
    def load(
        self,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
        *,
        fused_weights: FusedWeights = (),
    ) -> None:
        """Load the weights onto the device, tensor by tensor.

        Parameters
        ----------
        progress : callable or None
            Called with the share of bytes done, 0 to 1.
        cancelled : callable or None
            Asked between tensors; true ends loading.
        fused_weights : sequence of sequence of str
            Names, without block and suffix, of weights to lay side by side where they have a type
            and a width in common, so that one product can take them together.

        Raises
        ------
        LoadCancelled
            `cancelled` said so.
        GGUFError
            The file was cut or written to since it was opened.
        OutOfMemory
            The weights do not fit.
        """
        # Progress is divided by it, also for a file without tensors.
        total = sum(info.nbytes for info in self.file.tensors.values()) or 1
        done = 0
        limit = self.executor.capabilities.max_binding_nbytes
        for infos in fused_groups(self.file.tensors, fused_weights, limit):
            # Ctrl-C between tensors does no harm: the weights loaded so far are released with the
            # backend.
            deliver()
            if cancelled is not None and cancelled():
                raise LoadCancelled(f"{self.file.path}: loading was cancelled at {infos[0].name}")
            # A second `load` uploads what a cancelled one left out.
            if infos[0].name not in self._weights:
                self._upload(infos)
            done += sum(info.nbytes for info in infos)
            if progress is not None:
                progress(done / total)

    def _upload(self, infos: Sequence[TensorInfo]) -> None:
        """Upload weights into one storage; each becomes a view of it."""
        spec = fused_spec(infos)
        data = [self.file.source(info.name) for info in infos]
        try:
            storage = self.executor.weight(spec, data, "+".join(info.name for info in infos))
        # The message of a broken file already has its name.
        except GGUFError:
            raise
        except ModelError as error:
            raise ModelError(f"{self.file.path}: {error}") from None
        stack, offset = Weight(spec, storage, self.executor), 0
        for info in infos:
            part = Spec(info.shape, spec.dtype, spec.strides, offset)
            self._weights[info.name] = stack if len(infos) == 1 else stack.beside(part)
            offset += part.size

    def get(self, name: str) -> Tensor | None:
        """Return a weight by name, or None if the model does not have it."""
        return self._weights.get(name)

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The weights loaded so far, by name."""
        return self._weights

    def require(self, name: str) -> Tensor:
        """Return a weight by name.

        Raises
        ------
        ModelError
            The file has none.
        """
        found = self.get(name)
        if found is None:
            raise ModelError(f"{self.file.path}: tensor {name} is missing")
        return found

    def new_context(self) -> Context:
        """Make a context for one graph or for many."""
        return Context(self.executor)

    def new_context_size(self, nodes: int) -> Context:
        """Make a context for at most `nodes` ops.

        Raises
        ------
        ContextError
            There are none, or more than any context may make.
        """
        if not 0 < nodes <= MAX_GRAPH_NODES:
            raise ContextError(f"context: {nodes} nodes, needs 1 to {MAX_GRAPH_NODES}")
        return Context(self.executor, nodes)

    def cache_config(self) -> CacheConfig:
        """Return the cache layout that this backend's attention needs."""
        return CacheConfig()

    def placement(self, layers: int) -> Placement:
        """Return the device of each of the model's layers.

        Parameters
        ----------
        layers : int
            Number of repeating layers.
        """
        if isinstance(self.executor, PlacedExecutor):
            return self.executor.placement
        return _host_placement(self.executor) or Placement.single(self.device.id, layers)

    def backend_memory(self, towers: Backend | None = None) -> BackendMemory:
        """Return the bytes in use, by device and layer.

        Parameters
        ----------
        towers : Backend or None
            Backend of the model's towers, which is counted with it.
        """
        # Names of towers' weights begin with letters of their own, and are of no layer here.
        held = {**(towers._weights if towers else {}), **self._weights}
        weights = {name: _count_nbytes(weight) for name, weight in held.items()}
        executor = self.executor
        if isinstance(executor, PlacedExecutor):
            return self._placed_memory(executor, weights, held)
        placement, cache = _host_placement(executor), executor.cache_nbytes()
        host = None
        if placement is not None:
            tied = "output.weight" not in self._weights
            host = placement.host_memory(0, tied=tied)
        return backend_memory(executor.info, weights, cache, executor.graph_nbytes(), host)

    def _placed_memory(
        self, executor: PlacedExecutor, weights: Mapping[str, int], held: Mapping[str, Tensor]
    ) -> BackendMemory:
        """Report the memory of each device of a placement."""
        homes = {name: executor.home(held[name].storage).devices for name in weights}

        def nbytes_on(name: str, at: int) -> int:
            storage = held[name].storage
            # A copy on another device may be stored in another type.
            return weights[name] * executor.local(storage, at).nbytes // max(storage.nbytes, 1)

        layers = len(executor.placement.layers)
        cpu, gpus = DeviceMemory("cpu", "NumPy"), list[DeviceMemory]()
        for at, (info, child) in enumerate(zip(executor.devices, executor.children, strict=True)):
            own = {name: nbytes_on(name, at) for name in weights if at in homes[name]}
            host = executor.placement.host_memory(at, tied=executor.tied)
            cache = child.cache_nbytes()
            found, far = _device_memory(info, own, cache, child.graph_nbytes(), host, layers)
            cpu = cpu.add(far)
            if info.kind == "cpu" or info.id == executor.placement.host_device:
                cpu = cpu.add(found)
            else:
                gpus.append(found)
        return BackendMemory(weights.get(TABLE, 0), cpu, tuple(gpus))

    def memory_report(self) -> str:
        """Return the use of device memory, as a table."""
        return self.executor.memory_report()

    @uninterrupted
    def close(self) -> None:
        """Release the weights and the device; calling it again is harmless."""
        if self._closed:
            return
        self._closed = True
        if self.unclosed is not None:
            self.unclosed.silence()
        self._weights.clear()
        self.executor.close()
        self.file.close()


def _count_nbytes(weight: Tensor) -> int:
    """Return the device bytes of a weight, which may be a view of several adjacent ones."""
    whole = weight.spec if weight.source is None else weight.source.spec
    return weight.storage.nbytes * weight.spec.size // max(whole.size, 1)


def _host_placement(executor: Executor) -> Placement | None:
    """Return the placement of a model that one device has alone, partly in the host's memory."""
    found: object = getattr(executor, "placement", None)
    return found if isinstance(found, Placement) else None


def _wgpu(params: BackendParams) -> Executor:
    from wgpu_backend.device.adapters import find_device
    from wgpu_backend.device.device import Device
    from wgpu_backend.ml.calibration.implementations import pick_implementation
    from wgpu_backend.ml.calibration.probe import probe_capabilities
    from wgpu_backend.ml.wgpu.executor import WgpuExecutor

    profile, info = params.profile, find_device(params.device)
    race = params.self_test and params.native
    picked = pick_implementation(info, params.implementation, profile, race=race)
    device = Device.open(
        info,
        profile=profile,
        native=params.native,
        implementation=picked or params.implementation,
    )
    executor = WgpuExecutor(device)
    try:
        known, wrong, trust = probe_capabilities(
            executor, profile, self_test=params.self_test, progress=params.progress
        )
        executor = executor.as_if(known)
        executor.trust = trust
        # Without the kernels that this driver computes wrongly.
        executor.rules = fusions(
            params.fusion, exact=params.exact, coarse=params.coarse, without=wrong
        )
    except BaseException:
        executor.close()
        raise
    return executor


def _cpu(params: BackendParams) -> Executor:
    from wgpu_backend.ml.numpy_executor import NumpyExecutor

    return NumpyExecutor()


register_backend("wgpu", _wgpu)
register_backend("cpu", _cpu)
