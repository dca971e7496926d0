"""A model in its own process, so that a driver crash does not end the server.

::

    server's process                              worker's process
    WorkerEngine ─ Client ─ Channel ══ socket pair ══ Outbox ─ Service ─ Engine, LanguageModel

A driver may end the process that uses it, on any submit behind the loss of a device. So what needs
a device is there alone; templates, tokenizer and keys of the model's file are in both.

`frames.py` is how messages lie on the socket, `messages.py` what is in them. `process.py` and
`service.py` are the worker; `channel.py` starts one and says how it ended, `spare.py` has one
ready before it is needed, `client.py` knows what is asked of it, `remote.py` has the model and the
engine that a server sees. Pictures are made in a process of their own: `pictures.py` has it in the
server, `pictures_process.py` is it, `orders.py` what it is asked for. `health.py` counts losses of
devices, `opening.py` opens models on those that are left, `estimate.py` says what memory one will
take.
"""
