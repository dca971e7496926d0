"""Layouts of weights in textures, in the order in which lanes of a rasteriser read them."""
