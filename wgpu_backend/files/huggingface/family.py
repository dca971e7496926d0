"""Model families: names of tensors and settings in checkpoints, and their names in GGUF files.

A family is a class with tables, in a file of `families/`; related families inherit from each other.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import ClassVar, TypeVar

from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.rope import has_factors, rope_factors, rope_keys, rope_settings
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.shared_settings import activation_key, layer_count, window_keys
from wgpu_backend.files.huggingface.transforms import as_columns, flatten_columns
from wgpu_backend.files.huggingface.values import Values

Change = Callable[[Values, Settings], Values]
Names = Mapping[str, str | Mapping[str, Change]]
"""GGUF module names by checkpoint names, ``*`` for numbers; several with changes if split."""

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
# Buffers that are computed here, and towers for pictures and sound.
_USELESS = re.compile(
    r"rotary_emb\.inv_freq$|position_ids$|\.attn\.(masked_)?bias$|\.attention\.(masked_)?bias$"
    r"|^(model\.)?(vision|visual|audio|multi_modal|connector\.|image_newline$|embed_vision|embed_audio)"
    r"|vision_tower|^pooler\.|mm_projector|^vpm\.|^resampler\."
)
# Parameters that have no suffix in GGUF files, either: of scans, and of gates of layers.
_PLAIN = (".A_log", ".D", "_attn_gate", "_mlp_gate")
_ALIASES = (
    ("rope_theta", "rotary_emb_base", "global_rope_theta"),
    ("partial_rotary_factor", "rotary_pct", "rope_pct"),
    ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
)


def make_names(ends: Names, *tables: Names, stack: str = "layers") -> Names:
    """Combine the names of modules around the layers with those of each layer.

    Parameters
    ----------
    ends, *tables : Names
        Names around the layers, and per layer; later tables override earlier ones.
    stack : str
        The folder's name of the list of layers.
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
    """The conversion of one checkpoint; each subclass handles a family of models.

    Parameters
    ----------
    settings : Settings
        Settings of config.json, or those of its text model.
    class_name : str
        Name of the model's class in config.json.
    """

    architecture: ClassVar[str]
    names: ClassVar[Names]
    prefixes: ClassVar[tuple[str, ...]] = (
        "language_model.model.", "model.language_model.", "language_model.", "model.text_model.",
        "llm.model.", "llm.", "model.",
    )  # fmt: skip
    left_out: ClassVar[tuple[str, ...]] = ()
    """Keys of other families that this one omits."""
    useless: ClassVar[str] = r"(?!)"
    """A regular expression of further unused tensors."""
    defaults: ClassVar[Mapping[str, object]] = {}
    """Defaults of transformers for settings missing in config.json."""
    by_class: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    """Defaults of one class of a family; they override `defaults`."""
    harmless: ClassVar[tuple[str, ...]] = ()
    """Settings that transformers ignores, or that change no number."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Settings that this class of transformers does not read, although others do."""
    needed: ClassVar[Mapping[str, object]] = {}
    """Settings for which only one value is supported."""
    activation: ClassVar[str | None] = "silu"
    """The default activation; None if it is fixed."""
    activation_settings: ClassVar[tuple[str, ...]] = ("hidden_act",)
    biases: ClassVar[Mapping[str, str]] = {
        "attention_bias": r"self_attn\.\w+_proj\.bias$",
        "mlp_bias": r"mlp\..*_proj\.bias$",
    }
    """Regular expressions of the biases that are unused if these settings are false."""
    is_partial: ClassVar[bool] = False
    """Whether only a part of each head may be rotated."""
    has_local_rope: ClassVar[bool] = False
    """Whether layers with a window have a separate rotation."""
    spare_tokens: ClassVar[int] = 0
    """Rows of the embedding after ``vocab_size``, for tokens that are only read."""
    default_rope: ClassVar[Mapping[str, object]] = {}
    """Rotary settings of transformers for a config.json that has none."""

    def __init__(self, settings: Settings, class_name: str) -> None:
        # Checkpoints leave out what equals the default of the class in transformers.
        usual = {**self.defaults, **self.by_class.get(class_name, {})}
        given = {k: v for k, v in settings.values.items() if k not in self.ignored}
        values = {**{k: v for k, v in usual.items() if not _has_setting(given, k)}, **given}
        self.settings = Settings(settings.source, values, settings.asked)
        self.class_name = class_name
        self.rope = rope_settings(self.settings, local=self.has_local_rope, usual=self.default_rope)
        off = [flag for flag in self.biases if not self.settings.flag(flag, default=True)]
        self._without = re.compile("|".join(self.biases[flag] for flag in off) or r"(?!)")

    # The following methods are overridden by families that differ.

    def keys(self) -> dict[str, Value]:
        """Return the family's own keys, without the architecture's prefix.

        Raises
        ------
        ModelError
            A setting is missing or of another type.
        """
        return {}

    def extra(self) -> dict[str, Values]:
        """Return tensors that are computed from settings, by their names in GGUF files."""
        return rope_factors(self.rope, self.rotary_size) if has_factors(self.rope) else {}

    def slides(self) -> list[bool]:
        """Return which layers have a window; empty for a family without windows."""
        return []

    @property
    def rotary_size(self) -> int:
        """Return the number of rotated values of a head.

        Raises
        ------
        ModelError
            A part of the head is rotated, and models of the family rotate all of it.
        """
        share = self.rope.number("partial_rotary_factor", default=1.0)
        if share != 1 and not self.is_partial:
            raise self.rope.error(
                "partial_rotary_factor", f"is {share}, {self.class_name} rotates whole heads"
            )
        return int(share * head_size(self.settings))

    @property
    def tokenizer_settings(self) -> Settings:
        """Return the settings, with all rows of the embedding as ``vocab_size``."""
        if not self.spare_tokens:
            return self.settings
        rows = self.settings.uint("vocab_size") + self.spare_tokens
        values = {**self.settings.values, "vocab_size": rows}
        return Settings(self.settings.source, values, self.settings.asked)

    @property
    def is_tied(self) -> bool:
        """Return whether the embedding is the output, too, even if there is an output tensor."""
        return self.settings.flag("tie_word_embeddings", default=False)

    def all_keys(self) -> dict[str, Value]:
        """Return the keys that most families have, and the family's own.

        Raises
        ------
        ModelError
            A setting is missing, of another type, or not supported.
        """
        for name, value in self.needed.items():
            found = self.settings.value(name)
            if found is not None and found != value:
                raise self.settings.error(name, f"is {found!r}, needs {value!r}")
        common = {k: v for k, v in common_keys(self).items() if k not in self.left_out}
        return {**common, **self.keys()}

    def useful(self, name: str) -> bool:
        """Return whether the model uses a tensor of the folder."""
        if _USELESS.search(name) or re.search(self.useless, name):
            return False
        module, suffix = split_suffix(self.bare(name))
        if self.is_tied and suffix == ".weight" and self.names.get(module) == "output":
            return False
        if self._without.search(name):
            warnings.warn(
                f"{self.settings.source}: its settings exclude biases of this kind: "
                f"tensor {name!r} is left out",
                stacklevel=4,
            )
            return False
        return True

    def rename(self, name: str, values: Values) -> list[tuple[str, int | None, Values]]:
        """Return the GGUF tensors that a tensor of the folder becomes.

        Parameters
        ----------
        name : str
            ``model.layers.0.mlp.experts.3.up_proj.weight``
        values : Values
            Values of the tensor.

        Returns
        -------
        list of (str, int or None, Values)
            Names in GGUF files, and the number of the part if it is one of several of that tensor.

        Raises
        ------
        ModelError
            The family has no such tensor, or it has another shape.
        """
        module, suffix = split_suffix(self.bare(name))
        numbers = [int(number) for number in _NUMBER.findall(module)]
        to = self.names.get(_NUMBER.sub("*", module))
        if to is None or len(numbers) > 2:
            raise ModelError(f"unexpected tensor {name!r} for {self.class_name}")
        # The first number is a layer's, the second an expert's.
        part = numbers[1] if len(numbers) == 2 else None
        changes: Mapping[str, Change | None] = {to: None} if isinstance(to, str) else to
        return [
            (_fill_number(made, numbers) + suffix, part, self._apply(values, suffix, change))
            for made, change in changes.items()
        ]

    def bare(self, name: str) -> str:
        """Return a name without the prefix that some folders have."""
        prefix = next((prefix for prefix in self.prefixes if name.startswith(prefix)), "")
        return name.removeprefix(prefix)

    def _apply(self, values: Values, suffix: str, change: Change | None) -> Values:
        if change is None:
            return values
        # A bias is reordered like the rows of its matrix.
        if suffix == ".bias":
            return flatten_columns(change(as_columns(values), self.settings))
        return change(values, self.settings)


def split_suffix(name: str) -> tuple[str, str]:
    """Split a name into module and suffix; a bias may end in ``_bias``, `_PLAIN` have none."""
    if name.endswith(_PLAIN):
        return name, ""
    for end, suffix in ((".weight", ".weight"), (".bias", ".bias"), ("_bias", ".bias")):
        if name.endswith(end):
            return name.removesuffix(end), suffix
    return name, ".weight"


def _has_setting(given: Mapping[str, object], name: str) -> bool:
    """Return whether settings have a key or an alias of it."""
    group = next((names for names in _ALIASES if name in names), (name,))
    return any(alias in given for alias in group)


def _fill_number(name: str, numbers: list[int]) -> str:
    return name.replace("*", str(numbers[0])) if numbers else name


def common_keys(family: Family) -> dict[str, Value]:
    """Return the keys that most families have, from the settings that are present."""
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
    if family.activation is not None:
        made |= activation_key(s, family.activation_settings, family.activation)
    if "partial_rotary_factor" in family.rope:
        made["rope.dimension_count"] = family.rotary_size
    made |= window_keys(s, family.slides())
    return made | rope_keys(family.rope, s)


def head_size(settings: Settings) -> int:
    """Return the size of a head, computed if config.json omits it.

    Raises
    ------
    ModelError
        The width is not a multiple of the heads.
    """
    width, heads = settings.uint("hidden_size"), settings.uint("num_attention_heads")
    if "head_dim" in settings:
        return settings.uint("head_dim")
    if not heads or width % heads:
        raise settings.error("hidden_size", f"is {width}, needs a multiple of {heads} heads")
    return width // heads


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
_FAMILIES: dict[str, type[Family]] = {}
F = TypeVar("F", bound=type[Family])


def family(*class_names: str) -> Callable[[F], F]:
    """Register a family under class names of config.json's ``architectures``."""

    def register(made: F) -> F:
        for name in class_names:
            if name in _FAMILIES:
                raise ValueError(f"family {name}: registered already")
            _FAMILIES[name] = made
        return made

    return register


def families() -> dict[str, type[Family]]:
    """Return every known family by class name, found by listing the folder."""
    package = import_module(f"{__package__}.families")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_FAMILIES.items()))


# Models of several modes whose language model is another class: `text_config.model_type`.
_WRAPPERS = {
    "Idefics3ForConditionalGeneration", "InternVLForConditionalGeneration",
    "LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration",
    "KimiK25ForConditionalGeneration", "KimiVLForConditionalGeneration",
    "Kimi_K25ForConditionalGeneration", "Mistral3ForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
}  # fmt: skip
_TEXT_CLASSES = {
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
# The language model of a version of MiniCPM-V, whose settings have no section of their own.
_MINICPM_CLASSES = {
    "2.5": "LlamaForCausalLM",
    "2.6": "Qwen2ForCausalLM",
    "4.0": "LlamaForCausalLM",
    "4.5": "Qwen3ForCausalLM",
}
# What transformers takes for settings that published files of LLaVA leave out.
_TEXT_DEFAULTS: dict[str, dict[str, object]] = {
    "llama": {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
        "vocab_size": 32000,
    },
    "mistral": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6, "vocab_size": 32000,
    },
}  # fmt: skip


def find_family(settings: Settings) -> Family:
    """Return the family of the model that a config.json describes.

    Raises
    ------
    ModelError
        It names no class, or an unknown one.
    """
    names = settings.texts("architectures")
    known = families()
    # Models of several modes have the language model's settings in a section of their own.
    inner = settings.section("text_config" if "text_config" in settings else "language_config")
    if "MiniCPMV" in names:
        names = [_MINICPM_CLASSES.get(str(settings.value("version")), "MiniCPMV")]
    if set(names) & _WRAPPERS:
        asked = inner.text("model_type", default="llama")
        names, usual = [_TEXT_CLASSES.get(asked, asked)], _TEXT_DEFAULTS.get(asked, {})
        inner = Settings(inner.source, {**usual, **inner.values}, inner.asked)
    kind = next((known[name] for name in names if name in known), None)
    if kind is None:
        raise settings.error(
            "architectures",
            f"names {', '.join(names) or 'nothing'}; needs one of {', '.join(known)}",
        )
    text = Settings(settings.source, {**settings.values, **inner.values})
    return kind(text, next(name for name in names if name in known))
