"""The local model store, in Ollama's layout.

`names` parses names, `store` has manifests and blobs, `modelfile` reads and writes Modelfiles,
`stored` opens and creates models, `pull` and `push` exchange them with registries.
"""
