"""Norms of a row by one subgroup."""

from tests.ml.test_wgpu_launch import kernel
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.ops.reduce.norm import softmax

SOFTWARE = Capabilities(software=True)
WITH_SUBGROUPS = Capabilities(software=True, subgroups=True)


def test_rows_are_folded_by_subgroups_where_software_has_them():
    assert "subgroupAdd" in kernel(softmax, WITH_SUBGROUPS, 2, 64).shader.text
    assert "subgroupAdd" not in kernel(softmax, SOFTWARE, 2, 64).shader.text
    assert "workgroupBarrier" not in kernel(softmax, WITH_SUBGROUPS, 2, 64).shader.text
