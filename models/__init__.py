"""One architecture a file; each reads like its paper. Files are found by listing this folder."""
