"""The speech process: it transcribes one sound after another until its socket closes.

Its answers have one ``type``: segment, and those of `job_runner`.
"""

from __future__ import annotations

from dataclasses import asdict

from wgpu_backend.engine.speech import Options, Segment, SpeechModel, load
from wgpu_backend.files.media.sounds import load_sound
from wgpu_backend.ops.plugins import import_file
from wgpu_backend.server.worker.event_sender import EventSender
from wgpu_backend.server.worker.frames import Message
from wgpu_backend.server.worker.job_runner import JobRunner, serve_socket


def main(handle: str) -> None:
    """Serve requests for speech from a socket.

    Parameters
    ----------
    handle : str
        See `frames.open_socket`.
    """
    serve_socket(handle, Transcriber)


class Transcriber(JobRunner):
    """A transcriber that keeps the model of the last request open."""

    def __init__(self, sender: EventSender) -> None:
        super().__init__(sender)
        self._open: tuple[str, SpeechModel] | None = None

    def serve(self, message: Message, raw: bytes) -> None:
        """Transcribe the sound of a request, and send its segments."""
        number: int = message["id"]
        for path in message["imports"]:
            import_file(path)
        keep: float = message["keep"]
        # A sound that cannot be read is reported before a model is loaded for it.
        options, samples = Options(**message["options"]), load_sound(raw)

        def report(segment: Segment) -> None:
            self.require_client(number)
            self._sender.send({"type": "segment", "id": number, "segment": asdict(segment)})

        model = self._model(message["path"], message["device"])
        found = model.transcribe(samples, options, on_segment=report)
        self._sender.send({"type": "finished", "id": number, "found": asdict(found)})
        self._keep_seconds = None if keep < 0 else keep

    def _model(self, path: str, device: str | None) -> SpeechModel:
        """Return the model of a path; close another one first, to make room."""
        if self._open is not None and self._open[0] != path:
            self.close()
        if self._open is None:
            self._open = path, load(path, device=device)
        return self._open[1]

    def close(self) -> None:
        """Close the open model, if there is one."""
        if self._open is not None:
            self._open[1].close()
            self._open = None
