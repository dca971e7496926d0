"""Loading of a language model: the file, the device, the weights and adapters.

Drivers take tens of milliseconds for each of a model's two dozen kernels. The kernels are known
before the weights are loaded: a dry run records the graphs of a step and of prompts, and threads
compile their pipelines meanwhile. The real recording then finds them ready. A kernel that does not
compile raises there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np

from wgpu_backend.device.device import Device
from wgpu_backend.device.interrupts import deliver, held, wait_until
from wgpu_backend.device.wgsl.module import Shader
from wgpu_backend.dtypes import F16, DType, named
from wgpu_backend.engine.adapters import Given, Scaled, require_fitting, scaled_files
from wgpu_backend.engine.arguments import texts, within
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.placing import DeviceChoice, place_model
from wgpu_backend.engine.runner import CHUNK, HIDDEN, LONG_CHUNK, SHORTEST, Head, Runner
from wgpu_backend.engine.sessions import MOST_SESSIONS as MOST_PARALLEL
from wgpu_backend.engine.step_sampler import StepSampler
from wgpu_backend.engine.towers import Graphs
from wgpu_backend.errors import BackendError, DTypeError, ModelError, OptionError, describe
from wgpu_backend.files.gguf.reader import GGUFFile
from wgpu_backend.files.tower_files import open_tower
from wgpu_backend.graph.capabilities import DeviceInfo, Profile
from wgpu_backend.ml.backend import (
    Backend,
    BackendParams,
    LoadCancelled,
    Progress,
    backend_on,
)
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.opening import OpenDevice
from wgpu_backend.ml.placed_executor import PlacedExecutor
from wgpu_backend.ml.placement import Placement, PlacementOptions
from wgpu_backend.ml.wgpu.dry_run import make_dry_run
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.nn.batch import BatchShape
from wgpu_backend.nn.model import Model, model_class
from wgpu_backend.nn.tower import known_kinds, tower_class
from wgpu_backend.ops.sampling.host import SamplingOptions
from wgpu_backend.ops.sampling.host.options import whole_number

STORY, EYES = "story", "eyes"
# Models that come with the package, by name: one tells stories, one names what a picture shows.
BUNDLED = (STORY, EYES)
# Share of the progress for the device's self-test, if it runs.
TEST_SHARE = 0.9


def bundled(name: str = STORY) -> Path:
    """Return the path of a model that comes with the package; see `BUNDLED` for the names."""
    return Path(__file__).parent.parent / "bundled" / f"{name}.gguf"


def load(
    path: str | Path | None = None,
    *,
    device: str | int | DeviceInfo | None = None,
    devices: Sequence[str | int | DeviceInfo] | None = None,
    gpu_layers: int | str | None = None,
    tensor_split: Sequence[float] | None = None,
    main_gpu: int | None = None,
    op_offload: bool | None = None,
    kv_offload: bool | None = None,
    placement: PlacementOptions | Placement | None = None,
    profile: Profile = "full",
    num_ctx: int | str | None = None,
    num_parallel: int | str = 1,
    kv_dtype: str | DType = F16,
    exact: bool = False,
    coarse: bool = False,
    fusion: bool | str | Collection[str] = True,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    self_test: bool = True,
    implementation: str | None = None,
    adapters: Given | Sequence[Given] = (),
    control_vectors: Given | Sequence[Given] = (),
    control_layers: tuple[int, int] | None = None,
    mmproj: str | Path | None = None,
    warmup: bool = False,
    openers: Mapping[str, OpenDevice] | None = None,
) -> LanguageModel:
    """Load a model.

    The first use of a device tests its kernels, which takes seconds, or a minute on a rasteriser.
    The logger ``wgpu_backend`` reports the test and the file that keeps its result.

    Parameters
    ----------
    path : str, Path or None
        GGUF file, or Hugging Face checkpoint with config.json, a tokenizer and safetensors; None or
        ``"story"`` for the bundled story model.
    device : str, int, DeviceInfo or None
        Id, kind or name for ``Devices().find``, or a position in that list; None for the best
        adapter, or the NumPy device if there is none. A model that does not fit it has its other
        layers on further GPUs and the CPU, if the platform reports the free memory of GPUs.
    devices : sequence of str, int or DeviceInfo, or None
        Several devices, best first, which the layers are placed on, and on the CPU where they do
        not fit.
    gpu_layers : int, "all", "auto" or None
        Last layers in the memory of GPUs. The output head counts as the last layer. ``auto`` (None)
        for as many as fit, ``all`` for all or an error.
    tensor_split : sequence of float or None
        Shares of those layers by device, in the order of `devices`.
    main_gpu : int or None
        Position of the device that is filled first and has the output head.
    op_offload : bool or None
        Whether a GPU computes the other layers, which it reads from the host's memory, or the CPU.
        None for a GPU that has memory of its own and can do that.
    kv_offload : bool or None
        False for the cache in the host's memory, where GPUs read it.
    placement : PlacementOptions, Placement or None
        All options of placing layers, in place of the last five; or the device of each layer.
    profile : str
        ``full``, or ``baseline`` for WebGPU's default limits and no optional feature.
    num_ctx : int or None
        Positions in the context; None for the model's own, at most 4096.
    num_parallel : int
        Full contexts that fit the cache, which an `Engine` or sessions share, 1 to 32.
    kv_dtype : str or DType
        Data type of the KV cache: ``f16``, ``f32``, ``q8_0`` or ``q4_0``. The last two need a head
        size that is a multiple of 32.
    exact : bool
        Keep activations in f32 even if rounding them would be faster.
    coarse : bool
        Round activations to eight bits if that is faster. Some answers change: a trained model of
        135 million weights chooses another token at one position in forty.
    fusion : bool or collection of str
        Fusion rules to use: all, none, or those with these names.
    progress : callable or None
        Called with the share of loading that is done, 0 to 1, including the device's test.
    cancelled : callable or None
        Called between tensors and between tests; True ends loading.
    self_test : bool
        Test a device on its first use. If False, only results of earlier tests are used; suited
        to graphs that are inspected but not run.
    implementation : str or None
        WebGPU implementation that opens the device: ``wgpu`` (wgpu-native), ``dawn``, or ``auto``.
        None for ``WGPU_BACKEND_IMPLEMENTATION`` of the environment, else ``auto``.
    adapters, control_vectors, control_layers
        See `LanguageModel.set_adapters` and `LanguageModel.set_control_vectors`.
    mmproj : str, Path or None
        File or folder of the model's tower for pictures or sound, which is loaded, and its kernels
        compiled, with the model. None to look in the model's own file or folder, then for an
        ``mmproj*.gguf`` in its folder, when the first picture comes.
    warmup : bool
        Look for towers at once, and run each on a blank picture or sound: the first one would stop
        other streams while drivers compile kernels. A tower that fails is an error only if `mmproj`
        names it; otherwise the first picture reports it.
    openers : mapping of str to callable, or None
        Functions that open devices, such as those of other machines, by their ids in `placement`.

    Returns
    -------
    LanguageModel
        Close it, or use it as a context manager.

    Raises
    ------
    GGUFError, ModelError, TokenizerError
        The file is damaged or of an unknown kind.
    DeviceError, OutOfMemory
        The device does not exist, or the model does not fit on it.
    OptionError, DTypeError
        Another argument is invalid, or both `exact` and `coarse` are set.
    """
    _require_openers(openers)
    wanted = DeviceChoice.check(
        device,
        devices,
        placement,
        elsewhere=openers or (),
        gpu_layers=gpu_layers,
        tensor_split=tensor_split,
        main_gpu=main_gpu,
        op_offload=op_offload,
        kv_offload=kv_offload,
    )
    file, rules, dtype = _file(path), _rules(fusion), _dtype(kv_dtype)
    tower = None if mmproj is None else _file(mmproj)
    loras = scaled_files("adapters", adapters)
    vectors = scaled_files("control_vectors", control_vectors)
    positions = None if num_ctx is None else whole_number("num_ctx", num_ctx)
    parallel = within("num_parallel", num_parallel, MOST_PARALLEL)
    if profile not in ("full", "baseline"):
        raise OptionError(f"profile: {describe(profile)}, needs 'full' or 'baseline'")
    if exact and coarse:
        raise OptionError("load: exact keeps activations in f32, coarse rounds them; give one")
    _require_callable(progress=progress, cancelled=cancelled)
    shares = _Shares(file, progress, cancelled)
    with held():
        placed = place_model(
            file,
            wanted,
            positions,
            parallel,
            dtype,
            profile=profile,
            implementation=implementation,
            mmproj=tower,
        )
        params = BackendParams(
            profile=profile,
            self_test=self_test,
            fusion=rules,
            exact=exact,
            coarse=coarse,
            progress=shares.report_test,
            implementation=implementation,
        )
        backend = backend_on(file, lambda: placed.open(params, openers))
        try:
            require_fitting(backend.file, loras, vectors, control_layers)
            model = _load_model(
                backend,
                positions,
                parallel,
                dtype,
                shares.report_load,
                cancelled,
                tower,
                test_progress=shares.report_rules,
                load_towers=warmup or tower is not None,
            )
            _change(model, loras, vectors, control_layers, load_towers=tower is not None)
            # NumPy has nothing to compile.
            if warmup and model.device.kind != "cpu":
                _run_towers(model, shares.report_load, cancelled)
            # A Ctrl-C that was held back raises here, where the model is still released.
            deliver()
            return model
        except BaseException:
            backend.close()
            raise


class _Shares:
    """A combined progress of the device's self-test, if it runs, and the loading of weights."""

    def __init__(
        self, file: Path, progress: Progress | None, cancelled: Callable[[], bool] | None
    ) -> None:
        self._file = file
        self._progress = progress
        self._cancelled = cancelled
        # Stays 0 if no test runs; loading then has the whole range.
        self._tested = 0.0

    def report_test(self, share: float) -> None:
        if self._cancelled is not None and self._cancelled():
            raise LoadCancelled(f"{self._file}: loading was cancelled while the device was tested")
        self._tested = TEST_SHARE
        self._report(share * TEST_SHARE)

    def report_rules(self, _share: float) -> None:
        # The weights are loaded, so the share stays.
        if self._cancelled is not None and self._cancelled():
            raise LoadCancelled(f"{self._file}: loading was cancelled while kernels were tested")

    def report_load(self, share: float) -> None:
        self._report(self._tested + share * (1 - self._tested))

    def _report(self, share: float) -> None:
        if self._progress is not None:
            self._progress(share)


def _load_model(
    backend: Backend,
    num_ctx: int | None,
    num_parallel: int,
    dtype: DType,
    progress: Progress | None,
    cancelled: Callable[[], bool] | None,
    mmproj: Path | None,
    *,
    test_progress: Callable[[float], None],
    load_towers: bool,
) -> LanguageModel:
    """Load the weights while the model's kernels are compiled, and make the model."""
    # First, so that an unknown architecture is reported before anything is loaded.
    kind = model_class(backend.config)
    if kind.takes_sound:
        raise ModelError(
            f"{backend.file.path}: {backend.config.architecture!r} takes sounds and writes their "
            "text; use `wgpu-backend transcribe`, or wgpu_backend.engine.speech.load"
        )
    with warm_up(backend, kind, dtype, mmproj, towers=load_towers, progress=test_progress):
        backend.load(progress, cancelled, fused_weights=kind.fused_weights)
    return LanguageModel(backend, num_ctx, dtype, num_parallel, mmproj)


def _change(
    model: LanguageModel,
    loras: Sequence[Scaled],
    vectors: Sequence[Scaled],
    layers: tuple[int, int] | None,
    *,
    load_towers: bool,
) -> None:
    """Apply adapters and control vectors, and load towers; close the model if that fails."""
    try:
        # A file that is named is checked at once; one that is found, when it is needed.
        for modality in model.towers.modalities if load_towers else ():
            model.towers.get(modality)
        model.set_adapters(loras)
        model.set_control_vectors(vectors, layers)
    except BaseException:
        model.close()
        raise


def _run_towers(
    model: LanguageModel, progress: Progress, cancelled: Callable[[], bool] | None
) -> None:
    """Run all towers on a blank picture or sound; the first real one will report errors."""

    def go_on() -> None:
        # A Ctrl-C that was held back raises here.
        deliver()
        if cancelled is not None and cancelled():
            path = model.backend.file.path
            raise LoadCancelled(f"{path}: loading was cancelled while its towers were warmed up")
        # A sign of life: on a rasteriser a large tower takes minutes.
        progress(1.0)

    try:
        model.towers.warm_up(go_on)
    except LoadCancelled:
        model.close()
        raise
    except (BackendError, OSError) as error:
        _LOG.debug("warm-up: %s", error)
    except BaseException:
        model.close()
        raise


def _file(path: object) -> Path:
    if path is None:
        return bundled()
    if isinstance(path, str) and path in BUNDLED:
        return bundled(path)
    if isinstance(path, str | Path):
        return Path(path)
    raise ModelError(
        f"path: {describe(path)}, needs the path of a GGUF file or a folder, or one of "
        f"{', '.join(BUNDLED)}"
    )


def _rules(fusion: object) -> bool | Collection[str]:
    if isinstance(fusion, bool):
        return fusion
    return texts("fusion", fusion)


def _dtype(kv_dtype: object) -> DType:
    if isinstance(kv_dtype, str):
        return named(kv_dtype)
    if not isinstance(kv_dtype, DType):
        raise DTypeError(f"kv_dtype: {describe(kv_dtype)}, needs a name such as 'f16'")
    return kv_dtype


def _require_openers(openers: object) -> None:
    if openers is not None and not isinstance(openers, Mapping):
        raise OptionError(f"openers: {describe(openers)}, needs functions by the ids of devices")
    for name, value in cast("Mapping[object, object]", openers or {}).items():
        if not callable(value):
            raise OptionError(f"openers: {describe(value)} for {name!r}, needs a function")


def _require_callable(**arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None and not callable(value):
            raise OptionError(f"{name}: {describe(value)}, needs a function")


_LOG = logging.getLogger("wgpu_backend.engine")
# More threads would take CPU time from the loading of weights, which rearranges them.
THREADS = 2
# A decode step, and prompt lengths that select different kernels, besides the longest.
TOKENS = (1, 16, 64, CHUNK)
# A picture's side, and a sound's samples at 16 kHz: other sizes need few other kernels.
SIDE, SAMPLES = 512, 80_000


@contextmanager
def warm_up(
    backend: Backend,
    kind: type[Model],
    kv_dtype: DType,
    mmproj: Path | None = None,
    *,
    towers: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Generator[None]:
    """Compile a model's pipelines while the block runs; they are ready when it ends.

    Rules that the model uses and that were not tested on the device yet are tested at its end.

    Parameters
    ----------
    backend : Backend
        The backend whose weights the block loads.
    kv_dtype : DType
        Type of the cache.
    mmproj : Path or None
        File or folder of towers; None to look for it.
    towers : bool
        Whether the towers' pipelines are compiled, too.
    progress : callable or None
        Called with the share of these tests that is done.
    """
    executor = backend.executor
    each = executor.children if isinstance(executor, PlacedExecutor) else (executor,)
    if not any(isinstance(one, WgpuExecutor) for one in each):
        yield
        return
    with ThreadPoolExecutor(THREADS, "wgpu_backend compiler") as pool:
        kernels: list[Future[None]] = []

        def compile_shader(device: Device, shader: Shader) -> None:
            # Threads have small stacks on some systems, which deeply nested shaders could overflow;
            # the package's own shaders are shallow.
            if shader.trusted:
                kernels.append(pool.submit(_try, device.pipeline, shader))

        dry_run = make_dry_run(executor, compile_shader)
        recorded = pool.submit(_try, _warm, backend, kind, kv_dtype, dry_run)
        dry_runs = [recorded]
        if towers:
            # A separate dry run: that of the model drops the bytes of weights at its end.
            own = make_dry_run(executor, compile_shader)
            dry_runs.append(pool.submit(_try, _warm_towers, backend.file, mmproj, own))
        try:
            yield
            # The dry runs first: while they run they add kernels to the list.
            for under_way in (dry_runs, kernels):
                wait_until(lambda pause, some=under_way: not wait(some, pause).not_done)
        except BaseException:
            # Kernels in the queue are dropped. Those being compiled cannot be stopped: the end of
            # the `with` waits for them.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for one in each:
        if isinstance(one, WgpuExecutor) and one.trust is not None:
            one.trust.test_noted(progress)


def _try(act: Callable[..., object], *args: object) -> None:
    """Run a best-effort warm-up step; the real call will repeat it and report its errors."""
    try:
        act(*args)
    except Exception as error:
        _LOG.debug("warm-up: %s", error)


def _warm(backend: Backend, kind: type[Model], kv_dtype: DType, dry_run: Executor) -> None:
    draft = Backend(backend.file, dry_run)
    draft.load(fused_weights=kind.fused_weights)
    model = kind(draft)
    runner = Runner(model, model.make_cache(dry_run, 1, LONG_CHUNK, kv_dtype))
    sampler = StepSampler(SamplingOptions(), draft.require("token_embd.weight").shape[0])
    steps = Head("dry run", sampler.head(model, runner.token_slots))
    for tokens in dict.fromkeys((*TOKENS, min(runner.chunk, LONG_CHUNK))):
        outputs, head = (1, steps) if model.has_logits else (tokens, HIDDEN)
        runner.recorded(BatchShape(tokens, outputs, 1, SHORTEST), head)
    runner.close()
    dry_run.close()


def _warm_towers(text: GGUFFile, mmproj: Path | None, dry_run: Executor) -> None:
    """Record the graphs of towers for a picture and for a sound."""
    samples = {
        "image": np.zeros((SIDE, SIDE, 3), np.uint8),
        "audio": np.zeros(SAMPLES, np.float32),
    }
    file = open_tower(text, mmproj)
    if file is None:
        return
    with file:
        draft = Backend(file, dry_run)
        draft.load()
        for modality, kind in known_kinds(file.config).items():
            tower = tower_class(file.config, modality, kind)(draft)
            graphs = Graphs(tower)
            graphs.begin(tower.prepare(samples[modality]))
            graphs.close()
        dry_run.close()
