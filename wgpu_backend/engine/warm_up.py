"""Compilation of a model's pipelines while its weights are loaded.

Drivers take tens of milliseconds for each of a model's two dozen kernels. The kernels are known
before the weights are loaded: a dry run records the graphs of a step and of prompts, and threads
compile their pipelines meanwhile. The real recording then finds them ready. A kernel that does not
compile raises there.
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
# More threads would take CPU time from the loading of weights, which rearranges them.
THREADS = 2
# A decode step, and prompt lengths that select different kernels.
TOKENS = (1, 16, 64, CHUNK)


@contextmanager
def warm_up(backend: Backend, kind: type[Model], kv_dtype: DType) -> Generator[None]:
    """Compile a model's pipelines while the block runs; they are ready when it ends.

    Parameters
    ----------
    backend : Backend
        The backend whose weights the block loads.
    kv_dtype : DType
        Type of the cache.
    """
    executor = backend.executor
    if not isinstance(executor, WgpuExecutor):
        yield
        return
    with ThreadPoolExecutor(THREADS, "wgpu_backend compiler") as pool:
        kernels: list[Future[None]] = []

        def compiled(shader: Shader) -> None:
            # Threads have small stacks on some systems, which deeply nested shaders could overflow;
            # the package's own shaders are shallow.
            if shader.trusted:
                kernels.append(pool.submit(_try, executor.device.pipeline, shader))

        dry_run = DryRunExecutor(executor, compiled)
        recorded = pool.submit(_try, _warm, backend, kind, kv_dtype, dry_run)
        try:
            yield
            # The dry run first: while it runs it adds kernels to the list.
            for under_way in ([recorded], kernels):
                wait_until(lambda pause, some=under_way: not wait(some, pause).not_done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _try(act: Callable[..., object], *args: object) -> None:
    """Run a best-effort warm-up step; the real call will repeat it and report its errors."""
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
