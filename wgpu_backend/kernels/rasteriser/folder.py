"""Where the shaders of this family are, below `shaders/`."""

FOLDER = "kernels/rasteriser"
LIB = f"{FOLDER}/lib"
EPILOGUE = f"{FOLDER}/epilogue"
