"""The script that installs a driver for `make test`, on machines with their own apt sources."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / ".ci" / "gpu_driver.py"
spec = importlib.util.spec_from_file_location("gpu_driver", SCRIPT)
assert spec is not None
assert spec.loader is not None
gpu_driver = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu_driver)

DEB822 = """\
Types: deb-src
URIs: http://mirror.example/debian
Suites: bookworm
Components: main

# A comment.
Types: deb deb-src
URIs: http://mirror.example/debian
 http://other.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian.gpg

Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security
Components: main
"""

ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb http://mirror.example/security bookworm-security main
deb [signed-by=/usr/share/keyrings/debian.gpg arch=amd64,i386] http://mirror.example/debian bookworm main contrib
"""  # noqa: E501


def fields(source: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in source.replace("\n ", " ").splitlines())


def test_backports_come_from_where_the_release_comes_from() -> None:
    expected = {
        "Types": "deb",
        "URIs": "http://mirror.example/debian http://other.example/debian",
        "Suites": "bookworm-backports",
        "Components": "main contrib",
        "Signed-By": "/usr/share/keyrings/debian.gpg",
    }
    assert fields(gpu_driver.backports_source(DEB822, "bookworm")) == expected


def test_a_one_line_source_keeps_its_options() -> None:
    found = fields(gpu_driver.backports_source(ONE_LINE, "bookworm"))
    assert found["URIs"] == "http://mirror.example/debian"
    assert found["Suites"] == "bookworm-backports"
    assert found["Components"] == "main contrib"
    assert found["Signed-By"] == "/usr/share/keyrings/debian.gpg"
    assert found["Architectures"] == "amd64 i386"


@pytest.mark.parametrize("text", ["", "# nothing\n", DEB822.replace("bookworm", "trixie")])
def test_a_file_without_the_release_gives_no_source(text: str) -> None:
    assert gpu_driver.backports_source(text, "bookworm") is None


@pytest.mark.parametrize(
    ("api", "name", "driver", "current"),
    [
        ("Vulkan", "llvmpipe (LLVM 15.0.6, 256 bits)", "Mesa 25.0.7-2", True),
        ("Vulkan", "llvmpipe (LLVM 15.0.6, 256 bits)", "Mesa 22.3.6", False),
        ("Vulkan", "AMD Radeon", "Mesa 22.3.6", True),
        ("Metal", "Apple M3", "", True),
        ("OpenGL", "llvmpipe (LLVM 15.0.6, 256 bits)", "4.5 (Core Profile) Mesa 25.0.7", False),
    ],
)
def test_a_driver_is_replaced_only_if_it_is_an_old_software_rasteriser(
    api: str, name: str, driver: str, current: bool
) -> None:
    assert gpu_driver.Adapter(api, name, driver).is_current is current
