"""The public test suite of the array API standard, run on a copy of ``../shared/suites``.

It runs on NumPy's twins and on an adapter. The suite takes complex numbers and 64 bits for granted
in a few places, which the copy leaves open; what is left out besides, and what fails, is listed
with the reasons in the folder `array_api`. By hand, with more examples::

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
# Arrays of these are stored and moved; nothing, or only arithmetic of integers, is computed.
WITHOUT = "int64,uint64,float64,complex64,complex128"
CHANGES = {
    "dtype_helpers.py": [
        (
            "for dt in complex_dtypes], key=lambda x: x[1]\n",
            "for dt in complex_dtypes], key=lambda x: x[1], default=(None, 0)\n",
        ),
    ],
    "test_signatures.py": [
        ("cmplx_name = dh.dtype_to_name[dh.widest_complex_dtype]", 'cmplx_name = "complex64"'),
        ('[float_name, "bool", "int64", cmplx_name]', '[float_name, "bool", "int32", cmplx_name]'),
    ],
    "test_special_cases.py": [
        (
            "            dtype = dh.widest_complex_dtype\n",
            "            dtype = dh.widest_complex_dtype or pytest.skip('no complex numbers')\n",
        ),
    ],
}
LEAST = 1050  # tests that pass
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
    for name, changes in CHANGES.items():
        path = copy / "array_api_tests" / name
        text = path.read_text(encoding="utf-8")
        for old, new in changes:
            assert text.count(old) == 1, f"{name} is another version: {old!r}"
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
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
            *("--max-examples", examples, "--disable-extension", "linalg", "fft"),
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
