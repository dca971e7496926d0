"""Write wgpu_backend/text/tokenizer/categories.txt: what kind each character is of in Unicode 15.1.

    pip install unicodedata2==15.1.0    (or Python 3.13, whose own tables have that version)
    python tests/data/make_categories.py

llama.cpp classifies characters by tables of this version, so its words end where these say.
"""

from importlib import import_module
from itertools import groupby
from pathlib import Path

VERSION = "15.1.0"
OUTPUT = Path(__file__).parents[2] / "wgpu_backend" / "text" / "tokenizer" / "categories.txt"
HEADER = f"""# Characters by the first letter of their general category, Unicode {VERSION}.
# Written by tests/data/make_categories.py; unassigned characters and surrogates are left out.
"""


def tables():
    for name in ("unicodedata", "unicodedata2"):
        try:
            module = import_module(name)
        except ImportError:
            continue
        if module.unidata_version == VERSION:
            return module
    raise SystemExit(f"needs the tables of Unicode {VERSION}: pip install unicodedata2=={VERSION}")


def main():
    category = tables().category
    ranges = {kind: [] for kind in "LMNPSZC"}
    start = 0
    for name, run in groupby(map(category, map(chr, range(0x110000))), key=kind_of):
        end = start + sum(1 for _ in run)
        if name:
            ranges[name].append(f"{start:X}" if end == start + 1 else f"{start:X}-{end - 1:X}")
        start = end
    lines = (f"{kind} {' '.join(spans)}\n" for kind, spans in ranges.items())
    OUTPUT.write_text(HEADER + "".join(lines), "ascii")


def kind_of(category):
    return None if category in ("Cn", "Cs") else category[0]


if __name__ == "__main__":
    main()
