"""Pictures from text: folders of pipelines, their tokenizers, schedulers and pictures.

::

    from wgpu_backend import images

    with images.load("folder") as pipeline:
        pipeline.generate("a red circle", seed=1).images[0].save("circle.png")
"""

from wgpu_backend.images.loading import load
from wgpu_backend.images.requests import Generated, Step

__all__ = ["Generated", "Step", "load"]
