#!/bin/sh
# Strands Agents: its model for llama.cpp loses all text of a server that sends `"usage": null`
#
# Version: strands-agents 1.62.0. It asks for counts of tokens (`stream_options.include_usage`). OpenAI
# describes that all pieces before the last then have `"usage": null`; llama-server leaves the field
# out. The client takes each piece that has the field for the last one and skips its text, so that
# the answer is empty, without an error. Whoever points it at a server that follows OpenAI meets this.
. "$(dirname "$0")/common.sh"
install strands-agents==1.62.0
expect "without the field: 'Hello there'
null: ''" <<'END'
import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from strands import Agent
from strands.models.llamacpp import LlamaCppModel

logging.disable(logging.CRITICAL)
COUNTS = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


class Server(BaseHTTPRequestHandler):
    extra = {}

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta, reason in (
            ({"role": "assistant", "content": "Hello"}, None),
            ({"content": " there"}, None),
            ({}, "stop"),
        ):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            self.send({"choices": [choice], **self.extra})
        self.send({"choices": [], "usage": COUNTS})
        self.wfile.write(b"data: [DONE]\n\n")

    def send(self, piece):
        head = {"id": "a", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        self.wfile.write(f"data: {json.dumps({**head, **piece})}\n\n".encode())

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
for name, extra in (("without the field", {}), ("null", {"usage": None})):
    Server.extra = extra
    model = LlamaCppModel(base_url=f"http://127.0.0.1:{server.server_port}")
    said = str(Agent(model=model, callback_handler=None)("Hi"))
    print(f"{name}:", repr(said.strip()))
END
