"""What a family of models calls its tensors and settings, and how GGUF files call them.

A family is a class with tables, in a file of `families/`; those of a family inherit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import ClassVar, TypeVar

import numpy as np

from wgpu_backend.config import Value
from wgpu_backend.errors import ModelError
from wgpu_backend.folders.arrangements import columns, flat
from wgpu_backend.folders.settings import Settings
from wgpu_backend.folders.values import Values

Change = Callable[[Values, Settings], Values]
Names = Mapping[str, str | Mapping[str, Change]]
"""Names of modules by a folder's, ``*`` for numbers; a module may become several, or be changed."""

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_USELESS = re.compile(
    r"rotary_emb\.inv_freq$|position_ids$|\.attn\.(masked_)?bias$|\.attention\.(masked_)?bias$"
    r"|^(model\.)?(vision|visual|audio|multi_modal)|vision_tower|^pooler\.|mm_projector"
)
_ROPE_THETAS = ("global_rope_theta", "rope_theta", "rotary_emb_base")
_SCANS = (".A_log", ".D")
_PARTIAL = ("partial_rotary_factor", "rotary_pct", "rope_pct")


def named(ends: Names, *tables: Names, stack: str = "layers") -> Names:
    """Names of the modules around the layers, and of those of each layer; later tables count.

    Parameters
    ----------
    ends, *tables : Names
    stack : str
        What the folder calls the list of layers.
    """
    made = dict(ends)
    for name, to in {name: to for table in tables for name, to in table.items()}.items():
        parts = (
            {f"blk.*.{part}": change for part, change in to.items()}
            if not isinstance(to, str)
            else {}
        )
        made[f"{stack}.*.{name}"] = parts or f"blk.*.{to}"
    return made


class Family:
    """Models of one kind, for one folder.

    Parameters
    ----------
    settings : Settings
        Of config.json; those of the text model where it has others.
    class_name : str
        What config.json calls the model.
    """

    architecture: ClassVar[str]
    names: ClassVar[Names]
    prefixes: ClassVar[tuple[str, ...]] = (
        "language_model.model.", "model.language_model.", "language_model.", "model.",
    )  # fmt: skip
    left_out: ClassVar[tuple[str, ...]] = ()
    """Keys that other families have and this one does not."""
    useless: ClassVar[str] = r"(?!)"
    """Expression of further tensors that nothing reads."""

    def __init__(self, settings: Settings, class_name: str) -> None:
        self.settings = settings
        self.class_name = class_name
        self.rope = rope_settings(settings)

    # What follows is replaced where a family differs.

    def keys(self) -> dict[str, Value]:
        """Keys without the architecture's name before them.

        Raises
        ------
        ModelError
            A setting is missing or of another type.
        """
        return {}

    def extra(self) -> dict[str, Values]:
        """Tensors that are made of settings, by their names in GGUF files."""
        return {}

    def all_keys(self) -> dict[str, Value]:
        """Keys that most families have, and the family's own."""
        common = {k: v for k, v in common_keys(self).items() if k not in self.left_out}
        return {**common, **self.keys()}

    def useful(self, name: str) -> bool:
        """Whether a tensor of a folder is one that models have."""
        return not _USELESS.search(name) and not re.search(self.useless, name)

    def renamed(self, name: str, values: Values) -> list[tuple[str, int | None, Values]]:
        """What becomes of a tensor of the folder.

        Parameters
        ----------
        name : str
            ``model.layers.0.mlp.experts.3.up_proj.weight``
        values : Values

        Returns
        -------
        list of (str, int or None, Values)
            Names in GGUF files, and which part of that tensor it is where it is one of several.

        Raises
        ------
        ModelError
            The family has no such tensor, or it has another shape.
        """
        module, suffix = parted(self.bare(name))
        numbers = [int(number) for number in _NUMBER.findall(module)]
        to = self.names.get(_NUMBER.sub("*", module))
        if to is None or len(numbers) > 2:
            raise ModelError(f"tensor {name!r} is none that {self.class_name} has")
        part = numbers[1] if len(numbers) == 2 else None
        changes: Mapping[str, Change | None] = {to: None} if isinstance(to, str) else to
        return [
            (_numbered(made, numbers) + suffix, part, self._changed(values, suffix, change))
            for made, change in changes.items()
        ]

    def bare(self, name: str) -> str:
        """Name without what some folders have before it."""
        prefix = next((prefix for prefix in self.prefixes if name.startswith(prefix)), "")
        return name.removeprefix(prefix)

    def _changed(self, values: Values, suffix: str, change: Change | None) -> Values:
        if change is None:
            return values
        if suffix == ".bias":  # its values are moved as the rows of its matrix are
            return flat(change(columns(values), self.settings))
        return change(values, self.settings)


def parted(name: str) -> tuple[str, str]:
    """Module and suffix: biases may end in ``_bias``, weights in nothing; scans have no suffix."""
    if name.endswith(_SCANS):
        return name, ""
    for end, suffix in ((".weight", ".weight"), (".bias", ".bias"), ("_bias", ".bias")):
        if name.endswith(end):
            return name.removesuffix(end), suffix
    return name, ".weight"


def _numbered(name: str, numbers: list[int]) -> str:
    return name.replace("*", str(numbers[0])) if numbers else name


def rope_settings(settings: Settings) -> Settings:
    """How positions rotate: of ``rope_parameters``, ``rope_scaling``, or the top of config.json."""
    name = "rope_parameters" if "rope_parameters" in settings else "rope_scaling"
    rope = settings.section(name)
    if "full_attention" in rope or "sliding_attention" in rope:
        local = rope.section("sliding_attention").value("rope_theta")
        rope = rope.section("full_attention")
    else:
        local = settings.value("rope_local_base_freq", "local_rope_theta")
    given = {
        "rope_theta": settings.value(*_ROPE_THETAS),
        "partial_rotary_factor": settings.value(*_PARTIAL),
        "original_max_position_embeddings": settings.value("original_max_position_embeddings"),
        "rope_type": rope.value("type"),
        "local_theta": local,
    }
    return Settings(
        rope.source, {**{k: v for k, v in given.items() if v is not None}, **rope.values}
    )


def common_keys(family: Family) -> dict[str, Value]:
    """Keys that most families have, of the settings that are there."""
    s = family.settings
    made: dict[str, Value] = {"block_count": layer_count(s)}
    for key, names in _UINTS.items():
        if s.value(*names) is not None:
            made[key] = s.uint(*names)
    for key, names in _FLOATS.items():
        if s.value(*names) is not None:
            made[key] = s.number(*names)
    if "head_dim" in s:
        made["attention.key_length"] = made["attention.value_length"] = s.uint("head_dim")
    return made | rope_keys(family.rope)


def layer_count(settings: Settings) -> int:
    """How many layers a model has."""
    return settings.uint("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def head_size(settings: Settings) -> int:
    """Values of a head, which config.json may leave to be computed.

    Raises
    ------
    ModelError
        The width is no multiple of the heads.
    """
    width, heads = settings.uint("hidden_size"), settings.uint("num_attention_heads")
    if "head_dim" in settings:
        return settings.uint("head_dim")
    if not heads or width % heads:
        raise settings.error("hidden_size", f"is {width}, needs a multiple of {heads} heads")
    return width // heads


def rope_keys(rope: Settings) -> dict[str, Value]:
    """Keys of how positions rotate; frequencies that differ by number are a tensor."""
    made: dict[str, Value] = {}
    kind = rope.text("rope_type", default="default")
    if kind in ("linear", "yarn") and "factor" in rope:
        made["rope.scaling.type"] = kind
        made["rope.scaling.factor"] = rope.number("factor")
    if kind == "yarn" and "factor" in rope:
        length = rope.uint("original_max_position_embeddings")
        made["rope.scaling.original_context_length"] = length
        for key, names in _YARN.items():
            if rope.value(*names) is not None:
                made[f"rope.scaling.{key}"] = rope.number(*names)
    if kind in ("su", "longrope"):
        made["rope.scaling.type"] = "longrope"
    if "rope_theta" in rope:
        made["rope.freq_base"] = rope.number("rope_theta")
    if "local_theta" in rope:
        made["rope.freq_base_swa"] = rope.number("local_theta")
    return made


def bools(values: list[bool]) -> Value:
    """An array of truth values, as files hold it."""
    return np.array(values, np.bool)


EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_UINTS = {
    "context_length": (
        "max_position_embeddings", "n_ctx", "n_positions", "max_sequence_length",
        "model_max_length",
    ),
    "embedding_length": ("hidden_size", "n_embd", "dim"),
    "feed_forward_length": ("intermediate_size", "n_inner", "hidden_dim"),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": ("num_key_value_heads", "n_kv_heads"),
    "expert_count": EXPERT_COUNTS,
    "expert_used_count": ("num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
}  # fmt: skip
_FLOATS = {
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
}
_YARN = {
    "yarn_ext_factor": ("extrapolation_factor",),
    "yarn_attn_factor": ("attention_factor", "attn_factor"),
    "yarn_beta_fast": ("beta_fast",),
    "yarn_beta_slow": ("beta_slow",),
}

_FAMILIES: dict[str, type[Family]] = {}
F = TypeVar("F", bound=type[Family])


def family(*class_names: str) -> Callable[[F], F]:
    """Register a family under names that config.json's ``architectures`` may have."""

    def register(made: F) -> F:
        for name in class_names:
            if name in _FAMILIES:
                raise ValueError(f"family {name}: registered already")
            _FAMILIES[name] = made
        return made

    return register


def families() -> dict[str, type[Family]]:
    """Every known family by class name; found by listing the folder."""
    package = import_module(f"{__package__}.families")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_FAMILIES.items()))


def family_of(settings: Settings) -> Family:
    """Family of the model that a config.json describes.

    Raises
    ------
    ModelError
        It names no class, or one that is unknown.
    """
    names = settings.texts("architectures")
    known = families()
    kind = next((known[name] for name in names if name in known), None)
    if kind is None:
        raise settings.error(
            "architectures", f"names {', '.join(names) or 'nothing'}; known are {', '.join(known)}"
        )
    inner = settings.section("text_config")
    text = Settings(settings.source, {**settings.values, **inner.values})
    return kind(text, next(name for name in names if name in known))
