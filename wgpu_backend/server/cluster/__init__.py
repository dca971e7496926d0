"""Replicas of a model on several nodes, as one engine.

`link` connects to a worker on another node, `replicas` routes requests to the workers, and
`ray_nodes` finds nodes and starts their listeners with Ray.
"""
