"""Tiny random pipelines with diffusers' own tensors of every stage, where somebody made them.

python -m tests.images.tiny PYTHON       PYTHON has what the tool's header asks for
"""

import pytest

from tests.images.tiny import FOLDER, Pipeline


@pytest.fixture(scope="session")
def tiny():
    """Pipelines by their names: ``tiny("sd15")``; the test is skipped where it was not made."""

    def opened(name):
        if not (FOLDER / name / "reference/reference.npz").exists():
            pytest.skip(f"no {FOLDER / name}: make it with python -m tests.images.tiny PYTHON")
        return Pipeline(FOLDER / name)

    return opened
