"""A server that Ollama's and OpenAI's clients speak to.

`app.py` puts it together; `api/` has the routes by API, `core/access.py` checks host, origin and
key, `core/model_pool.py` loads and unloads models, `core/completion.py` is what all routes that
make text share. `worker/` runs each model in a process.
"""
