"""Whisper's rules for tokens, the division into segments, formats."""

import json
import math

import numpy as np
import pytest

from wgpu_backend.engine.speech import Segment, Transcription, write
from wgpu_backend.engine.speech.decoding import (
    Decoded,
    Thresholds,
    choose,
    compression_ratio,
    decode_with_fallback,
    log_sum,
    mask,
)
from wgpu_backend.engine.speech.tokens import LANGUAGE_NAMES, SpeechTokens
from wgpu_backend.engine.speech.transcription import split_window
from wgpu_backend.errors import OptionError

# 10 texts, the end, control tokens, and timestamps from 20 on.
END, PLAIN, FIRST, ROWS = 10, 19, 20, 200
NONE = np.array([], np.int64)
TOKENS = SpeechTokens(11, END, 12, 13, 14, 15, PLAIN, {}, np.array([3]), np.array([4, END]))


def allowed(
    chosen: list[int], logits: np.ndarray | None = None, timestamps: bool = True
) -> set[int]:
    # Texts are likely enough that timestamps together are not more so.
    usual = np.zeros(ROWS, np.float32)
    usual[:FIRST] = 9
    y = mask(usual if logits is None else logits, chosen, TOKENS, timestamps=timestamps)
    return set(np.flatnonzero(np.isfinite(y)).tolist())


TEXTS = set(range(FIRST)) - {3, PLAIN}


def test_the_first_token_is_a_timestamp_of_the_first_second():
    assert allowed([]) == set(range(FIRST, FIRST + 51))


def test_text_follows_the_first_timestamp():
    # Nor the end: a segment has text.
    assert allowed([FIRST + 5]) == TEXTS


def test_text_or_a_later_timestamp_follows_text():
    assert allowed([FIRST + 5, 1]) == TEXTS | set(range(FIRST + 6, ROWS))


def test_a_closing_timestamp_is_followed_by_one_or_the_end():
    later = set(range(FIRST + 9, ROWS))
    assert allowed([FIRST + 5, 1, FIRST + 9]) == (set(range(END, FIRST)) - {PLAIN}) | later


def test_a_pair_is_followed_by_text():
    assert allowed([FIRST + 5, 1, FIRST + 9, FIRST + 9]) == TEXTS


def test_timestamps_together_may_win():
    logits = np.zeros(ROWS, np.float32)
    logits[1] = math.log(ROWS - FIRST - 6) - 0.01
    assert allowed([FIRST + 5, 2], logits) == set(range(FIRST + 6, ROWS))
    logits[1] += 0.02
    assert 1 in allowed([FIRST + 5, 2], logits)


def test_without_timestamps():
    assert allowed([], timestamps=False) == set(range(ROWS)) - {3, 4, END}
    assert allowed([1], timestamps=False) == set(range(ROWS)) - {3}


def test_sums_and_choices():
    y = np.log(np.array([1, 2, 5], np.float32))
    assert log_sum(y) == pytest.approx(math.log(8))
    assert log_sum(np.full(3, -np.inf, np.float32)) == -np.inf
    generator = np.random.default_rng(1)
    assert choose(y, 0, generator) == 2
    counts = np.bincount([choose(y, 1.0, generator) for _ in range(4000)])
    np.testing.assert_allclose(counts / 4000, [1 / 8, 2 / 8, 5 / 8], atol=0.03)
    # Half the temperature squares the shares.
    counts = np.bincount([choose(y, 0.5, generator) for _ in range(4000)])
    np.testing.assert_allclose(counts / 4000, [1 / 30, 4 / 30, 25 / 30], atol=0.03)


def decoded(tokens=(), logprob=-0.3, silence=0.0, temperature=0.0, ratio=1.0) -> Decoded:
    return Decoded(list(tokens), logprob, silence, temperature, ratio)


@pytest.mark.parametrize(
    ("found", "fails", "silent"),
    [
        (decoded(), False, False),
        (decoded(ratio=2.5), True, False),
        (decoded(logprob=-1.1), True, False),
        (decoded(logprob=-1.1, silence=0.7), False, True),
        (decoded(logprob=-0.9, silence=0.7), False, False),
        (decoded(ratio=2.5, silence=0.7), True, False),
    ],
)
def test_thresholds(found: Decoded, fails: bool, silent: bool):
    assert (Thresholds().fails(found), Thresholds().is_silent(found)) == (fails, silent)


def test_fallback_stops_at_the_first_good_text():
    tried = []

    def decode(temperature: float) -> Decoded:
        tried.append(temperature)
        return decoded(ratio=3 - 2 * temperature, temperature=temperature)

    assert decode_with_fallback(decode, (0, 0.2, 0.4, 0.6), Thresholds()).temperature == 0.4
    assert tried == [0, 0.2, 0.4]
    assert decode_with_fallback(decode, (0, 0.2), Thresholds()).temperature == 0.2


def test_compression():
    assert compression_ratio("na " * 100) > 10
    assert compression_ratio("") == 0


def s(seconds: float) -> int:
    return FIRST + round(seconds / 0.02)


@pytest.mark.parametrize(
    ("tokens", "spans", "moved"),
    [
        # No pair: one segment to the last timestamp, and the whole window is done.
        ([s(0), 1, s(2)], [(0, 2)], 700),
        ([1, 2], [(0, 7)], 700),
        ([s(0), 1], [(0, 7)], 700),
        ([], [(0, 7)], 700),
        # A pair at the end: speech goes on after it.
        ([s(0), 1, s(2), s(2)], [(0, 2)], 200),
        ([s(0), 1, s(2), s(3), 2, s(3.5), s(3.5)], [(0, 2), (3, 3.5)], 350),
        # Text after the last pair is made again in the next window.
        ([s(0), 1, s(2), s(3), 2], [(0, 2)], 200),
        # A lone timestamp at the end: nothing comes after it.
        ([s(0), 1, s(2), s(2.5), 2, s(3)], [(0, 2), (2.5, 3)], 700),
        # No progress would be for ever.
        ([s(0), s(0), 1], [(0, 0)], 700),
    ],
)
def test_division_of_a_window(tokens: list[int], spans: list[tuple[float, float]], moved: int):
    parts, frames = split_window(decoded(tokens), TOKENS, 700)
    assert [(round(p.start, 2), round(p.end, 2)) for p in parts] == spans
    assert frames == moved


FOUND = Transcription(
    "Ä one. Two",
    "de",
    3700.5,
    "transcribe",
    [
        Segment(0, 0, 0.0, 2.5, " Ä one.", [1], 0.0, -0.25, 1.25, 0.1),
        Segment(1, 0, 3661.25, 3700.0, " Two\n\n --> x", [2], 0.0, -0.5, 1.5, 0.2),
    ],
)


@pytest.mark.parametrize(
    ("no_speech", "logprob", "silent"),
    [(0.6, -2.0, False), (0.61, -2.0, True), (0.61, -1.0, True), (0.61, -0.9, False)],
)
def test_a_window_is_silent_above_one_limit_and_up_to_the_other(no_speech, logprob, silent):
    assert Thresholds().is_silent(Decoded([], logprob, no_speech, 0.0, 1.0)) == silent


def test_formats():
    assert write(FOUND, "text") == "Ä one. Two\n"
    assert json.loads(write(FOUND, "json")) == {"text": "Ä one. Two"}
    assert write(FOUND, "srt") == (
        "1\n00:00:00,000 --> 00:00:02,500\nÄ one.\n\n2\n01:01:01,250 --> 01:01:40,000\nTwo -> x\n"
    )
    assert write(FOUND, "vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nÄ one.\n\n"
        "01:01:01.250 --> 01:01:40.000\nTwo -> x\n"
    )
    made = json.loads(write(FOUND, "verbose_json"))
    assert (made["language"], made["duration"], made["task"]) == ("german", 3700.5, "transcribe")
    assert made["segments"][0] == {
        "id": 0, "seek": 0, "start": 0.0, "end": 2.5, "text": " Ä one.", "tokens": [1],
        "temperature": 0.0, "avg_logprob": -0.25, "compression_ratio": 1.25,
        "no_speech_prob": 0.1,
    }  # fmt: skip
    with pytest.raises(OptionError, match="format: 'doc', needs one of text, json"):
        write(FOUND, "doc")


def test_languages():
    assert len(LANGUAGE_NAMES) == 100
    assert (LANGUAGE_NAMES["yue"], LANGUAGE_NAMES["ht"]) == ("cantonese", "haitian creole")
