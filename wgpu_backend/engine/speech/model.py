"""A loaded speech model, and the transcription of sounds of any length.

Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", §4.5: a long
sound is read in windows of 30 seconds. The next window begins at the last timestamp, and its text
follows that of the windows before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.device.interrupts import held
from wgpu_backend.dtypes import F16, F32, DType
from wgpu_backend.engine.loading import warm_up
from wgpu_backend.engine.runner import EncodingRunner, Head, Work
from wgpu_backend.engine.speech.decoding import (
    Decoded,
    choose,
    compression_ratio,
    decode_with_fallback,
    log_sum,
    mask,
)
from wgpu_backend.engine.speech.tokens import SpeechTokens
from wgpu_backend.engine.speech.transcription import (
    FRAMES_PER_SECOND,
    STEP,
    WINDOW,
    OnSegment,
    Options,
    Segment,
    Transcription,
    split_window,
)
from wgpu_backend.errors import BackendError, ModelError, Unclosed
from wgpu_backend.files.media.sounds import RATE, Source, load_sound
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.backend import Backend, BackendParams, Progress, new_backend
from wgpu_backend.ml.opening import choose_device
from wgpu_backend.nn.audio.mel import FRAMES, HOP, log_mel
from wgpu_backend.nn.kvcache.paged import BLOCK
from wgpu_backend.nn.model import Model, PromptEncoder, model_class
from wgpu_backend.text.tokenizer import Tokenizer

F32s = NDArray[np.float32]
# Above this temperature a text is too uncertain to be the prompt of the next window.
_MOST_CERTAIN = 0.5


def load(
    path: str | Path,
    *,
    device: str | int | DeviceInfo | None = None,
    exact: bool = False,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    self_test: bool = True,
) -> SpeechModel:
    """Load a speech model: Whisper, as a Hugging Face folder or a GGUF file made from one.

    Parameters
    ----------
    device, progress, cancelled, self_test
        See `wgpu_backend.load`.
    exact : bool
        Keep activations, keys and values in f32 even if rounding them would be faster.

    Returns
    -------
    SpeechModel
        Close it, or use it as a context manager.

    Raises
    ------
    GGUFError, ModelError, TokenizerError
        The file is damaged, or is not a speech model.
    DeviceError, OutOfMemory
        The device does not exist, or the model does not fit on it.
    """
    with held():
        name, info = choose_device(device)
        params = BackendParams(info, self_test=self_test, exact=exact, progress=progress)
        backend = new_backend(path, params, name=name)
        try:
            kind = model_class(backend.config)
            if not kind.takes_sound:
                raise ModelError(
                    f"{backend.file.path}: {backend.config.architecture!r} is a language model and "
                    "takes no sound; use a Whisper model"
                )
            dtype = F32 if exact else F16
            with warm_up(backend, kind, dtype):
                backend.load(progress, cancelled, fused_weights=kind.fused_weights)
            return SpeechModel(backend, dtype)
        except BaseException:
            backend.close()
            raise


@dataclass(slots=True)
class _Window:
    """The window of sound whose states are in the cache, with results kept for retries.

    Parameters
    ----------
    states : (states, STEP * bands), f32
        Frames of the spectrogram; a row has the frames of one state.
    ran : list of int
        Tokens in the cache.
    silence : float
        Probability of no speech after the start token.
    """

    states: F32s
    ran: list[int] = field(default_factory=list[int])
    last: F32s | None = None
    silence: float = 0.0


class SpeechModel:
    """A loaded speech model with its tokenizer, caches and recorded graphs.

    Attributes
    ----------
    tokens : SpeechTokens
        Ids of control tokens.
    """

    def __init__(self, backend: Backend, kv_dtype: DType = F16) -> None:
        self.backend = backend
        self.tokenizer = Tokenizer.of_file(backend.file)
        self.model: Model = model_class(backend.config)(backend)
        encoder = self.model.prompt_encoder()
        if encoder is None:
            raise ModelError(f"{backend.file.path}: a speech model without an encoder")
        self._keep_sizes(encoder)
        blocks = -(-max(self._states, self._context) // BLOCK)
        self._cache = self.model.make_cache(backend.executor, 1, blocks * BLOCK, kv_dtype)
        self._runner = EncodingRunner(self.model, encoder, self._cache)
        model = self.model
        self._head = Head("logits", lambda _, hidden: [model.logits(hidden)])
        self._lock = threading.Lock()
        # The thread that holds the lock: a callback could otherwise wait for itself.
        self._holder: int | None = None
        self._closed = False
        self._unclosed = Unclosed(f"speech model {backend.file.path}", backend)

    def _keep_sizes(self, encoder: PromptEncoder) -> None:
        config = self.backend.config
        rows = self.backend.require("token_embd.weight").shape[0]
        self.tokens = SpeechTokens.read(self.tokenizer, config, rows)
        self._bands = config.uint("audio_band_count", 80)
        self._states = config.uint("audio_context_length", 1500)
        self._frames = STEP * self._states
        self._context = config.uint("context_length", 448, at_least=16)
        if self._frames != WINDOW:
            raise encoder.encoder.fail(
                f"audio_context_length is {self._states}, needs {WINDOW // STEP}: 30 seconds"
            )

    def __enter__(self) -> SpeechModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SpeechModel({self.backend.file.path}, {self.backend.device.id})"

    @property
    def is_multilingual(self) -> bool:
        """Return whether the model knows languages other than English."""
        return bool(self.tokens.languages)

    def close(self) -> None:
        """Release device memory and the file; safe to call again."""
        self._require_free()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._runner.close()
            self._cache.close()
            self.backend.close()
            self._unclosed.silence()

    def transcribe(
        self,
        sound: Source,
        options: Options | None = None,
        *,
        on_segment: OnSegment | None = None,
    ) -> Transcription:
        """Turn a sound into text.

        Parameters
        ----------
        sound : path, bytes or array
            See `files.media.sounds.load_sound`; arrays have 16,000 samples a second.
        options : Options or None
            None for the defaults.
        on_segment : callable or None
            Called with each segment when it is complete; what it raises ends the transcription.

        Raises
        ------
        MediaError
            The sound cannot be read.
        OptionError
            The model does not have the language or the task.
        BackendError
            The model was closed.
        """
        options = options or Options()
        samples = load_sound(sound)
        with self._alone():
            return self._transcribe(samples, options, on_segment)

    def detect_language(self, sound: Source) -> dict[str, float]:
        """Return the probability of each language in the first 30 seconds, the best first."""
        mel, _ = self._spectrogram(load_sound(sound))
        with self._alone():
            return self._detect(self._begin(mel, 0))

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Hold the model while the block runs; other threads wait.

        Raises
        ------
        BackendError
            The model was closed, or the thread holds it already.
        """
        self._require_free()
        with self._lock:
            if self._closed:
                raise BackendError(f"{self.backend.file.path}: the model was closed; load it again")
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None

    def _require_free(self) -> None:
        """Raise if this thread holds the model, and would wait for itself."""
        if self._holder == threading.get_ident():
            raise BackendError(
                f"{self.backend.file.path}: on_segment cannot use the model that calls it"
            )

    def _transcribe(
        self, samples: F32s, options: Options, on_segment: OnSegment | None
    ) -> Transcription:
        mel, content = self._spectrogram(samples)
        language = self._language(mel, options)
        head = self.tokens.head(language, options.task, timestamps=options.timestamps)
        segments: list[Segment] = []
        for segment in self._segments(mel, content, head, options):
            segments.append(segment)
            if on_segment is not None:
                on_segment(segment)
        text = "".join(segment.text for segment in segments).strip()
        seconds = len(samples) / RATE
        return Transcription(text, language, seconds, options.task, segments)

    def _spectrogram(self, samples: F32s) -> tuple[F32s, int]:
        """Return the log-mel spectrogram, (frames, bands), and its number of frames with sound.

        Sounds of up to 30 seconds are padded with silence, as in training.
        """
        content = -(-len(samples) // HOP)
        return log_mel(np.pad(samples, (0, max(0, WINDOW * HOP - len(samples)))), self._bands), (
            content
        )

    def _language(self, mel: F32s, options: Options) -> str:
        if options.language is not None:
            return self.tokens.language_code(options.language)
        if not self.tokens.languages:
            return "en"
        return next(iter(self._detect(self._begin(mel, 0))))

    def _segments(
        self, mel: F32s, content: int, head: Sequence[int], options: Options
    ) -> Iterator[Segment]:
        """Yield the segments of all windows."""
        generator = np.random.default_rng(options.seed)
        past = self.tokenizer.encode_further(f" {options.prompt.strip()}") if options.prompt else []
        seek = number = 0
        while seek < content:
            window = self._begin(mel, seek)
            frames = min(WINDOW, content - seek)
            decode = partial(self._decode, window, self._prompt(past, head), options, generator)
            found = decode_with_fallback(decode, options.temperatures, options.thresholds)
            if options.thresholds.is_silent(found):
                seek += frames
                continue
            parts, moved = split_window(found, self.tokens, frames)
            for part in parts:
                text = self.tokenizer.decode(t for t in part.tokens if t < self.tokens.end)
                if part.end <= part.start or not text.strip():
                    continue
                begin = seek / FRAMES_PER_SECOND
                yield Segment(
                    number,
                    seek,
                    round(begin + part.start, 2),
                    round(begin + part.end, 2),
                    text,
                    part.tokens,
                    found.temperature,
                    found.avg_logprob,
                    found.compression_ratio,
                    found.no_speech_prob,
                )
                number += 1
                past += part.tokens
            # An uncertain text as a prompt would repeat its mistakes in the next window.
            if not options.condition_on_previous or found.temperature > _MOST_CERTAIN:
                past = []
            seek += moved

    def _prompt(self, past: Sequence[int], head: Sequence[int]) -> list[int]:
        """Return the prompt of a window: earlier text, up to half of the context, then `head`."""
        if not past:
            return [*head]
        return [self.tokens.previous, *past[-(self._context // 2 - 1) :], *head]

    # Passes.

    def _begin(self, mel: F32s, seek: int) -> _Window:
        """Encode a window of the spectrogram, padded with zeros at its end, as in training."""
        part = mel[seek : seek + WINDOW]
        part = np.pad(part, ((0, WINDOW - len(part)), (0, 0)))
        window = _Window(part.reshape(self._states, STEP * self._bands))
        self._encode(window)
        return window

    def _encode(self, window: _Window) -> None:
        self._cache.remove(0)
        window.ran, window.last = [], None
        work = Work(0, [0] * self._states, range(self._states), {FRAMES: window.states})
        self._runner.encode(0, work, self._states)

    def _run(self, tokens: Sequence[int], outputs: Sequence[int]) -> F32s:
        """Run tokens of the text, and return the logits of some of them: (outputs, vocabulary)."""
        logits = self._runner.run([Work(0, tokens, outputs)], self._head, {}).wait()[0]
        return np.asarray(logits[: len(outputs)], np.float32)

    def _run_prompt(self, window: _Window, prompt: Sequence[int]) -> F32s:
        """Return the logits after a prompt; they are kept for the next run of the same prompt."""
        if window.last is not None and window.ran[: len(prompt)] == prompt:
            self._cache.remove(0, len(prompt))
            del window.ran[len(prompt) :]
            return window.last
        if window.ran:
            # Removing every token would also remove the sound.
            self._encode(window)
        start = list(prompt).index(self.tokens.start)
        rows = self._run(prompt, (start, len(prompt) - 1))
        after_start = rows[0] - log_sum(rows[0])
        window.silence = float(np.exp(after_start[self.tokens.no_speech]))
        window.ran, window.last = [*prompt], rows[1]
        return rows[1]

    def _detect(self, window: _Window) -> dict[str, float]:
        """Return the probabilities of languages, the best first."""
        logits = self._run_prompt(window, [self.tokens.start])
        codes = [*self.tokens.languages]
        scores = logits[[*self.tokens.languages.values()]]
        shares = np.exp(scores - log_sum(scores)) if codes else scores
        order = np.argsort(-shares, kind="stable")
        return {codes[i]: float(shares[i]) for i in order}

    def _decode(
        self,
        window: _Window,
        prompt: Sequence[int],
        options: Options,
        generator: np.random.Generator,
        temperature: float,
    ) -> Decoded:
        """Generate the tokens of a window."""
        tokens = self.tokens
        logits = self._run_prompt(window, prompt)
        chosen: list[int] = []
        total = 0.0
        # Half of the context is for the earlier text.
        most = min(self._context // 2, self._context - len(prompt))
        while True:
            y = mask(logits, chosen, tokens, timestamps=options.timestamps)
            token = choose(y, temperature, generator)
            total += float(y[token]) - log_sum(y)
            if token == tokens.end:
                break
            chosen.append(token)
            if len(chosen) == most:
                break
            logits = self._run([token], (0,))[0]
            window.ran.append(token)
        text = self.tokenizer.decode(t for t in chosen if t < tokens.end).strip()
        ratio = compression_ratio(text)
        mean = total / (len(chosen) + 1)
        return Decoded(chosen, mean, window.silence, temperature, ratio)
