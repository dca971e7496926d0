"""A server that Ollama's and OpenAI's clients speak to.

`app` puts it together; `ollama`, `library` and `openai` have the routes, `guard` keeps strangers
out, `pool` loads and unloads models, `answering` is what all routes that make text share.
"""
