"""Options and results of a transcription, and the division of a window into segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from wgpu_backend.engine.speech.decoding import Decoded, Thresholds
from wgpu_backend.engine.speech.tokens import TASKS, TIMESTAMP_SECONDS, SpeechTokens, find_code
from wgpu_backend.errors import OptionError

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
# Frames of 10 ms in 30 seconds, and in a step of timestamps.
WINDOW, STEP = 3000, 2
FRAMES_PER_SECOND = 100


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a transcription.

    Parameters
    ----------
    language : str or None
        Code or English name; None to detect it in the first 30 seconds.
    task : str
        ``transcribe``, or ``translate`` into English.
    timestamps : bool
        Whether to generate timestamp tokens. Sounds of more than 30 seconds need them, since the
        next window begins at the last one.
    prompt : str
        Text before the first window, such as names and their spelling.
    temperatures : sequence of float
        Temperatures to try in turn, see `Thresholds`; 0 chooses the best token.
    thresholds : Thresholds
        When to try the next temperature.
    condition_on_previous : bool
        Whether the text of a window follows that of the windows before.
    seed : int
        Seed of temperatures above 0.

    Raises
    ------
    OptionError
        The language or task is unknown, or a temperature is out of range.
    """

    language: str | None = None
    task: str = "transcribe"
    timestamps: bool = True
    prompt: str = ""
    temperatures: Sequence[float] = TEMPERATURES
    thresholds: Thresholds = field(default_factory=Thresholds)
    condition_on_previous: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise OptionError(f"task: {str(self.task)[:40]!r}, needs {' or '.join(TASKS)}")
        if self.language is not None:
            find_code(self.language)
        if not self.temperatures or not all(0 <= t <= 2 for t in self.temperatures):
            raise OptionError(
                f"temperatures: {[*self.temperatures]}, needs at least one, each from 0 to 2"
            )
        if not 0 <= self.seed < 2**63:
            raise OptionError(f"seed: {self.seed}, needs 0 or more")


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a transcript.

    Parameters
    ----------
    id : int
        Number, from 0.
    seek : int
        Place of its window, in frames of 10 ms.
    start, end : float
        Seconds.
    avg_logprob, no_speech_prob, temperature, compression_ratio : float
        Those of its window, see `Decoded`.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


@dataclass(frozen=True, slots=True)
class Transcription:
    """A transcript.

    Parameters
    ----------
    language : str
        Code, such as ``en``.
    duration : float
        Seconds of the sound.
    """

    text: str
    language: str
    duration: float
    task: str
    segments: list[Segment]


@dataclass(frozen=True, slots=True)
class Part:
    """A segment within its window.

    Parameters
    ----------
    start, end : float
        Seconds from the beginning of the window.
    tokens : list of int
        Tokens of text and timestamps.
    """

    start: float
    end: float
    tokens: list[int]


def split_window(found: Decoded, tokens: SpeechTokens, frames: int) -> tuple[list[Part], int]:
    """Divide the text of a window at its pairs of timestamps.

    Parameters
    ----------
    frames : int
        Frames of the window that have sound.

    Returns
    -------
    list of Part, int
        The segments, and the frames until the next window: up to the last timestamp if speech goes
        on after it, else the whole window.
    """
    chosen, first = found.tokens, tokens.timestamp
    is_stamp = [token >= first for token in chosen]
    ends_alone = is_stamp[-2:] == [False, True]
    cuts = [i for i in range(1, len(chosen)) if is_stamp[i] and is_stamp[i - 1]]
    # Without a pair of timestamps, the window is one segment.
    if not cuts:
        stamps = [token for token in chosen if token >= first]
        end = frames / FRAMES_PER_SECOND
        if stamps and stamps[-1] != first:
            end = (stamps[-1] - first) * TIMESTAMP_SECONDS
        return [Part(0.0, end, chosen)], frames
    if ends_alone:
        cuts.append(len(chosen))
    parts = [
        Part(
            (chosen[begin] - first) * TIMESTAMP_SECONDS,
            (chosen[end - 1] - first) * TIMESTAMP_SECONDS,
            chosen[begin:end],
        )
        for begin, end in zip([0, *cuts[:-1]], cuts, strict=True)
    ]
    if ends_alone:
        return parts, frames
    # A timestamp of 0 would repeat the window for ever.
    moved = (chosen[cuts[-1] - 1] - first) * STEP
    return parts, moved or frames


OnSegment = Callable[[Segment], object]
