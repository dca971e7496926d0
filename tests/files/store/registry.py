"""A registry on this machine that serves models, well or badly."""

import gzip
import hashlib
import json
import re
import threading
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

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
        self.files: dict[str, bytes] = {}  # of the repository, as Hugging Face's Hub has them
        self.digests_told = True  # of those files
        self.fault = ""
        self.released = threading.Event()  # ends what is held back
        self.asked: list[str] = []
        self.sent: Counter[str] = Counter()
        self.served = 0  # bytes of blobs
        self.uploads: dict[str, bytes] = {}
        self.taken: dict[str, bytes] = {}  # manifests by path
        self.etags: list[str] = []
        self.tokens: list[str] = []
        self.proofs: list[tuple[str, str]] = []  # signed addresses, and signatures
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    @property
    def name(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/me/model:tag"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def _handler(registry):  # noqa: C901
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                number = self.path.partition("?")[0].rpartition("/")[2]
                if self.path.startswith("/token?"):
                    url = f"http://{self.headers['Host']}{self.path}"
                    registry.proofs.append((url, self.headers["Authorization"]))
                    registry.tokens.append(f"token{len(registry.tokens)}")
                    self.answer(200, json.dumps({"token": registry.tokens[-1]}).encode())
                elif "/uploads/" in self.path and number in registry.uploads:
                    last = max(len(registry.uploads[number]) - 1, 0)
                    self.answer(204, b"", location=self.path, have=f"0-{last}")
                elif self.path == "/v2/me/model/manifests/tag":
                    self.manifest()
                elif self.path.startswith("/api/models/me/model/tree/main?recursive=true"):
                    self.tree(self.path.partition("&page=")[2])
                elif (name := self.path.removeprefix("/me/model/resolve/main/")) in registry.files:
                    self.blob(name, registry.files[name])
                elif (digest := self.path.rpartition("/")[2]) in registry.blobs:
                    self.blob(digest, registry.blobs[digest])
                else:
                    self.answer(404, b"{}")

            def tree(self, page: str) -> None:
                """List the repository's files, two a page."""
                first = int(page or 0)
                listing = [{"type": "directory", "oid": "628e439b", "size": 0, "path": "Q4_0"}]
                for name, content in list(registry.files.items())[first : first + 2]:
                    entry = {"type": "file", "oid": "c5f2", "size": len(content), "path": name}
                    if registry.digests_told:
                        oid = hashlib.sha256(content).hexdigest()
                        entry["lfs"] = {"oid": oid, "size": len(content), "pointerSize": 134}
                    listing.append(entry)
                more = first + 2 < len(registry.files)
                here = self.path.partition("&page=")[0]
                link = f'<http://{self.headers["Host"]}{here}&page={first + 2}>; rel="next"'
                self.answer(200, json.dumps(listing).encode(), link=link if more else "")

            def manifest(self) -> None:
                busy = registry.fault == "busy" and not registry.sent["manifest"]
                registry.sent["manifest"] += 1
                if busy:
                    self.answer(429, b"")
                elif registry.fault == "split":
                    self.answer(400, b'{"error": "The specified tag is a sharded GGUF."}')
                elif registry.fault == "private":
                    self.answer(403, b"")
                elif registry.fault == "bomb":
                    self.answer(200, gzip.compress(bytes(64 << 20)), encoding="gzip")
                else:
                    self.answer(200, registry.manifest)

            def do_HEAD(self) -> None:
                found = self.path.rpartition("/")[2] in registry.blobs
                self.answer(200 if found else 404, b"")

            def refused(self) -> bool:
                """Ask who it is, where an account is wanted."""
                if registry.fault not in ("account", "realm elsewhere"):
                    return False
                given, known = self.headers.get("Authorization", ""), registry.tokens[-1:]
                if known and given == f"Bearer {known[0]}":
                    return False
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.answer(401, b"{}")
                return True

            def do_POST(self) -> None:
                if self.refused():
                    return
                if registry.fault == "no account":
                    self.answer(401, b'{"errors": [{"message": "who are you"}]}')
                    return
                number = str(len(registry.uploads))
                registry.uploads[number] = b""
                self.located(202, f"/v2/me/model/blobs/uploads/{number}?state=a%20b")

            def located(self, status: int, location: str) -> None:
                self.answer(status, b"", location=location)

            def do_PATCH(self) -> None:
                if registry.fault == "account" and len(registry.tokens) == 1:
                    registry.tokens.append("the old one is over")
                if self.refused():
                    return
                place = self.path.partition("?")[0]
                number = place.rpartition("/")[2]
                size, have = int(self.headers["Content-Length"]), registry.uploads[number]
                start, _, end = self.headers["Content-Range"].partition("-")
                registry.asked.append(f"PATCH {start}-{end}")
                if registry.fault == "storage":
                    self.rfile.read(size)
                    self.answer(307, b"", location=f"/storage/{number}", upload=place)
                    return
                if registry.fault == "cut once" and not registry.sent["PATCH"]:
                    registry.sent["PATCH"] += 1
                    registry.uploads[number] = have + self.rfile.read(size // 2)
                    self.close_connection = True
                    return
                data = self.rfile.read(size)
                if int(start) != len(have) or int(end) != int(start) + size - 1:
                    self.answer(416, b"")
                    return
                if registry.fault == "busy" and not registry.sent["PATCH"]:
                    registry.sent["PATCH"] += 1
                    self.answer(503, b"")
                    return
                registry.uploads[number] = have + data
                self.located(202, place)

            def do_PUT(self) -> None:
                if self.refused():
                    return
                place, _, query = self.path.partition("?")
                data = self.rfile.read(int(self.headers["Content-Length"]))
                number = place.rpartition("/")[2]
                if "/manifests/" in place:
                    registry.taken[place] = data
                elif place.startswith("/storage/"):
                    registry.uploads[number] += data
                else:
                    given = parse_qs(query)
                    registry.etags += given.get("etag", [])
                    [digest], content = given["digest"], registry.uploads.pop(number)
                    if hashlib.sha256(content).hexdigest() != digest.removeprefix("sha256:"):
                        self.answer(400, b'{"errors": [{"message": "other bytes"}]}')
                        return
                    registry.blobs[digest] = content
                self.answer(201, b"")

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
                if fault == "few bytes":
                    part = part[:5000]
                if fault in ("endless", "stalls"):
                    part = part if fault == "endless" else part[:1000]
                    length += 1
                registry.sent[asked] += 1
                registry.served += len(part)
                if fault == "busy" and registry.sent[asked] == 1:
                    self.answer(503, b"")
                    return
                self.answer(206, part, length, f"bytes {start}-{end - 1}/{len(content)}")
                if fault in ("endless", "stalls"):
                    self.wfile.flush()
                    registry.released.wait()

            def answer(
                self, status: int, body: bytes, length: int = -1, part: str = "",
                location: str = "", have: str = "", upload: str = "", encoding: str = "",
                link: str = "",
            ) -> None:  # fmt: skip
                self.send_response(status)
                if status == 401:
                    host = "localhost" if registry.fault == "realm elsewhere" else "127.0.0.1"
                    realm = f"http://{host}:{registry.server.server_port}/token"
                    challenge = f'Bearer realm="{realm}",service="reg",scope="a:push b:pull"'
                    self.send_header("WWW-Authenticate", challenge)
                named = {"Location": location, "Range": have, "Docker-Upload-Location": upload}
                named |= {"Content-Encoding": encoding, "Link": link}
                for name, value in named.items():
                    if value:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body) if length < 0 else length))
                if part:
                    self.send_header("Content-Range", part)
                self.end_headers()
                with suppress(ConnectionError):  # of a client that was killed
                    self.wfile.write(body)

        return Handler
