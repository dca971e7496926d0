"""Models on this machine, in Ollama's layout, and how they come there.

`names` checks names, `store` has manifests and blobs, `modelfile` reads and writes Modelfiles,
`stored` makes and opens models, `pull` brings them from registries.
"""
