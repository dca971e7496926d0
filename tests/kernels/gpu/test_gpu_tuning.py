"""Which tiles of this family's products are tuned, and what that changes."""

import pytest

from tests.kernels.products import shader_of_a_product
from wgpu_backend.dtypes import Q4_0
from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.kernels.gpu.matvec import COLUMNS
from wgpu_backend.ml.calibration.tuning import Effort, Measured, Tuning, tune
from wgpu_backend.ml.calibration.tuning_cache import add_tuning, remember
from wgpu_backend.ops.linear.tiles import candidates, key

NAME, MEASURED = key("matvec", Q4_0, 1), Tile(2, 1, 32)
TINY = Effort(rows=40, values=256, columns=(1, COLUMNS + 1), rounds=1)


@pytest.mark.slow
@pytest.mark.usefixtures("two_tiles")
def test_products_of_few_columns_and_of_many_are_measured(executors):
    measured = tune(executors("wide"), [Q4_0], TINY).tiles
    for name in (NAME, key("matmul_tiled", Q4_0, COLUMNS + 1)):
        assert sum(m.key == name for m in measured) >= 2


def test_what_is_remembered_changes_the_kernel(executors, tmp_path):
    wide = executors("wide")
    measured = Tuning([Measured(NAME, MEASURED, 1.0, 1.0, default=False, chosen=True)])
    cache = remember(wide, "full", measured, tmp_path / "t" / "tuned.json")
    found = add_tuning(wide.capabilities, wide, "full", cache)
    assert found.tuned == {NAME: MEASURED}
    assert shader_of_a_product(wide) != shader_of_a_product(wide.as_if(found))


def test_groups_that_a_device_cannot_run_are_no_candidates():
    small = Capabilities(max_workgroup_nbytes=16384, max_workgroup_invocations=64)
    found = candidates("matvec q4_0 few", small)
    assert found[0] == Tile(4, 8, 64)
    assert {tile.threads for tile in found} == {32, 64}
