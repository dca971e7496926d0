"""Runs of tokens and slots of states, as recurrent ops see a batch.

``runs`` is (sequences, 4), i32. A run is the tokens of one sequence: its first row of the batch,
its number of rows, the slot of its initial state, -1 for zeros, and the slot for the state after
its last token, -1 for none. Runs are consecutive; unused ones begin at the end of the last one and
have no rows. Rows after the last run are padding; their results are zeros.

Within a batch no run may begin from a slot that another run's state goes to, and no slot may take
two. Slots outside the state are ignored.
"""

from __future__ import annotations

from wgpu_backend.dtypes import F32, I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Node
from wgpu_backend.graph.spec import Shape
from wgpu_backend.ops.check import require, require_dtype
from wgpu_backend.ops.index.writing import require_writable

# Numbers that describe a run.
RUN = 4


def require_runs(name: str, runs: Node) -> int:
    """Check runs, and count the sequences in them."""
    require_dtype(name, "runs", runs, (I32,))
    shape = runs.spec.shape
    require(
        len(shape) == 2 and shape[0] > 0 and shape[1] == RUN,
        ShapeError,
        f"{name}: runs is {shape}, needs (sequences, {RUN})",
    )
    return shape[0]


def require_state(name: str, state: Node, inner: Shape) -> int:
    """Check that a state is (slots, *inner), dense f32 that ops may write, and count its slots."""
    require_dtype(name, "state", state, (F32,))
    require_writable(name, state)
    wanted = ", ".join(map(str, inner))
    require(
        state.spec.shape[1:] == inner and state.spec.size > 0 and state.spec.is_dense,
        ShapeError,
        f"{name}: state is {state.spec.shape}, needs (slots, {wanted}), dense",
    )
    return state.spec.shape[0]
