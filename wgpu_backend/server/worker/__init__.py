"""A model in its own process, so that a driver crash does not end the server.

::

    server's process                              worker's process
    WorkerEngine ─ Client ─ Channel ══ socket pair ══ Outbox ─ Service ─ Engine, LanguageModel

A driver may end its process on any submit after the loss of a device. So only the worker uses a
device; templates, the tokenizer and keys of the model's file are in both processes.

`frames.py` encodes messages for the socket, `messages.py` defines their content. `process.py` and
`service.py` are the worker; `channel.py` starts one and reports its exit, `spare.py` starts one in
advance, `client.py` tracks pending requests, `remote.py` has the model and the engine that a server
uses. Images have a process of their own: `pictures.py` is its server side, `pictures_process.py`
the process, `orders.py` its messages. `health.py` counts losses of devices, `opening.py` opens
models on healthy ones, `estimate.py` estimates the memory of a model.
"""
