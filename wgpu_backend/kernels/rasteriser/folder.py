"""The folder of this family's shaders, below `shaders/`."""

FOLDER = "kernels/rasteriser"
LIB = f"{FOLDER}/lib"
EPILOGUE = f"{FOLDER}/epilogue"
