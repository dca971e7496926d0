"""Mamba, Falcon Mamba, Mamba 2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Family, Names, family, make_names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.transforms import as_columns, reshape
from wgpu_backend.files.huggingface.values import Values, negative_exponentials


def decays(x: Values, settings: Settings) -> Values:
    """Return decay rates, below 0."""
    return negative_exponentials(x)


def head_decays(x: Values, settings: Settings) -> Values:
    """Return one decay rate per head."""
    return negative_exponentials(as_columns(x))


def head_factors(x: Values, settings: Settings) -> Values:
    """Return one factor per head."""
    return as_columns(x)


def channels(x: Values, settings: Settings) -> Values:
    """Remove the axis of length one from filters of channels; biases stay."""
    return x if x.cols == 1 else reshape(x, x.shape[0], x.cols)


def group_norm(x: Values, settings: Settings) -> Values:
    """Split the weights of the norm into groups."""
    groups = settings.uint("n_groups", default=1)
    return reshape(x, groups, x.cols // max(groups, 1))


_NO_LIMITS = (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}])
LAYER: Names = {
    "norm": "attn_norm",
    "mixer.in_proj": "ssm_in",
    "mixer.conv1d": {"ssm_conv1d": channels},
    "mixer.A_log": {"ssm_a": decays},
    "mixer.D": "ssm_d",
    "mixer.out_proj": "ssm_out",
}
ENDS: Names = {"embeddings": "token_embd", "norm_f": "output_norm", "lm_head": "output"}


@family("MambaForCausalLM", "MambaLMHeadModel")
class Mamba(Family):
    """A state-space model without attention, for any number of positions."""

    architecture = "mamba"
    biases: ClassVar[Mapping[str, str]] = {
        "use_bias": r"(in_proj|out_proj)\.bias$",
        "use_conv_bias": r"conv1d\.bias$",
    }
    prefixes = ("backbone.", "model.backbone.", "model.")
    left_out = ("attention.layer_norm_epsilon", "attention.key_length", "attention.value_length")
    normalised: ClassVar[bool] = False
    activation = None
    defaults: ClassVar[Mapping[str, object]] = {"tie_word_embeddings": True}
    needed: ClassVar[Mapping[str, object]] = {"hidden_act": "silu"}
    names = make_names(ENDS, LAYER, {"mixer.x_proj": "ssm_x", "mixer.dt_proj": "ssm_dt"})

    def keys(self) -> dict[str, Value]:
        """Return sizes of states."""
        s = self.settings
        width = s.uint("hidden_size", "d_model")
        return {
            **self._all_mambas(width),
            "ssm.state_size": s.uint("state_size", "d_state", default=16),
            "ssm.time_step_rank": s.uint("time_step_rank", "dt_rank", default=-(width // -16)),
            "ssm.dt_b_c_rms": self.normalised,
        }

    def _all_mambas(self, width: int) -> dict[str, Value]:
        s = self.settings
        return {
            "context_length": 1 << 20,
            "embedding_length": width,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.layer_norm_rms_epsilon": s.number(
                "layer_norm_epsilon", "rms_norm_eps", default=1e-5
            ),
            "ssm.conv_kernel": s.uint("conv_kernel", "d_conv", default=4),
            "ssm.inner_size": s.uint(
                "intermediate_size", "d_inner", default=s.uint("expand", default=2) * width
            ),
        }


@family("FalconMambaForCausalLM")
class FalconMamba(Mamba):
    """Mamba with norms of dt, B and C."""

    normalised = True

    def keys(self) -> dict[str, Value]:
        """Return Mamba's keys, and the epsilon of the norms of dt, B and C."""
        eps = self.settings.number("mixer_rms_eps", default=1e-6)
        return {**super().keys(), "ssm.dt_b_c_rms_epsilon": eps}


@family("Mamba2ForCausalLM")
class Mamba2(Mamba):
    """Mamba 2, whose heads have one decay each."""

    architecture = "mamba2"
    defaults: ClassVar[Mapping[str, object]] = {"tie_word_embeddings": False, "n_groups": 8}
    names = make_names(
        ENDS,
        LAYER,
        {
            "mixer.dt": "ssm_dt",
            "mixer.A_log": {"ssm_a": head_decays},
            "mixer.D": {"ssm_d": head_factors},
            "mixer.norm": {"ssm_norm": group_norm},
        },
    )

    def keys(self) -> dict[str, Value]:
        """Return sizes of states and heads.

        Raises
        ------
        ModelError
            The inner width is not a multiple of a head.
        """
        s = self.settings
        width, size = s.uint("hidden_size", "d_model"), s.uint("head_dim", default=64)
        inner = s.uint("expand", default=2) * width
        if size and s.uint("num_heads", default=inner // size) * size != inner:
            raise s.error(
                "num_heads", f"is not {inner} / {size}, the inner width divided by a head's width"
            )
        if s.value("time_step_limit") not in _NO_LIMITS:
            raise s.error("time_step_limit", f"is {s.value('time_step_limit')}, needs none")
        if not size or inner % size:
            raise s.error("head_dim", f"is {size}, needs a divisor of the inner width, {inner}")
        return {
            **self._all_mambas(width),
            "ssm.inner_size": inner,
            "ssm.state_size": s.uint("state_size", "d_state", default=128),
            "ssm.time_step_rank": inner // size,
            "ssm.group_count": s.uint("n_groups", default=1),
        }
