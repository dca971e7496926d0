"""A registry on this machine that serves models, well or badly."""

import hashlib
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KIND = "application/vnd.ollama.image."


class Registry:
    """One model, `me/model:tag`, of some blobs; `fault` says what goes wrong with blobs."""

    def __init__(self, *contents: bytes) -> None:
        self.blobs = {f"sha256:{hashlib.sha256(c).hexdigest()}": c for c in contents}
        kinds = ["model", "params", "license"]
        layers = [
            {"mediaType": KIND + kinds[i], "digest": digest, "size": len(content)}
            for i, (digest, content) in enumerate(self.blobs.items())
        ]
        config = b'{"model_format": "gguf"}'
        digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
        self.blobs[digest] = config
        kind = "application/vnd.docker.container.image.v1+json"
        entry = {"mediaType": kind, "digest": digest, "size": len(config)}
        self.manifest = json.dumps({"schemaVersion": 2, "config": entry, "layers": layers}).encode()
        self.fault = ""
        self.asked: list[str] = []
        self.sent: Counter[str] = Counter()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    @property
    def name(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/me/model:tag"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def _handler(registry):  # noqa: C901
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                if self.path == "/v2/me/model/manifests/tag":
                    self.answer(200, registry.manifest)
                elif (digest := self.path.rpartition("/")[2]) in registry.blobs:
                    self.blob(digest, registry.blobs[digest])
                else:
                    self.answer(404, b"{}")

            def blob(self, digest: str, content: bytes) -> None:
                asked = self.headers.get("Range", "")
                registry.asked.append(f"{digest} {asked}")
                fault, found = registry.fault, re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
                if fault == "no ranges" or found is None:
                    self.answer(200, content)
                    return
                start, end = int(found[1]), int(found[2]) + 1
                part = content[start:end]
                if fault == "wrong range":
                    start += 1
                if fault == "other bytes":
                    part = bytes(len(part))
                if fault == "too long":
                    part += b"more"
                length = len(part)
                if fault == "cut" or (fault == "cut once" and not registry.sent[asked]):
                    part = part[: len(part) // 2]
                registry.sent[asked] += 1
                if fault == "busy" and registry.sent[asked] == 1:
                    self.answer(503, b"")
                    return
                self.answer(206, part, length, f"bytes {start}-{end - 1}/{len(content)}")

            def answer(self, status: int, body: bytes, length: int = -1, part: str = "") -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) if length < 0 else length))
                if part:
                    self.send_header("Content-Range", part)
                self.end_headers()
                self.wfile.write(body)

        return Handler
