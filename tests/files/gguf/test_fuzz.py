"""Seeded mutations of small files: whatever the bytes, a sound file or a GGUFError.

Most mutations fall on the header, and many write a number that is likely to hurt where a length,
a count, a type or an offset may be. Each file that is still accepted is held to the promises that
`GGUFFile` makes, since a parser that accepts nonsense is as bad as one that crashes.
"""

import struct
import sys
import time
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest

from tests.builders import Crafted, Dims, array, key, tensor, text, tiny_model
from wgpu_backend.errors import GGUFError, ModelError
from wgpu_backend.files.gguf.reader import parse_gguf

try:
    import resource
except ImportError:  # Windows
    resource = None

MUTATIONS = 20_000
NASTY = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    9,
    12,
    13,
    31,
    32,
    63,
    64,
    255,
    2**16 - 1,
    2**16,
    2**26 + 1,
    2**31 - 1,
]
NASTY += [2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]


def every_value_type():
    """A file with each value type alone and in an array."""
    numbers = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 12: "d"}
    keys = [key("general.architecture", 8, text("llama"))]
    for kind, code in numbers.items():
        keys.append(key(f"one.{kind}", kind, struct.pack(f"<{code}", 1)))
        keys.append(key(f"many.{kind}", 9, array(kind, 3, struct.pack(f"<3{code}", 1, 0, 1))))
    keys.append(key("words", 9, array(8, 3, text("a") + text("") + text("日本"))))
    infos = [tensor("a", (32, 2), 2, 0), tensor("b", (3,), 0, 64), tensor("c", (4, 1, 1, 2), 1, 96)]
    return Crafted(keys=keys, tensors=infos, data=bytes(36 + 28 + 12 + 20 + 16)).encode()


def old_and_finely_aligned():
    keys = [key("general.alignment", 4, struct.pack("<I", 8)), key("name", 8, text("x" * 40))]
    infos = [tensor(f"t{index}", (8,), 0, 32 * index) for index in range(12)]
    crafted = Crafted(version=2, alignment=8, keys=keys, tensors=infos, data=bytes(32 * 12))
    return crafted.encode()


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Pairs of a file and the bytes of it that are header."""
    folder = tmp_path_factory.mktemp("fuzz")
    dims = Dims(layers=1, width=32, heads=2, kv_heads=1, head_dim=16, feed_forward=32)
    models = [
        tiny_model(folder / f"{name}.gguf", name, dtype, dims=dims).read_bytes()
        for name, dtype in (("llama", "q4_0"), ("qwen3", "f16"))
    ]
    files = [every_value_type(), old_and_finely_aligned(), *models]
    return [(raw, min(t.offset for t in parse_gguf(raw).tensors.values())) for raw in files]


def flip(rng, raw, at):
    raw[at] ^= 1 << rng.integers(8)


def overwrite(rng, raw, at):
    raw[at] = rng.integers(256)


def integer(rng, raw, at):
    """Put a number that hurts where a field of 4 or 8 bytes may be."""
    width = int(rng.choice([4, 8]))
    value = NASTY[rng.integers(len(NASTY))] % 2 ** (8 * width)
    raw[at : at + width] = value.to_bytes(width, "little")


def nudge(rng, raw, at):
    """Change a number by a little: off by one is where checks fail."""
    width = int(rng.choice([4, 8]))
    value = int.from_bytes(raw[at : at + width], "little") + int(rng.integers(-2, 3))
    raw[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")


def length(rng, raw, at):
    """As `integer`, at the next eight bytes that look like a length."""
    for start in range(at, min(at + 200, len(raw) - 8)):
        if raw[start] and not any(raw[start + 1 : start + 8]):
            (integer if rng.integers(2) else nudge)(rng, raw, start)
            return


def truncate(rng, raw, at):
    del raw[at:]


def cut(rng, raw, at):
    del raw[at : at + int(rng.integers(1, 40))]


def repeat(rng, raw, at):
    raw[at:at] = raw[at : at + int(rng.integers(1, 200))]


def splice(rng, raw, at):
    other = int(rng.integers(len(raw)))
    count = int(rng.integers(1, 100))
    raw[at : at + count] = raw[other : other + count]


MUTATORS = [flip, overwrite, integer, nudge, length, length, truncate, cut, repeat, splice]


def mutated(rng, raw, header):
    raw = bytearray(raw)
    for _ in range(rng.integers(1, 4)):
        reach = min(header if rng.integers(10) else len(raw), len(raw))
        if reach > 8:
            MUTATORS[rng.integers(len(MUTATORS))](rng, raw, int(rng.integers(reach)))
    return bytes(raw)


def check_promises(raw, file):
    end = 0
    for info in file.tensors.values():
        assert end <= info.offset
        end = info.offset + info.nbytes
        assert end <= len(raw)
        assert info.nbytes == len(file.data(info.name)) == info.dtype.nbytes(np.prod(info.shape))
    for name in file.metadata:
        for read in (file.config.uint, file.config.strings, file.config.floats):
            with suppress(ModelError):
                read(name)


def outcome(raw, check_types):
    """Whether a file is accepted; anything but an answer or a GGUFError fails the test."""
    try:
        file = parse_gguf(raw, check_types=check_types)
    except GGUFError:
        return False
    check_promises(raw, file)
    return True


def peak_nbytes():
    """The most memory this process ever held, as the system counts it."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit if resource else 0


@pytest.mark.slow
def test_mutated_files_are_sound_or_refused(bases):
    rng = np.random.default_rng(20_000)
    accepted, slowest, before = 0, 0.0, peak_nbytes()
    for index in range(MUTATIONS):
        raw = mutated(rng, *bases[index % len(bases)])
        start = time.thread_time()  # others' time on a busy machine does not count
        accepted += outcome(raw, bool(index % 8))
        slowest = max(slowest, time.thread_time() - start)
    assert slowest < 1
    assert peak_nbytes() - before < 256 << 20
    # Both answers have to be common, or the mutations test next to nothing.
    assert 0.05 < accepted / MUTATIONS < 0.8


@pytest.mark.slow
def test_mutated_files_allocate_little(bases):
    rng = np.random.default_rng(4_000)
    tracemalloc.start()
    try:
        for index in range(MUTATIONS // 5):
            outcome(mutated(rng, *bases[index % len(bases)]), True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20


def test_unmutated_files_are_accepted(bases):
    assert all(outcome(raw, True) for raw, _ in bases)
