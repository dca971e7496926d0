"""Tensors for people: as text, as HTML in notebooks, and compared with references."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import BackendError, ShapeError
from wgpu_backend.ml.executor import Array

# Cosine similarity that separates rounding from a mistake.
CLOSE = 0.99


class Shown(Protocol):
    """A tensor that can be shown."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        ...

    def numpy(self) -> Array:
        """Return the values on the host."""
        ...


def dump(values: Array, *, precision: int = 4, threshold: int = 1000, edge_items: int = 3) -> str:
    """Return values as nested brackets.

    Parameters
    ----------
    precision : int
        Digits after the point.
    threshold : int
        Tensors of more elements are shortened.
    edge_items : int
        Values shown at each end of a shortened axis.
    """
    return np.array2string(
        values,
        precision=precision,
        threshold=threshold,
        edgeitems=edge_items,
        separator=", ",
        suppress_small=True,
        floatmode="fixed",
    )


def as_html(heading: str, values: Array | None) -> str:
    """Return heading and values as HTML for a notebook; None stands for values not yet computed."""
    body = "not computed" if values is None else html.escape(dump(values, threshold=64))
    return f"<b>{html.escape(heading)}</b><pre>{body}</pre>"


@dataclass(frozen=True, slots=True)
class Likeness:
    """One tensor compared with its reference.

    Parameters
    ----------
    cosine : float
        Similarity of the values as vectors; NaN where shapes differ.
    largest : float
        Largest absolute difference; NaN where shapes differ.
    """

    name: str
    shape: tuple[int, ...]
    wanted: tuple[int, ...]
    cosine: float
    largest: float

    @property
    def close(self) -> bool:
        """True if shapes are equal and values close."""
        return self.shape == self.wanted and self.cosine >= CLOSE

    def __str__(self) -> str:
        verdict = "ok " if self.close else "BAD"
        return (
            f"{verdict} {self.name:40} {self.shape!s:20} reference {self.wanted!s:20} "
            f"cosine {self.cosine:.6f}  largest difference {self.largest:.3g}"
        )


def compare(
    path: str | Path, tensors: Mapping[str, Shown], *, abort_on_error: bool = True
) -> list[Likeness]:
    """Compare tensors with the references of a safetensors file.

    Parameters
    ----------
    tensors : mapping of str to tensors
        By the names that the file has.
    abort_on_error : bool
        Raise at the first that is not alike, instead of going on.

    Returns
    -------
    list of Likeness
        Each prints as one line.

    Raises
    ------
    ShapeError
        A tensor has another shape than its reference.
    BackendError
        A tensor is not alike, the file lacks it, or the `safetensors` package is missing.
    """
    references = _references(path)
    report: list[Likeness] = []
    for name, tensor in tensors.items():
        if name not in references:
            raise BackendError(f"compare: {path} has no {name!r} among {len(references)} tensors")
        found = _likeness(name, tensor, references[name])
        report.append(found)
        if abort_on_error and not found.close:
            kind = BackendError if found.shape == found.wanted else ShapeError
            raise kind(f"compare: {found}")
    return report


def _references(path: str | Path) -> dict[str, NDArray[np.generic]]:
    try:
        from safetensors.numpy import load_file  # pyright: ignore[reportUnknownVariableType]
    except ImportError:
        raise BackendError(
            "compare: reading references needs the safetensors package; pip install safetensors"
        ) from None
    return cast("dict[str, NDArray[np.generic]]", load_file(path))


def _likeness(name: str, tensor: Shown, reference: NDArray[np.generic]) -> Likeness:
    if tensor.shape != reference.shape:
        return Likeness(name, tensor.shape, reference.shape, float("nan"), float("nan"))
    # In f64, so that the sums add no error of their own.
    a = tensor.numpy().astype(np.float64).reshape(-1)
    b = reference.astype(np.float64).reshape(-1)
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    # Zeros have no direction: only zeros are like them.
    cosine = float(a @ b) / scale if scale else float(np.array_equal(a, b))
    largest = float(np.max(np.abs(a - b), initial=0.0))
    return Likeness(name, tensor.shape, reference.shape, cosine, largest)
