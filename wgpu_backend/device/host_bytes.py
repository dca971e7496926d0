"""Host data as bytes, for writing to a device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Data = bytes | bytearray | memoryview | NDArray[Any]


def bytes_of(data: Data) -> memoryview:
    """View contiguous data as bytes; copy other data."""
    if isinstance(data, np.ndarray):
        flat: NDArray[Any] = np.ascontiguousarray(data).reshape(-1)
        return memoryview(flat.view(np.uint8).data)
    view = memoryview(data)
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
