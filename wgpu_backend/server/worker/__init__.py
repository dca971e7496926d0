"""A model in its own process, so that a driver crash does not end the server.

::

    server's process                              worker's process
    WorkerEngine ─ Client ─ Channel ══ socket pair ══ EventSender ─ Service ─ Engine, LanguageModel

A driver may end its process on any submit after the loss of a device. So only the worker uses a
device; templates, the tokenizer and keys of the model's file are in both processes.

`frames.py` encodes messages for the socket, `messages.py` converts requests and events to plain
data and back. `process.py` is the worker, `event_sender.py` its sending thread. `channel.py` starts
a worker and reports its exit, `spare.py` starts one in advance, `client.py` has pending requests.
`remote.py` has the model and the engine that a server uses, and opens models on healthy devices.
Images and speech have a process each: `image_worker.py` is the server side of both, `job_runner.py`
what the processes share, `image_process.py` and `speech_process.py` are the processes,
`image_messages.py` and `speech_messages.py` their messages. `health.py` counts losses of devices,
`estimate.py` estimates the memory of a model.
"""
