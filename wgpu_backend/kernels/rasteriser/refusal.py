"""The refusal of ops for which only rasterisers have kernels."""

from wgpu_backend.kernels.refusal import no_kernel as no_kernel

SHUFFLES = "a rasteriser whose lanes shuffle values"
TEXTURES = f"{SHUFFLES}, and a weight that lies in one texture of it"
