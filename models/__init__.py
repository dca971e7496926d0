"""One architecture a file; each reads like its paper. Files are found by listing this folder.

What a model of one's own may be made of, too, has a name here.
"""

from .llama import MLP, Layer, Llama, Options, SelfAttention

__all__ = ["MLP", "Layer", "Llama", "Options", "SelfAttention"]
