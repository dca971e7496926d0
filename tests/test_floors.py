"""Folders are rooms on floors: imports go down only, and a few things belong to one room alone.

The imports are read from the source text, so nothing is imported and no adapter is needed. An
import under `TYPE_CHECKING` or inside a function counts like any other: it is knowledge of a floor
above all the same. Only within a folder may modules name each other's types.
"""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent

# The lowest floor first. `__init__` is the package's own face: `from wgpu_backend import load`.
FLOORS = (
    ("errors",),
    ("dtypes",),
    ("text",),
    ("files",),
    ("graph",),
    ("device",),
    ("ops",),
    ("kernels",),
    ("ml", "array"),
    ("nn", "testing"),
    ("models",),
    ("engine", "images"),
    ("llama", "__init__"),
    ("server",),
    ("cli", "__main__"),
)
FLOOR_OF = {unit: floor for floor, units in enumerate(FLOORS) for unit in units}

# What only one unit may touch.
ONLY_DEVICE = "wgpu"
ONLY_CLI = ("os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv")
# WGPU_BACKEND_IMPLEMENTATION also reaches the processes that a server and the self-test start.
READ_ENVIRONMENT = ("wgpu_backend.device.adapters",)
# These names resolve in a checkout alone; in a wheel they are wgpu_backend.models and .shaders.
CHECKOUT_ONLY = ("models", "shaders")


class Import(NamedTuple):
    line: int
    target: str


class Module(NamedTuple):
    """What the checks need of a module: trees of all would keep the garbage collector busy."""

    name: str
    imports: tuple[Import, ...]
    for_types: frozenset[int]  # lines of imports that only a type checker runs
    environment: tuple[Import, ...]  # attributes by which the environment is read, spelt out

    @property
    def unit(self) -> str:
        """The folder or file directly under wgpu_backend that this module belongs to."""
        return _unit(self.name)


def _unit(name: str) -> str:
    return [*name.split("."), "__init__"][1]


def read_modules(root: Path) -> dict[str, Module]:
    """Every module of the package by its name; top-level models/ is wgpu_backend.models."""
    folders = {"wgpu_backend": root / "wgpu_backend", "wgpu_backend.models": root / "models"}
    found = {}
    for prefix, folder in folders.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join([prefix, *parts]).removesuffix(".__init__")
            found[name] = read_module(name, path)
    return found


def read_module(name: str, path: Path) -> Module:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    kinds = ast.Import, ast.ImportFrom, ast.Call, ast.Attribute, ast.If
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    ends = {name.rpartition(".")[2] for name in ONLY_CLI}  # spelling all out would take seconds
    attributes = (n for n in nodes if isinstance(n, ast.Attribute) and n.attr in ends)
    used = tuple(Import(node.lineno, ast.unparse(node)) for node in attributes)
    return Module(name, tuple(imports(nodes, package)), for_types(nodes), used)


def imports(nodes: list[ast.AST], package: str) -> Iterator[Import]:
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from (Import(node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=base, names=names):
                start = _start(package, node.level, base)
                yield from (Import(node.lineno, f"{start}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(target)), *_],
            ):
                yield Import(node.lineno, target)


def _start(package: str, level: int, base: str | None) -> str:
    if not level:
        return base or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - level + 1], *([base] if base else [])])


def resolve(target: str, known: dict[str, Module]) -> str | None:
    """The module of ours that an import reaches: `a.b.c` is module a.b if c is a name in it."""
    while target and target not in known:
        target = target.rpartition(".")[0]
    return target or None


def problems(known: dict[str, Module]) -> list[str]:
    checks = (unplaced, upward, out_of_place, environment_reads)
    found = [text for module in known.values() for check in checks for text in check(module, known)]
    return found + cycles(known)


def unplaced(module: Module, known: dict[str, Module]) -> Iterator[str]:
    if module.unit not in FLOOR_OF:
        yield f"{module.name}: no floor for {module.unit}, FLOORS in tests/test_floors.py needs it"


def upward(module: Module, known: dict[str, Module]) -> Iterator[str]:
    here = FLOOR_OF.get(module.unit, 0)
    for line, target in module.imports:
        reached = resolve(target, known)
        there = FLOOR_OF.get(_unit(reached), 0) if reached else 0
        if there > here:
            yield f"{module.name}:{line}: floor {here} imports {reached}, floor {there}"


def out_of_place(module: Module, known: dict[str, Module]) -> Iterator[str]:
    for line, target in module.imports:
        top = target.partition(".")[0]
        if top == ONLY_DEVICE and module.unit != "device":
            yield f"{module.name}:{line}: imports wgpu, which stands in device/ alone"
        if top in CHECKOUT_ONLY:
            yield f"{module.name}:{line}: imports {top}, its name is wgpu_backend.{top}"


def environment_reads(module: Module, known: dict[str, Module]) -> Iterator[str]:
    if module.unit == "cli" or module.name in READ_ENVIRONMENT:
        return
    for line, name in (*module.imports, *module.environment):
        if name in ONLY_CLI:
            yield f"{module.name}:{line}: {name}, which belongs to cli/ alone"


def cycles(known: dict[str, Module]) -> list[str]:
    """The first cycle among modules and the first among the units of one floor."""
    modules = {name: set(reached(module, known)) for name, module in known.items()}
    units: dict[str, set[str]] = {}
    for name, targets in modules.items():
        units.setdefault(_unit(name), set()).update(map(_unit, targets))
    return [*_cycle(modules), *_cycle(units)]


def reached(module: Module, known: dict[str, Module]) -> Iterator[str]:
    """Modules of ours that one imports.

    Inside a folder a module may name a type for the type checker alone: functions of arrays give
    arrays, whose methods call these functions.
    """
    for line, target in module.imports:
        found = resolve(target, known)
        if found and not (line in module.for_types and _unit(found) == module.unit):
            yield found


def for_types(nodes: list[ast.AST]) -> frozenset[int]:
    """Lines of imports that only a type checker runs."""
    blocks = [
        node
        for node in nodes
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    ]
    return frozenset(
        inner.lineno
        for block in blocks
        for node in block.body
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    )


def _cycle(edges: dict[str, set[str]]) -> list[str]:
    sorter = graphlib.TopologicalSorter({name: to - {name} for name, to in edges.items()})
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        return ["cycle: " + " <- ".join(error.args[1])]
    return []


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def summary(known: dict[str, Module]) -> str:
    """Count rooms, floors, and pairs of rooms of which one imports the other."""
    pairs = {
        (module.unit, _unit(target))
        for module in known.values()
        for target in reached(module, known)
    }
    arrows = sum(one != other for one, other in pairs)
    return f"{len(FLOOR_OF)} rooms, {len(FLOORS)} floors, {arrows} arrows"


def test_imports_of_this_project_go_down_only() -> None:
    known = read_modules(ROOT)
    print(summary(known))  # noqa: T201 - shown by `-s`
    assert problems(known) == []


def test_every_floor_of_the_table_is_named_once() -> None:
    units = [unit for floor in FLOORS for unit in floor]
    assert len(set(units)) == len(units)


def test_a_tree_that_keeps_to_its_floors_passes(tmp_path: Path) -> None:
    files = {
        "wgpu_backend/__init__.py": "from wgpu_backend.nn.model import load\n",
        "wgpu_backend/errors.py": "import os.path\n",
        "wgpu_backend/device/__init__.py": "import wgpu\nfrom .. import errors\n",
        "wgpu_backend/device/pool.py": "from . import queue\nimport wgpu.backends\n",
        "wgpu_backend/device/queue.py": "from ..errors import DeviceError\n",
        "wgpu_backend/nn/model.py": "import wgpu_backend.device.pool\n",
        "wgpu_backend/cli/__init__.py": "import os\nos.environ['A']\nimport wgpu_backend\n",
        "models/llama.py": "from wgpu_backend.nn.model import Model\n",
    }
    write(tmp_path, files)
    assert problems(read_modules(tmp_path)) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"wgpu_backend/errors.py": "import wgpu_backend.graph"}, "floor 0 imports"),
        ({"wgpu_backend/errors.py": "from wgpu_backend import graph"}, "floor 0 imports"),
        ({"wgpu_backend/errors.py": "from .graph import Node"}, "floor 0 imports"),
        ({"wgpu_backend/graph/a.py": "from .. import device"}, "floor 4 imports"),
        ({"wgpu_backend/text/__init__.py": "from ..graph import Node"}, "floor 2 imports"),
        ({"wgpu_backend/errors.py": "def f():\n import wgpu_backend.graph"}, "floor 0 imports"),
        (
            {"wgpu_backend/errors.py": "i.import_module('wgpu_backend.graph')"},
            "floor 0 imports",
        ),
        (
            {"wgpu_backend/graph/b.py": "import wgpu_backend"},
            "floor 4 imports wgpu_backend, floor 12",
        ),
        ({"wgpu_backend/engine/a.py": "from ..cli import main"}, "floor 11 imports"),
        ({"wgpu_backend/nn/a.py": "from wgpu_backend.models import llama"}, "floor 9 imports"),
        ({"models/llama.py": "import wgpu_backend.engine"}, "floor 10 imports"),
        ({"wgpu_backend/helpers.py": ""}, "no floor for helpers"),
        ({"wgpu_backend/ml/a.py": "import wgpu"}, "imports wgpu"),
        ({"models/llama.py": "from wgpu.utils import x"}, "imports wgpu"),
        (
            {"wgpu_backend/engine/a.py": "from models import llama"},
            "its name is wgpu_backend.models",
        ),
        ({"wgpu_backend/ml/a.py": "import os\nos.environ.get('A')"}, "os.environ, which"),
        ({"wgpu_backend/ml/a.py": "import os\nos.getenv('A')"}, "os.getenv, which"),
        ({"wgpu_backend/ml/a.py": "from os import environ"}, "os.environ, which"),
        (
            {"wgpu_backend/ml/a.py": "from . import b", "wgpu_backend/ml/b.py": "from . import a"},
            "wgpu_backend.ml.a <- wgpu_backend.ml.b",
        ),
        (
            {
                "wgpu_backend/nn/a.py": "import wgpu_backend.testing.a",
                "wgpu_backend/testing/b.py": "import wgpu_backend.nn.b",
                "wgpu_backend/nn/b.py": "",
                "wgpu_backend/testing/a.py": "",
            },
            "nn <- testing",
        ),
    ],
)
def test_a_breach_is_found(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    layout = {
        "wgpu_backend/__init__.py": "",
        "wgpu_backend/graph/__init__.py": "class Node: ...",
        "wgpu_backend/engine/__init__.py": "",
        "wgpu_backend/cli/__init__.py": "def main(): ...",
        "models/llama.py": "",
    }
    write(tmp_path, layout | files)
    [found] = problems(read_modules(tmp_path))
    assert expected in found
