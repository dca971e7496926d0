"""The public test suite of the array API standard, run on a copy of ``../shared/suites``.

It runs on the NumPy references and on an adapter, with the extensions `linalg` and `fft`. What is
left out, and what fails, is listed with the reasons in the folder `array_api`. By hand, with more
examples::

    ARRAY_API_EXAMPLES=100 pytest tests/array/test_array_api.py
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = ROOT.parent / "shared" / "suites" / "array-api-tests"
LISTS = Path(__file__).parent / "array_api"
WITHOUT = "float64,complex128"  # stored and moved; nothing is computed in them
LEAST = 1350  # tests that pass
RUNNER = """
import sys, pytest, wgpu_backend.array as wx
if sys.argv[1] == "cpu":
    wx.set_default_device("cpu")
assert (wx.default_device().kind == "cpu") == (sys.argv[1] == "cpu"), wx.default_device()
sys.exit(pytest.main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not SUITE.is_dir():
        pytest.skip(f"the array API suite is not beside this checkout: {SUITE}")
    for module in ("hypothesis", "ndindex", "pytest_jsonreport"):
        pytest.importorskip(module)
    copy = tmp_path_factory.mktemp("suite") / "array-api-tests"
    shutil.copytree(SUITE, copy)
    return copy


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("device", ["cpu", "adapter"])
def test_the_array_api_suite_passes(suite: Path, device: str) -> None:
    examples = os.environ.get("ARRAY_API_EXAMPLES", "2")
    done = subprocess.run(
        [
            *(sys.executable, "-c", RUNNER, device, "array_api_tests", "-q", "--tb=short"),
            *("-p", "no:cacheprovider", "-p", "no:xdist", "--disable-deadline"),
            *("--max-examples", examples),
            *("--skips-file", str(LISTS / "skips.txt"), "--xfails-file", str(LISTS / "xfails.txt")),
            *("-W", "ignore"),
        ],
        cwd=suite,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "ARRAY_API_TESTS_MODULE": "wgpu_backend.array",
            "ARRAY_API_TESTS_SKIP_DTYPES": WITHOUT,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    last = done.stdout.strip().splitlines()[-1]
    passed = re.search(r"(\d+) passed", last)
    assert passed is not None, last
    assert int(passed[1]) >= LEAST, last
