"""Backend, Context and Tensor: the three interfaces that models are written against."""
