"""Models of a store as they are run and shown, and their creation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from wgpu_backend.errors import ModelError, ModelNotFound, StoreError
from wgpu_backend.files.gguf.parts import TOWER_ARCHITECTURE
from wgpu_backend.files.gguf.reader import GGUFFile, open_gguf, open_parts
from wgpu_backend.files.gguf.writer import merge_parts
from wgpu_backend.files.quantize.mixes import file_type
from wgpu_backend.files.store.files import read_file
from wgpu_backend.files.store.manifest import CONFIG_TYPE, Layer, Manifest
from wgpu_backend.files.store.modelfile import Base, Modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import BlobMissing, Entry, Store
from wgpu_backend.files.tower_files import find_towers, is_tower, require_fitting_tower

# Bytes of a template, a license ….
_MAX_TEXT = 16 << 20
Fits = Callable[[GGUFFile, GGUFFile], object]
# Attempts of a change that collides with changes of other processes.
_MOST_TRIES = 20
# Size, letter and decimals.
_COUNT = ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0))


@dataclass(frozen=True, slots=True)
class Stored:
    """A model of the store with everything needed to run it.

    Parameters
    ----------
    entry : Entry
        Name and manifest.
    path : Path
        The GGUF file.
    adapters : tuple of Path
        Files of adapters.
    parameters : mapping
        Generation parameters, by Ollama's names.
    template, system : str
        Chat template and system message; empty if the model has none.
    messages : tuple of mappings
        First messages of every conversation.
    license : str
        Text of the license.
    details : mapping
        Format, family, size and quantisation.
    projector : Path or None
        The file of the model's tower for pictures or sound, if it has one of its own.
    """

    entry: Entry
    path: Path
    adapters: tuple[Path, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    template: str = ""
    system: str = ""
    messages: tuple[Mapping[str, str], ...] = ()
    license: str = ""
    details: Mapping[str, object] = field(default_factory=dict[str, object])
    projector: Path | None = None

    @property
    def modelfile(self) -> Modelfile:
        """Return a recipe that recreates the model."""
        return Modelfile(
            str(self.path),
            dict(self.parameters),
            [str(path) for path in self.adapters],
            [self.license] if self.license else [],
            self.template or None,
            self.system or None,
            [(each["role"], each["content"]) for each in self.messages],
            None if self.projector is None else str(self.projector),
        )


def open_stored(store: Store, name: ModelName) -> Stored:
    """Open a model of a store.

    Raises
    ------
    ModelNotFound
        There is no model with this name.
    StoreError
        The model is damaged, or has no GGUF file.
    """
    entry = store.entry(name)
    manifest = entry.manifest
    models = manifest.of_kind("model")
    if not models:
        raise StoreError(f"{name}: has no GGUF file")
    for layer in manifest.blobs:
        if not store.has(layer):
            raise StoreError(f"{name}: blob {layer.digest} is missing or incomplete; pull it again")
    return Stored(
        entry,
        store.blob(models[0].digest),
        tuple(store.blob(layer.digest) for layer in manifest.of_kind("adapter")),
        _json(store, manifest, "params", dict) or {},
        _text(store, manifest, "template"),
        _text(store, manifest, "system"),
        tuple(_messages(store, manifest)),
        _text(store, manifest, "license"),
        details(store, entry),
        next((store.blob(each.digest) for each in manifest.of_kind("projector")), None),
    )


def _text(store: Store, manifest: Manifest, kind: str) -> str:
    found = [_read(store, layer) for layer in manifest.of_kind(kind)]
    return "\n\n".join(data.decode("utf-8", "replace") for data in found)


def _json(store: Store, manifest: Manifest, kind: str, wanted: type) -> Any:  # noqa: ANN401
    for layer in manifest.of_kind(kind):
        return _value(store, layer, kind, wanted)
    return None


def _value(store: Store, layer: Layer, kind: str, wanted: type) -> Any:  # noqa: ANN401
    """Parse the JSON of a blob."""
    try:
        value: object = json.loads(_read(store, layer))
    except (ValueError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise StoreError(f"blob {layer.digest}: {kind}: {why}; pull the model again") from None
    if not isinstance(value, wanted):
        raise StoreError(f"blob {layer.digest}: {kind}: needs a JSON {wanted.__name__}")
    return cast("Any", value)


def _messages(store: Store, manifest: Manifest) -> Iterator[Mapping[str, str]]:
    given = cast("list[object]", _json(store, manifest, "messages", list) or [])
    for number, each in enumerate(given):
        found = cast("dict[str, object]", each if isinstance(each, dict) else {})
        said = {name: found.get(name) for name in ("role", "content")}
        if not all(isinstance(value, str) for value in said.values()):
            raise StoreError(f"messages of the model: [{number}] needs strings for role, content")
        yield cast("dict[str, str]", said)


def _read(store: Store, layer: Layer) -> bytes:
    if layer.size > _MAX_TEXT:
        raise StoreError(f"blob {layer.digest}: {layer.size} bytes, needs at most {_MAX_TEXT}")
    try:
        return read_file(store.blob(layer.digest), _MAX_TEXT)
    except OSError as error:
        raise StoreError(f"blob {layer.digest}: cannot be read: {error.strerror}") from None


def details(store: Store, entry: Entry) -> dict[str, object]:
    """Describe a model as Ollama's list does, from its config, without opening the model."""
    return _details(read_config(store, entry))


def read_config(store: Store, entry: Entry) -> dict[str, object]:
    """Return the content of a model's config blob; empty if it is missing or damaged."""
    try:
        return _value(store, entry.manifest.config, "config", dict)
    except StoreError:
        return {}


def file_details(path: Path) -> dict[str, object]:
    """Describe a file outside a store, as `details` does.

    Raises
    ------
    GGUFError
        The file is damaged.
    """
    with open_gguf(path, check_types=False) as file:
        return _details(_config(file))


def _details(given: Mapping[str, object]) -> dict[str, object]:
    family = str(given.get("model_family") or "")
    return {
        "parent_model": "",
        "format": str(given.get("model_format") or ""),
        "family": family,
        "families": _families(given.get("model_families")) or ([family] if family else []),
        "parameter_size": str(given.get("model_type") or ""),
        "quantization_level": str(given.get("file_type") or ""),
    }


def _families(given: object) -> list[str]:
    found = cast("list[object]", given) if isinstance(given, list) else []
    return [each for each in found if isinstance(each, str)]


def create(
    store: Store,
    name: ModelName,
    wanted: Modelfile,
    folder: Path,
    report: Callable[[str], None] = lambda _: None,
    facts: Mapping[str, object] | None = None,
    fits: Fits | None = None,
) -> Entry:
    """Create a model from a Modelfile.

    Parameters
    ----------
    store : Store
        The store to write to.
    name : ModelName
        Name of the new model.
    wanted : Modelfile
        Its recipe.
    folder : Path
        Base of relative paths in it.
    report : callable
        Called with the status.
    facts : mapping or None
        Further keys of its config blob.
    fits : callable or None
        Raises `ModelError` if the tensors of an adapter's file do not fit those of a model's.

    Raises
    ------
    ModelNotFound
        ``FROM`` names neither a file nor a model of the store.
    GGUFError
        A file is damaged.
    StoreError
        The disk is full, or the store read-only; a text is not valid UTF-8; an adapter is of
        another architecture, or does not fit.
    """
    store.require_writable()
    for _ in range(_MOST_TRIES - 1):
        try:
            return _create_once(store, name, wanted, folder, report, facts, fits)
        except BlobMissing:
            # Another process deleted a blob that existed before.
            continue
    return _create_once(store, name, wanted, folder, report, facts, fits)


def _create_once(
    store: Store,
    name: ModelName,
    wanted: Modelfile,
    folder: Path,
    report: Callable[[str], None],
    facts: Mapping[str, object] | None,
    fits: Fits | None,
) -> Entry:
    base, tower = _order(wanted, folder)
    layers, config = _base(store, base, folder, report)
    if tower is not None:
        _require_fitting_tower(tower, store, layers)
        layers = [layer for layer in layers if layer.kind != "projector"]
        layers.append(_gguf(store, "projector", tower, report)[0])
    elif isinstance(base, str | Path):
        layers += _tower_layers(store, folder / Path(base).expanduser(), report)
    for path in wanted.adapters:
        adapter = folder / Path(path).expanduser()
        _require_fitting(adapter, store, layers, fits)
        layers.append(_gguf(store, "adapter", adapter, report)[0])
    for kind, text in _texts(wanted).items():
        layers = [layer for layer in layers if layer.kind != kind]
        layers.append(store.add_bytes(kind, _utf8(kind, text)))
    _merge_parameters(store, layers, wanted)
    if any(layer.kind == "projector" for layer in layers):
        # Older clients of Ollama's look for it there.
        families = [*_families(config.get("model_families")), TOWER_ARCHITECTURE]
        config = {**config, "model_families": [*dict.fromkeys(families)]}
    report("writing manifest")
    root = {"type": "layers", "diff_ids": [layer.digest for layer in layers]}
    encoded = json.dumps({**config, "rootfs": root, **(facts or {})}).encode()
    entry = store.put(name, Manifest(store.add_bytes(CONFIG_TYPE, encoded), tuple(layers)))
    report("success")
    return entry


def _texts(wanted: Modelfile) -> dict[str, str]:
    messages = [{"role": role, "content": said} for role, said in wanted.messages]
    given = {
        "template": wanted.template,
        "system": wanted.system,
        "messages": json.dumps(messages) if messages else None,
        "license": "\n\n".join(wanted.licenses) or None,
    }
    return {kind: text for kind, text in given.items() if text is not None}


def _utf8(kind: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        wrong = text[error.start : error.end]
        raise StoreError(
            f"{kind}: {wrong[:8]!r} is half of a surrogate pair, which UTF-8 cannot encode"
        ) from None


def _merge_parameters(store: Store, layers: list[Layer], wanted: Modelfile) -> None:
    """Merge parameters into those of the base model."""
    if not wanted.parameters:
        return
    below = next((layer for layer in layers if layer.kind == "params"), None)
    values: dict[str, object] = {}
    if below is not None:
        values.update(_value(store, below, "params", dict))
        layers.remove(below)
    values.update(wanted.parameters)
    layers.append(store.add_bytes("params", json.dumps(values).encode()))


def _order(wanted: Modelfile, folder: Path) -> tuple[Base, Path | None]:
    """Return the base, and the file of the tower: the lines of both may come in any order."""
    if wanted.projector is None:
        return wanted.base, None
    tower = folder / Path(wanted.projector).expanduser()
    if tower.is_file() and is_tower(tower):
        return wanted.base, tower
    first = folder / Path(str(wanted.base)).expanduser()
    if isinstance(wanted.base, str) and first.is_file() and is_tower(first):
        return wanted.projector, first
    raise StoreError(
        f"FROM {wanted.base}, FROM {wanted.projector}: neither is a tower; needs a model, and at "
        "most the mmproj file of its tower"
    )


def _require_fitting_tower(tower: Path, store: Store, layers: list[Layer]) -> None:
    """Raise if a tower's rows have not the width of the model among the layers."""
    models = [layer for layer in layers if layer.kind == "model"]
    if not models:
        return
    if not store.has(models[0]):
        raise BlobMissing(f"blob {models[0].digest} is missing or has another size")
    with open_gguf(store.blob(models[0].digest), check_types=False) as base:
        try:
            require_fitting_tower(tower, base)
        except ModelError as error:
            text = str(error).replace(base.path.name, "the model")
            raise StoreError(f"FROM {text}") from error


def _tower_layers(store: Store, path: Path, report: Callable[[str], None]) -> list[Layer]:
    """Return the layer of the only mmproj file in the folder that fits a model; else none."""
    if not path.is_file():
        return []
    with open_gguf(path, check_types=False) as file:
        found = find_towers(file)
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        report(f"left out {names}: several towers fit {path.name}; keep one in its folder")
        return []
    return [_gguf(store, "projector", each, report)[0] for each in found]


def _base(
    store: Store, base: Base, folder: Path, report: Callable[[str], None]
) -> tuple[list[Layer], dict[str, object]]:
    """Return layers and config of a model's base: a GGUF file, or another model."""
    # A client's name never refers to a file of this machine.
    if isinstance(base, ModelName):
        return _model_layers(store, base, report)
    if isinstance(base, tuple):
        report(f"copying {base[0].name}")
        with open_parts(base, check_types=False) as file:
            return [_whole(store, "model", file, report)], _config(file)
    path = folder / Path(base).expanduser()
    if path.is_file():
        layer, config = _gguf(store, "model", path, report)
        return [layer], config
    if path.is_dir():
        if (path / "config.json").is_file():
            how = f"`wgpu-backend create OUT.gguf {base}` makes a GGUF file of it"
            raise StoreError(f"FROM {base}: a folder; {how}")
        raise StoreError(
            f"FROM {base}: a folder without config.json; needs a GGUF file, a Hugging Face folder "
            "or the name of a model"
        )
    try:
        name = ModelName.parse(str(base))
    except StoreError:
        raise ModelNotFound(f"FROM {base}: no such file, and not a valid name of a model") from None
    try:
        return _model_layers(store, name, report)
    except ModelNotFound:
        raise ModelNotFound(
            f"FROM {base}: no such file, and no model of that name in the store"
        ) from None


def _model_layers(
    store: Store, name: ModelName, report: Callable[[str], None]
) -> tuple[list[Layer], dict[str, object]]:
    """Return the layers and config of a model."""
    entry = store.entry(name)
    config: dict[str, object] = _value(store, entry.manifest.config, "config", dict)
    report(f"using existing model {entry.name}")
    return list(entry.manifest.layers), config


def _gguf(
    store: Store, kind: str, path: Path, report: Callable[[str], None]
) -> tuple[Layer, dict[str, object]]:
    report(f"copying {path.name}")
    with open_gguf(path, check_types=False) as file:
        return _whole(store, kind, file, report), _config(file)


def _whole(store: Store, kind: str, file: GGUFFile, report: Callable[[str], None]) -> Layer:
    """Store a file, or a split file joined into one, since manifests cannot list parts."""
    if len(file.paths) == 1:
        return store.add_file(kind, file.path)
    report(f"merging {len(file.paths)} parts")
    size, pieces = merge_parts(file)
    return store.add_pieces(kind, pieces, size)


def _require_fitting(adapter: Path, store: Store, layers: list[Layer], fits: Fits | None) -> None:
    """Raise if an adapter cannot be used with the model among the layers."""
    models = [layer for layer in layers if layer.kind == "model"]
    if not models:
        return
    if not store.has(models[0]):
        raise BlobMissing(f"blob {models[0].digest} is missing or has another size")
    with (
        open_gguf(adapter, check_types=False) as file,
        open_gguf(store.blob(models[0].digest), check_types=False) as base,
    ):
        kind = file.config.string("general.type", "")
        own, needed = file.config.architecture, base.config.architecture
        if kind != "adapter":
            raise StoreError(
                f"ADAPTER {adapter.name}: key 'general.type' is {kind!r}, needs 'adapter'"
            )
        if own != needed:
            raise StoreError(
                f"ADAPTER {adapter.name}: of architecture {own!r}, the model is {needed!r}; needs "
                "an adapter that was made for this model"
            )
        try:
            _ = fits and fits(file, base)
        except ModelError as error:
            text = str(error).removeprefix(f"{file.path}: ")
            for path in (f"the model {base.path}", str(base.path)):
                text = text.replace(path, "the model")
            raise StoreError(f"ADAPTER {adapter.name}: {text}") from error


def _config(file: GGUFFile) -> dict[str, object]:
    family = file.config.architecture
    return {
        "model_format": "gguf",
        "model_family": family,
        "model_families": [family],
        "model_type": _count(sum(math.prod(info.shape) for info in file.tensors.values())),
        "file_type": file_type(file),
        "architecture": "amd64",
        "os": "linux",
    }


def _count(weights: int) -> str:
    """Format the number of weights as Ollama does: ``7.2B``, ``134.52M``."""
    for size, letter, decimals in _COUNT:
        if weights >= size:
            return f"{weights / size:.{decimals if weights % size else 0}f}{letter}"
    return str(weights)
