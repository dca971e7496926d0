"""Whether an adapter computes what it should, asked before it is first trusted.

Drivers miscompile. A matrix product, quantised products, softmax and attention are compared with
their NumPy twins; a pass is remembered by adapter, driver, profile and shaders, so that it costs
about a second once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import cast

import numpy as np
from gguf import GGMLQuantizationType, quants

from wgpu_backend import dtypes
from wgpu_backend.dtypes import F16, DType
from wgpu_backend.errors import DeviceError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ops.attention import Scores

LARGEST_ERROR = 1e-6  # NMSE; sums in f32 come out near 1e-13, a wrong kernel near 1
_Make = Callable[[Context, np.random.Generator], Tensor]


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison: the squared error over the squared reference."""

    name: str
    error: float

    @property
    def passed(self) -> bool:
        """Whether the error is what rounding explains; NaN is not."""
        return self.error <= LARGEST_ERROR


def self_test(executor: Executor) -> list[Finding]:
    """Compare the device with NumPy, kernel by kernel."""
    return [Finding(name, _error(executor, make)) for name, make in _cases()]


def require_trust(executor: Executor, profile: str, cache: Path | None = None) -> None:
    """Run the self-test unless this adapter, driver and set of shaders passed it before.

    Parameters
    ----------
    executor : Executor
    profile : str
    cache : Path or None
        File that remembers who passed; None for one in the user's cache folder.

    Raises
    ------
    DeviceError
        A kernel computes wrong values.
    """
    path = cache or cache_folder() / "trusted.json"
    key = _key(executor, profile)
    passed = _read(path)
    if key in passed:
        return
    failed = [f for f in self_test(executor) if not f.passed]
    if failed:
        what = ", ".join(f"{f.name} (NMSE {f.error:.1e})" for f in failed)
        raise DeviceError(
            f"device {executor.info.id}: {executor.info.name} with {executor.info.driver} computes "
            f"wrong values in {what}, at most {LARGEST_ERROR:.0e} is rounding; update the driver "
            "or choose another device"
        )
    _write(path, [*passed, key])


def cache_folder() -> Path:
    """Folder for what can be made again, by the custom of the platform."""
    home = Path.home()
    if sys.platform == "win32":
        return home / "AppData" / "Local" / "wgpu-backend"
    caches = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    return caches / "wgpu-backend"


def _key(executor: Executor, profile: str) -> str:
    info = executor.info
    digest = sha256()
    for name, text in sorted(_shaders(files("wgpu_backend.shaders"), "")):
        digest.update(name.encode() + b"\0" + text)
    return f"{info.api}|{info.name}|{info.driver}|{profile}|{digest.hexdigest()[:16]}"


def _shaders(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _shaders(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".wgsl"):
            yield prefix + entry.name, entry.read_bytes()


def _read(path: Path) -> list[str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    keys = cast("list[object]", found) if isinstance(found, list) else []
    return [str(key) for key in keys]


def _write(path: Path, keys: list[str]) -> None:
    """Remember, if the folder can be written; a reader never sees half a file."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(keys[-64:]), encoding="utf-8")
        part.replace(path)


def _error(executor: Executor, make: _Make) -> float:
    """NMSE of a case, NaN where the device gives one."""
    wanted = _values(NumpyExecutor(), make).astype(np.float64)
    found = _values(executor, make).astype(np.float64)
    return float(np.sum((found - wanted) ** 2) / np.sum(wanted**2))


def _values(executor: Executor, make: _Make) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    with Context(executor) as context:
        return make(context, np.random.default_rng(1)).numpy()


def _cases() -> Iterator[tuple[str, _Make]]:
    yield "matrix product", lambda c, r: _normal(c, r, 65, 96).mulmat(_normal(c, r, 37, 96))
    yield "strided product", lambda c, r: _normal(c, r, 7, 33).mulmat(_normal(c, r, 5, 33))
    for dtype in (dtypes.Q8_0, dtypes.Q4_0, dtypes.Q5_1):
        yield (
            f"{dtype} product",
            lambda c, r, d=dtype: _quantised(c, r, d).mulmat(_normal(c, r, 1, 256)),
        )
    yield "softmax", lambda c, r: _normal(c, r, 3, 257).softmax()
    yield "rms_norm", lambda c, r: _normal(c, r, 3, 257).rms_norm(eps=1e-5)
    yield "attention", _attention


def _normal(context: Context, rng: np.random.Generator, *shape: int) -> Tensor:
    return context.from_numpy(rng.standard_normal(shape, np.float32))


def _quantised(context: Context, rng: np.random.Generator, dtype: DType) -> Tensor:
    assert dtype.ggml is not None
    kind = GGMLQuantizationType(dtype.ggml)
    data = quants.quantize(rng.standard_normal((40, 256), np.float32), kind)
    return context.from_bytes(dtype, data.tobytes(), 40, 256)


def _attention(context: Context, rng: np.random.Generator) -> Tensor:
    keys = _normal(context, rng, 96, 64).cast(dtype=F16)
    return _normal(context, rng, 5, 4, 32).paged_attention(
        keys,
        _normal(context, rng, 96, 64).cast(dtype=F16),
        context.from_ints([0, 13, 40, 63, 63]),
        context.from_ints([0, 1, 0, 1, 0]),
        context.from_ints([2, 0, 1, 2], 2, 2),
        scores=Scores(block=32, scale=0.2, kv_heads=2),
    )
