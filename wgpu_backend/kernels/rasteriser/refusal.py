"""What ops need that only rasterisers have kernels for."""

from wgpu_backend.kernels.refusal import no_kernel as no_kernel

SHUFFLES = "a rasteriser whose lanes shuffle values"
TEXTURES = f"{SHUFFLES}, and a weight that lies in one texture of it"
