"""Compare functions of `wgpu_backend.array` with MLX's on random arrays.

    pip install "mlx[cpu]"
    python -m benchmarks.array_against_mlx [--device cpu] [--cases 12] [--only NAME]

Each case is drawn anew: shapes of 0 to 4 axes with extents from 1 to 9, element types, and layouts
(dense, transposed, every other value, reversed, broadcast). For a function it prints how many cases
there were, the largest difference, in units of the larger of 1 and the value, and what else
differed: shapes, types where both have them, NaN in other places.
"""

from __future__ import annotations

import argparse
import sys

import wgpu_backend.array as wx
from benchmarks.array_against_mlx.cases import BY_DESIGN, CASES
from benchmarks.array_against_mlx.comparing import run


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compare with MLX")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    wx.set_default_device(asked.device)
    print("| function | cases | largest difference | else |\n|---|---:|---:|---|")
    total, wrong = 0, 0
    for name in sorted(CASES):
        if asked.only and asked.only != name:
            continue
        found = run(name, asked.cases, asked.seed)
        total += found.cases
        said = sorted(set(found.problems))
        wrong += bool(said) and name not in BY_DESIGN
        note = BY_DESIGN.get(name, "; ".join(said))
        print(f"| {name} | {found.cases} | {found.worst:.3g} | {note} |")
        sys.stdout.flush()
    print(f"\n{len(CASES)} functions, {total} cases, {wrong} with unexplained problems")


if __name__ == "__main__":
    main()
