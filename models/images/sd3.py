"""The transformer of Stable Diffusion 3 and 3.5.

Esser et al. 2024, "Scaling Rectified Flow Transformers", §4 and figure 2; for norms that
the timestep shifts and scales, Peebles & Xie 2023, "Scalable Diffusion Models with Transformers",
§3.2.

Latents are (n, height, width, channels). Text and image attend to each other as one sequence, with
separate weights.
"""

from __future__ import annotations

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.errors import ShapeError
from wgpu_backend.files.huggingface.settings import Settings

from .blocks import FeedForward, TimeEmbedding
from .networks import Denoiser

# Epsilon of all norms.
EPS = 1e-6
# Width of a timestep's sinusoids.
SINUSOIDS = 256


class Modulated(nn.Module):
    """A norm without weights, and the timestep's vectors: shifts, scales and gates.

    Parameters
    ----------
    count : int
        Number of vectors.
    """

    def __init__(self, width: int, count: int) -> None:
        self.linear = nn.Linear(width, count * width)
        self.norm = nn.LayerNorm(width, EPS, affine=False)
        self._count = count

    def vectors(self, time: wx.Array) -> list[wx.Array]:
        """Return the vectors, (n, 1, width) each, of timesteps (n, width)."""
        return self.linear(nn.silu(time))[:, None].split(self._count, axis=-1)


def modulate(x: wx.Array, shift: wx.Array, scale: wx.Array) -> wx.Array:
    """Normalise tokens, then scale and shift them."""
    return x * (1.0 + scale) + shift


class Projections(nn.Module):
    """Attention of image tokens, to those of a text as well if there are any."""

    def __init__(
        self, width: int, heads: int, *, joint: bool, text_goes_on: bool, normed: bool
    ) -> None:
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.to_out = [nn.Linear(width, width)]
        self.norm_q, self.norm_k = _norms(width // heads, normed)
        if joint:
            self.add_q_proj, self.add_k_proj, self.add_v_proj = (
                nn.Linear(width, width) for _ in range(3)
            )
            self.norm_added_q, self.norm_added_k = _norms(width // heads, normed)
        self.to_add_out = nn.Linear(width, width) if joint and text_goes_on else None
        self._heads = heads

    def attend_image(self, x: wx.Array) -> wx.Array:
        """Attend among image tokens."""
        y = nn.attend(*self._project_image(x))
        return self.to_out[0](y.reshape(x.shape))

    def attend_both(self, x: wx.Array, text: wx.Array) -> tuple[wx.Array, wx.Array | None]:
        """Attend from image and text to both."""
        parts = zip(self._project_image(x), self._project_text(text), strict=True)
        n, tokens, width = x.shape
        y = nn.attend(*(wx.concat(pair, axis=1) for pair in parts))
        y = y.reshape(n, tokens + text.shape[1], width)
        of_text = None if self.to_add_out is None else self.to_add_out(y[:, tokens:])
        return self.to_out[0](y[:, :tokens]), of_text

    def _project_image(self, x: wx.Array) -> tuple[wx.Array, wx.Array, wx.Array]:
        q, k, v = (self._split_heads(p(x)) for p in (self.to_q, self.to_k, self.to_v))
        return self.norm_q(q), self.norm_k(k), v

    def _project_text(self, x: wx.Array) -> tuple[wx.Array, wx.Array, wx.Array]:
        q, k, v = (
            self._split_heads(p(x)) for p in (self.add_q_proj, self.add_k_proj, self.add_v_proj)
        )
        return self.norm_added_q(q), self.norm_added_k(k), v

    def _split_heads(self, x: wx.Array) -> wx.Array:
        n, tokens, width = x.shape
        return x.reshape(n, tokens, self._heads, width // self._heads)


def _norms(width: int, normed: bool) -> list[nn.RMSNorm | nn.Identity]:
    """Make the norms of queries and keys, which 3.5 has."""
    return [nn.RMSNorm(width, EPS) if normed else nn.Identity() for _ in range(2)]


class JointBlock(nn.Module):
    """Attention of image and text to both, and a feed-forward network for each.

    Parameters
    ----------
    last : bool
        Whether it is the last block, which does not change the text.
    dual : bool
        Whether image tokens have a second self-attention, as in 3.5 medium.
    normed : bool
        Whether queries and keys are normalised.
    """

    def __init__(self, width: int, heads: int, *, last: bool, dual: bool, normed: bool) -> None:
        self.norm1 = Modulated(width, 9 if dual else 6)
        self.norm1_context = Modulated(width, 2 if last else 6)
        self.attn = Projections(width, heads, joint=True, text_goes_on=not last, normed=normed)
        self.attn2 = (
            Projections(width, heads, joint=False, text_goes_on=False, normed=normed)
            if dual
            else None
        )
        self.norm2 = nn.LayerNorm(width, EPS, affine=False)
        self.ff = FeedForward(width, "gelu-approximate")
        self.norm2_context = nn.LayerNorm(width, EPS, affine=False)
        self.ff_context = None if last else FeedForward(width, "gelu-approximate")

    def __call__(self, x: wx.Array, text: wx.Array, time: wx.Array) -> tuple[wx.Array, wx.Array]:
        """Map image and text, each (n, tokens, width), to the same shapes."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate, *second = self.norm1.vectors(time)
        plain = self.norm1.norm(x)
        given, vectors = self._modulate_text(text, time)
        y, of_text = self.attn.attend_both(modulate(plain, shift, scale), given)
        x = x + gate * y
        if self.attn2 is not None:
            shift2, scale2, gate2 = second
            x = x + gate2 * self.attn2.attend_image(modulate(plain, shift2, scale2))
        x = x + mlp_gate * self.ff(modulate(self.norm2(x), mlp_shift, mlp_scale))
        if self.ff_context is None or of_text is None:
            return x, text
        gate, mlp_shift, mlp_scale, mlp_gate = vectors
        text = text + gate * of_text
        y = self.ff_context(modulate(self.norm2_context(text), mlp_shift, mlp_scale))
        return x, text + mlp_gate * y

    def _modulate_text(self, text: wx.Array, time: wx.Array) -> tuple[wx.Array, list[wx.Array]]:
        """Return the modulated text, and the remaining vectors."""
        vectors = self.norm1_context.vectors(time)
        # The last block has scale and shift in the reverse order.
        if self.ff_context is None:
            vectors = vectors[::-1]
        shift, scale, *left = vectors
        return modulate(self.norm1_context.norm(text), shift, scale), left


class TimeAndText(nn.Module):
    """The embedding of timestep and pooled text as one vector."""

    def __init__(self, width: int, pooled: int) -> None:
        self.timestep_embedder = TimeEmbedding(SINUSOIDS, width)
        self.text_embedder = TimeEmbedding(pooled, width)

    def __call__(self, timestep: wx.Array, pooled: wx.Array) -> wx.Array:
        """Map (n,) and (n, pooled) to (n, width)."""
        times = nn.timestep_embedding(timestep, SINUSOIDS, True, 0)
        return self.timestep_embedder(times) + self.text_embedder(pooled)


class Patches(nn.Module):
    """The embedding of patches, and their positions: the middle of a stored table."""

    def __init__(self, channels: int, width: int, patch: int, places: int) -> None:
        self.proj = nn.Conv2d(channels, width, patch, stride=patch)
        self.pos_embed = wx.zeros((1, places * places, width))
        self._places = places

    def __call__(self, x: wx.Array) -> wx.Array:
        """Map (n, height, width, channels) to (n, patches, width)."""
        y = self.proj(x)
        n, height, width, cols = y.shape
        y = y.reshape(n, height * width, cols)
        return y + self._crop_middle(height, width).reshape(1, height * width, cols)

    def _crop_middle(self, height: int, width: int) -> wx.Array:
        side = self._places
        if max(height, width) > side:
            raise ShapeError(
                f"sd3: a picture of {height} x {width} patches, needs at most {side} along a side"
            )
        top, left = (side - height) // 2, (side - width) // 2
        table = self.pos_embed.reshape(side, side, self.pos_embed.shape[-1])
        return table[top : top + height, left : left + width].astype("f32")


@nn.published("SD3Transformer2DModel")
class SD3Transformer(Denoiser):
    """Stable Diffusion 3, which predicts the velocity of latents at a timestep.

    Attributes
    ----------
    outputs : int
        Channels of the result.
    """

    def __init__(self, settings: Settings) -> None:
        heads = settings.uint("num_attention_heads")
        width = heads * settings.uint("attention_head_dim")
        self.channels = settings.uint("in_channels", default=16)
        self.outputs = settings.uint("out_channels", default=self.channels)
        self.patch = settings.uint("patch_size", default=2)
        places = settings.uint("pos_embed_max_size", default=96)
        normed = _is_normed(settings)
        self.pos_embed = Patches(self.channels, width, self.patch, places)
        self.time_text_embed = TimeAndText(width, settings.uint("pooled_projection_dim"))
        self.context_embedder = nn.Linear(
            settings.uint("joint_attention_dim"), settings.uint("caption_projection_dim")
        )
        layers = settings.uint("num_layers")
        dual = settings.uints("dual_attention_layers", default=[])
        self.transformer_blocks = [
            JointBlock(width, heads, last=i == layers - 1, dual=i in dual, normed=normed)
            for i in range(layers)
        ]
        self.norm_out = Modulated(width, 2)
        self.proj_out = nn.Linear(width, self.patch**2 * self.outputs)

    def __call__(
        self, x: wx.Array, timestep: wx.Array, text: wx.Array, pooled: wx.Array
    ) -> wx.Array:
        """Predict the velocity.

        Parameters
        ----------
        x : (n, height, width, channels)
        timestep : (n,), 0 to 1000
        text : (n, tokens, width)
        pooled : (n, width)

        Returns
        -------
        (n, height, width, outputs)
        """
        n, height, width, _ = x.shape
        time = self.time_text_embed(timestep, pooled)
        tokens, text = self.pos_embed(x), self.context_embedder(text)
        for block in self.transformer_blocks:
            tokens, text = block(tokens, text, time)
        # The last norm has the scale first, as that of the last block's text.
        scale, shift = self.norm_out.vectors(time)
        rows = self.proj_out(modulate(self.norm_out.norm(tokens), shift, scale))
        p = self.patch
        patches = rows.reshape(n, height // p, width // p, p, p, self.outputs)
        return wx.permute_dims(patches, (0, 1, 3, 2, 4, 5)).reshape(n, height, width, self.outputs)


def _is_normed(settings: Settings) -> bool:
    kind = settings.text("qk_norm", default="")
    if kind not in ("", "rms_norm"):
        raise settings.error("qk_norm", f"is {kind!r}, known is 'rms_norm'")
    return bool(kind)
