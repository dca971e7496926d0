"""Rows of a weight, read from its file when they are needed."""

from __future__ import annotations

import numpy as np

from wgpu_backend.files.gguf.file_bytes import Source
from wgpu_backend.ml.executor import Pieces
from wgpu_backend.ops.layouts.super_blocks import Bytes


class Rows:
    """The rows of a weight; a slice of them is an array.

    What was read for one slice is written over by the next, so that loading holds no more of a file
    than a slice.

    Parameters
    ----------
    row_nbytes : int
        Divides the bytes of `data`, or a row goes on in the next piece.
    """

    def __init__(self, data: Pieces, row_nbytes: int) -> None:
        nbytes = data.nbytes if isinstance(data, memoryview) else sum(p.nbytes for p in data)
        self.shape = (nbytes // max(row_nbytes, 1), row_nbytes)
        self._data = data
        self._memory = np.empty(0, np.uint8)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: slice) -> Bytes:
        """Return the rows of a slice without a step: (rows, row_nbytes), uint8.

        Raises
        ------
        GGUFError
            The file was cut or written to since it was opened.
        """
        first, stop, _ = which.indices(len(self))
        rows, row_nbytes = max(stop - first, 0), self.shape[1]
        begin, nbytes = first * row_nbytes, rows * row_nbytes
        if isinstance(self._data, memoryview):
            flat = np.frombuffer(self._data[begin : begin + nbytes], np.uint8)
        else:
            flat = self._read(self._data, begin, nbytes)
        return flat.reshape(rows, row_nbytes)

    def _read(self, pieces: list[Source], begin: int, nbytes: int) -> Bytes:
        # One buffer for all: a slice is valid until the next is read.
        if len(self._memory) < nbytes:
            self._memory = np.empty(nbytes, np.uint8)
        out, at, end = self._memory[:nbytes], 0, begin + nbytes
        for piece in pieces:
            start, stop = max(begin, at), min(end, at + piece.nbytes)
            if start < stop:
                piece.read_into(out[start - begin : stop - begin].data, start - at)
            at += piece.nbytes
        return out
