"""`wgpu-backend serve`.

`options` declares the options in groups, `command` takes them, `server` builds the server, and
`loads` has the functions with which the server loads models in worker processes.
"""
