"""Models on several nodes: a replica on each, or one model with its layers on several.

`link` connects to a worker on another node, `opener` opens models there, and `replicas` routes
requests to the workers. `stages` has the executor of a model's layers on another node, `graphs`
what it sends, and `worker.stage` the process there. `files` finds a node's copies of files.
"""
