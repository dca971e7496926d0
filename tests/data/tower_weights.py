"""Weights and a picture that need no file, for `make_towers.py` and its test."""

import json
import zlib
from math import prod

import numpy as np


def make_weights(shapes, seed=0):
    """Return weights that depend on their names and the seed: products keep the size of states."""
    made = {}
    for name, shape in shapes.items():
        # A generator of our own: NumPy's may change between versions.
        numbers = np.arange(max(prod(shape), 1), dtype=np.uint64) + np.uint64(
            zlib.crc32(name.encode(), seed)
        ) * np.uint64(7919)
        values = _noise(numbers).reshape(shape)
        if name.endswith(("input_min", "output_min", "input_max", "output_max")):
            made[name] = np.float32(2 if name.endswith("max") else -1.5) + values * 0
        elif len(shape) > 1 and "pos" not in name and "token" not in name:
            made[name] = values * np.float32(1.7 * prod(shape[1:]) ** -0.5)
        elif "norm" in name and name.endswith("weight") and len(shape) == 1:
            made[name] = 1 + values * np.float32(0.2)
        else:
            made[name] = values * np.float32(0.3)
    # A copy of one value would have an axis otherwise.
    return {k: np.ascontiguousarray(v, np.float32).reshape(shapes[k]) for k, v in made.items()}


def _noise(numbers):
    """Return values from -1 to 1 by the finaliser of SplitMix64 (Steele et al. 2014)."""
    x = numbers * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    top = ((x ^ (x >> np.uint64(31))) >> np.uint64(40)).astype(np.float32)
    return top / np.float32(2**23) - 1


def picture(height, width):
    """Return a picture with gradients, an edge and a fine pattern."""
    y, x = np.mgrid[:height, :width]
    made = np.stack([(x * 7 + y * y) % 256, 255 * x // width, 255 * y // height], -1)
    made[height // 3 : height // 2, width // 4 :] = (250, 30, 90)
    return made.astype(np.uint8)


def write_tokenizer(folder):
    """Write a small vocabulary of CLIP's kind, in the files that CLIP was published with."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in printable]
    # GPT-2's letters for the other bytes.
    letters += [chr(256 + i) for i in range(256 - len(printable))]
    merges = ["c a", "ca t</w>", "d o", "do g</w>", "' s</w>", "Ã ©</w>", "! !</w>"]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters)]
    tokens += [pair.replace(" ", "") for pair in merges]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {text: number for number, text in enumerate(tokens)}
    given = {
        "tokenizer_class": "CLIPTokenizer",
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    (folder / "tokenizer_config.json").write_text(json.dumps(given))


def sound(samples):
    """Return a sound with noise, and a tone that becomes louder."""
    time = np.arange(samples)
    tone = np.sin(time * 0.17, dtype=np.float64) * time / samples
    return (_noise(time.astype(np.uint64)) * 0.05 + tone * 0.3).astype(np.float32)


def frames(count, height, width):
    """Return frames of a video in which `picture` moves to the right."""
    return [np.roll(picture(height, width), 5 * i, 1) for i in range(count)]
