"""Pipelines compile while weights are on their way to the device.

Drivers take tens of milliseconds for each of a model's two dozen kernels. Which ones it needs is
known before its weights are there: the graphs of a step and of prompts are recorded, and what they
need is compiled on threads meanwhile. The pipelines are found when the graphs are recorded; a
kernel that does not compile fails there, where its error belongs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from wgpu_backend.device.interrupts import wait_until
from wgpu_backend.device.wgsl.module import Shader
from wgpu_backend.dtypes import DType
from wgpu_backend.engine.runner import CHUNK, HIDDEN, SHORTEST, Head, Runner
from wgpu_backend.engine.step_sampler import StepSampler
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.wgpu.dry_run import DryRunExecutor
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.nn.batch import BatchShape
from wgpu_backend.nn.model import Model
from wgpu_backend.ops.sampling.host import SamplingOptions

_LOG = logging.getLogger("wgpu_backend.engine")
THREADS = 2  # more would take the processor from the weights, which are rearranged on it
TOKENS = (1, 16, 64, CHUNK)  # a step, and prompts by whose lengths kernels differ


@contextmanager
def warm_up(backend: Backend, kind: type[Model], kv_dtype: DType) -> Generator[None]:
    """Compile what a model needs while the block runs; pipelines are there when it ends.

    Parameters
    ----------
    backend : Backend
        Whose weights the block loads.
    kind : type of Model
    kv_dtype : DType
        Of the cache.
    """
    executor = backend.executor
    if not isinstance(executor, WgpuExecutor):
        yield
        return
    with ThreadPoolExecutor(THREADS, "wgpu_backend compiler") as pool:
        kernels: list[Future[None]] = []

        def compiled(shader: Shader) -> None:
            # Threads have small stacks on some systems; only our own shaders are surely shallow.
            if shader.trusted:
                kernels.append(pool.submit(_try, executor.device.pipeline, shader))

        dry_run = DryRunExecutor(executor, compiled)
        recorded = pool.submit(_try, _warm, backend, kind, kv_dtype, dry_run)
        try:
            yield
            for under_way in ([recorded], kernels):  # all kernels, once there are no more of them
                wait_until(lambda pause, some=under_way: not wait(some, pause).not_done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _try(act: Callable[..., object], *args: object) -> None:
    """Do something that may as well fail: whoever needs it does it again, and is told."""
    try:
        act(*args)
    except Exception as error:
        _LOG.debug("warm-up: %s", error)


def _warm(backend: Backend, kind: type[Model], kv_dtype: DType, dry_run: DryRunExecutor) -> None:
    draft = Backend(backend.file, dry_run)
    draft.load(fused_weights=kind.fused_weights)
    model = kind(draft)
    runner = Runner(model, model.make_cache(dry_run, 1, CHUNK, kv_dtype))
    sampler = StepSampler(SamplingOptions(), draft.require("token_embd.weight").shape[0])
    steps = Head("dry run", sampler.head(model, runner.token_slots))
    for tokens in TOKENS:
        outputs, head = (1, steps) if model.has_logits else (tokens, HIDDEN)
        runner.recorded(BatchShape(tokens, outputs, 1, SHORTEST), head)
    runner.close()
    dry_run.close()
