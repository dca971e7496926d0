"""Loop counters in WGSL: each loop counts its iterations and ends when a thread exceeds a limit.

For ops under development. A counter goes into every loop of the text, and a binding holds
afterwards which loop ran over. Lines stay where they are, so that errors still point at files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from wgpu_backend.device.wgsl.module import BindingDecl, Shader
from wgpu_backend.errors import ShaderError

# Iterations of all loops of one thread: far above what the sizes of a test need.
MAX_ITERATIONS = 1 << 22
COUNTS = "checked_loops"

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LOOP = re.compile(r"\b(?:for|while|loop)\b")
# Each loop's longest run, after a word that is 1 once some thread exceeds the limit. Threads read
# that word now and then, so that not each of them has to reach the limit.
_COUNTING = """
@group(0) @binding({binding}) var<storage, read_write> {counts}: array<atomic<u32>, {words}>;
var<private> {counts}_iterations: u32;
var<private> {counts}_over: bool;
fn {counts}_end(index: u32, turns: ptr<function, u32>) -> bool {{
    {counts}_iterations += 1u;
    *turns += 1u;
    if {counts}_iterations > {limit}u {{
        atomicStore(&{counts}[0], 1u);
        {counts}_over = true;
    }} else if {counts}_iterations % 4096u == 0u && atomicLoad(&{counts}[0]) != 0u {{
        {counts}_over = true;
    }}
    if {counts}_over {{
        atomicMax(&{counts}[index], *turns);
    }}
    return {counts}_over;
}}"""


@dataclass(frozen=True, slots=True)
class CountedLoops:
    """A shader whose loops end.

    Parameters
    ----------
    shader : Shader
        With one more binding, called `COUNTS`: a word, and one for each loop.
    source : Shader
        What it was made of.
    places : tuple of (int, int)
        Line and column of each loop, from 1.
    """

    shader: Shader
    source: Shader
    places: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        """The bytes of the binding, which must be zeros before a run."""
        return 4 * (1 + len(self.places))

    def error(self, counts: Sequence[int]) -> ShaderError | None:
        """Return an error about the loop that did not end, from the binding's words after a run.

        Of loops inside each other it is the one that made the most turns since it was entered.
        """
        if not counts[0]:
            return None
        longest = max(range(len(self.places)), key=lambda k: counts[1 + k])
        what = f"loop ran more than {MAX_ITERATIONS} iterations"
        return self.source.make_error(*self.places[longest], what)


def counted_loops(shader: Shader, bindings: int) -> CountedLoops | None:
    """Put a counter into every loop of a shader.

    Parameters
    ----------
    bindings : int
        Storage bindings that a kernel may have on the device.

    Returns
    -------
    CountedLoops or None
        None where there is no loop, or no binding left to tell of it.
    """
    text = _COMMENT.sub(_blank, shader.text)
    loops = [(found.start(), _body(text, found.end())) for found in _LOOP.finditer(text)]
    storage = sum(b.access != "uniform" for b in shader.bindings)
    # The counters need a storage binding of their own.
    if not loops or storage >= bindings:
        return None
    inserted: dict[int, str] = {}
    for index, (start, body) in enumerate(loops, 1):
        inserted[start] = f"var {COUNTS}_{index} = 0u; "
        inserted[body] = f" if {COUNTS}_end({index}u, &{COUNTS}_{index}) {{ break; }}"
    binding = len(shader.bindings)
    words = 1 + len(loops)
    counting = _COUNTING.format(binding=binding, words=words, counts=COUNTS, limit=MAX_ITERATIONS)
    counted = replace(
        shader,
        text=_with(shader.text, inserted) + counting,
        origins=(*shader.origins, *[f"{shader.label}: counting loops"] * counting.count("\n")),
        bindings=(*shader.bindings, BindingDecl(COUNTS, binding, "read_write")),
    )
    return CountedLoops(counted, shader, tuple(_place(text, start) for start, _ in loops))


def _blank(found: re.Match[str]) -> str:
    """Replace a comment by blanks and keep its line ends, so that positions stay."""
    return re.sub(r"[^\n]", " ", found[0])


def _body(text: str, start: int) -> int:
    """Return the start of a loop's body, after the first brace outside parentheses."""
    depth = 0
    for at in range(start, len(text)):
        # A `for` may have braces inside its parentheses.
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if text[at] == "{" and depth == 0:
            return at + 1
    return len(text)


def _with(text: str, inserted: Mapping[int, str]) -> str:
    pieces: list[str] = []
    before = 0
    for at in sorted(inserted):
        pieces += [text[before:at], inserted[at]]
        before = at
    return "".join([*pieces, text[before:]])


def _place(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
