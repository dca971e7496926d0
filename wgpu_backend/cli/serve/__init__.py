"""`wgpu-backend serve`.

Options are declared in groups, each a frozen dataclass in a file of its own with its checks:
`listening`, `own_model`, `engine`, `shown`. `command` makes a server of them.
"""
