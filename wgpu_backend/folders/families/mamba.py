"""Mamba, Falcon Mamba, Mamba 2."""

from __future__ import annotations

from typing import ClassVar

from wgpu_backend.config import Value
from wgpu_backend.folders.arrangements import columns, shaped
from wgpu_backend.folders.family import Family, Names, family, named
from wgpu_backend.folders.settings import Settings
from wgpu_backend.folders.values import Values, negative_exponentials


def decays(x: Values, settings: Settings) -> Values:
    """Rates of decay, below 0."""
    return negative_exponentials(x)


def decays_of_heads(x: Values, settings: Settings) -> Values:
    """One rate a head."""
    return negative_exponentials(columns(x))


def of_heads(x: Values, settings: Settings) -> Values:
    """One factor a head."""
    return columns(x)


def channels(x: Values, settings: Settings) -> Values:
    """Filters of channels without the axis of one; biases as they are."""
    return x if x.cols == 1 else shaped(x, x.shape[0], x.cols)


def in_groups(x: Values, settings: Settings) -> Values:
    """Weights of the norm, group by group."""
    groups = settings.uint("n_groups", default=1)
    return shaped(x, groups, x.cols // max(groups, 1))


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
    """State spaces and nothing else, so any number of positions."""

    architecture = "mamba"
    prefixes = ("backbone.", "model.backbone.", "model.")
    left_out = ("attention.layer_norm_epsilon", "attention.key_length", "attention.value_length")
    normalised: ClassVar[bool] = False
    names = named(ENDS, LAYER, {"mixer.x_proj": "ssm_x", "mixer.dt_proj": "ssm_dt"})

    def keys(self) -> dict[str, Value]:
        """Sizes of states."""
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
            "ssm.inner_size": s.uint("intermediate_size", "d_inner", default=2 * width),
        }


@family("FalconMambaForCausalLM")
class FalconMamba(Mamba):
    """Normalises what a token selects."""

    normalised = True


@family("Mamba2ForCausalLM")
class Mamba2(Mamba):
    """Heads with one decay each."""

    architecture = "mamba2"
    names = named(
        ENDS,
        LAYER,
        {
            "mixer.dt": "ssm_dt",
            "mixer.A_log": {"ssm_a": decays_of_heads},
            "mixer.D": {"ssm_d": of_heads},
            "mixer.norm": {"ssm_norm": in_groups},
        },
    )

    def keys(self) -> dict[str, Value]:
        """Sizes of states and heads.

        Raises
        ------
        ModelError
            The width inside is no multiple of a head.
        """
        s = self.settings
        width, size = s.uint("hidden_size", "d_model"), s.uint("head_dim", default=64)
        inner = s.uint("expand", default=2) * width
        if not size or inner % size:
            raise s.error("head_dim", f"is {size}, the width inside is {inner}, needs a divisor")
        return {
            **self._all_mambas(width),
            "ssm.inner_size": inner,
            "ssm.state_size": s.uint("state_size", "d_state", default=128),
            "ssm.time_step_rank": inner // size,
            "ssm.group_count": s.uint("n_groups", default=1),
        }
