"""Kernels by device family: faster replacements of ops' portable kernels.

An op's launch is its portable kernel, which every device runs. `table` lists the replacements: an
op, a predicate on `Capabilities`, and a function that builds the launch. A family is a folder here,
with its shaders in ``shaders/kernels`` under the same name.
"""

from wgpu_backend.kernels.table import FAMILIES as FAMILIES
from wgpu_backend.kernels.table import complete as complete
from wgpu_backend.kernels.table import runs as runs
from wgpu_backend.kernels.table import select as select
from wgpu_backend.kernels.table import select_layout as select_layout
