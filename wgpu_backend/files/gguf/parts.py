"""Views of a part of a file: some of its tensors under other names, with other keys.

A tower for pictures is in a file of its own, llama.cpp's mmproj, or in the file of its language
model, as Ollama's converter writes it. Either way it is read as an mmproj file whose convolutions
over patches are matrices: a convolution whose kernels do not overlap is one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from wgpu_backend.errors import GGUFError, ModelError
from wgpu_backend.files.gguf.config import Config, Value
from wgpu_backend.files.gguf.file_bytes import Source
from wgpu_backend.files.gguf.header import Header, TensorInfo
from wgpu_backend.files.gguf.reader import GGUFFile

TOWER_ARCHITECTURE = "clip"
# Prefixes of the tensors of towers, and of the projectors after them.
TOWER_PREFIXES = ("v.", "a.", "mm.")


class FilePart(GGUFFile):
    """Some tensors of a file under other names.

    Parameters
    ----------
    whole : GGUFFile
        The file, closed with the part if `owns`.
    metadata : mapping of str to Value
        Keys of the part.
    names : mapping of str to str
        Names in the file by names in the part.
    shapes : mapping of str to tuple of int
        Shapes of tensors that are viewed under another one, by names in the part.

    Attributes
    ----------
    whole : GGUFFile
        The file.
    """

    def __init__(
        self,
        whole: GGUFFile,
        metadata: Mapping[str, Value],
        names: Mapping[str, str],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        *,
        owns: bool,
    ) -> None:
        infos = {
            name: _view(whole.tensors[own], name, (shapes or {}).get(name))
            for name, own in names.items()
        }
        header = Header(whole.version, whole.alignment, metadata, infos, whole.numbers)
        super().__init__(whole.path, header, b"")
        self.paths = whole.paths
        self.whole, self._names, self._owns = whole, names, owns

    def source(self, name: str) -> Source:
        """Return the bytes of one tensor from the file, as `GGUFFile.source`."""
        if name not in self._names:
            return super().source(name)
        return self.whole.source(self._names[name])

    def rows_together(self, name: str) -> int:
        """Return the number of rows of a tensor that are best read together."""
        return self.whole.rows_together(self._names[name])

    def close(self) -> None:
        """Close the file, if the part owns it; a second call does nothing."""
        super().close()
        if self._owns:
            self.whole.close()


def _view(info: TensorInfo, name: str, shape: tuple[int, ...] | None) -> TensorInfo:
    made = info.shape if shape is None else shape
    if math.prod(made) != math.prod(info.shape):
        raise ModelError(f"tensor {info.name} is {info.shape}, needs {math.prod(made)} values")
    return replace(info, name=name, shape=made)


def tower_part(file: GGUFFile, text: Config | None = None, *, owns: bool = True) -> GGUFFile:
    """Return an mmproj file with its convolutions over patches as matrices.

    Parameters
    ----------
    text : Config or None
        Keys of the language model, whose epsilon some projectors take.

    Raises
    ------
    GGUFError
        It is no mmproj file.
    """
    if file.config.architecture != TOWER_ARCHITECTURE:
        raise GGUFError(
            f"{file.path}: architecture {file.config.architecture!r}, needs "
            f"{TOWER_ARCHITECTURE!r}: a tower for pictures or sound, such as mmproj-model.gguf"
        )
    shapes = {name: _matrix(info.shape) for name, info in file.tensors.items() if _is_patch(name)}
    eps = "attention.layer_norm_rms_epsilon"
    taken: dict[str, Value] = {}
    if text is not None and eps in text:
        taken[f"{TOWER_ARCHITECTURE}.vision.projector.layer_norm_epsilon"] = text.float(eps)
    metadata = {**taken, **file.metadata}
    return FilePart(file, metadata, {name: name for name in file.tensors}, shapes, owns=owns)


def _is_patch(name: str) -> bool:
    own = ("v.patch_embd.weight", "v.sam.patch_embd.weight", "mm.patch_merger.weight")
    return name.startswith(own)


def _matrix(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], math.prod(shape[1:]))
