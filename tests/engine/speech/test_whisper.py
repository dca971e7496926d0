"""A tiny Whisper against transformers' recorded answers, and transcription by windows."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.engine.speech import tiny
from wgpu_backend import create, load
from wgpu_backend.engine import speech
from wgpu_backend.engine.runner import HIDDEN, Head, Runner, Work
from wgpu_backend.engine.speech import Options
from wgpu_backend.engine.speech.decoding import Thresholds
from wgpu_backend.errors import BackendError, MediaError, ModelError, OptionError
from wgpu_backend.nn.audio.mel import FRAMES, log_mel
from wgpu_backend.nn.batch import BatchShape
from wgpu_backend.testing import nmse

RECORDED = np.load(Path(__file__).parents[2] / "data" / "whisper.npz")
NEVER = Thresholds(None, None, None)
GREEDY = {"temperatures": (0.0,), "thresholds": NEVER}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny.make_folder(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[speech.SpeechModel]:
    with speech.load(folder, device="cpu", exact=True) as made:
        yield made


def check_states(model: speech.SpeechModel) -> None:
    samples = np.pad(tiny.sound(), (0, 480_000 - len(tiny.sound())))
    frames = log_mel(samples, tiny.BANDS).reshape(tiny.STATES, -1)
    work = Work(0, [0] * tiny.STATES, range(tiny.STATES), {FRAMES: frames})
    encoder = model.model.prompt_encoder().encoder
    cache = encoder.make_cache(
        model.backend.executor, 1, 1536, model._cache.parts[0].tensors[0].dtype
    )
    runner = Runner(encoder, cache, chunk=tiny.STATES)
    shape = BatchShape(tiny.STATES, tiny.STATES, 1, 2048, (FRAMES,))
    try:
        states = runner.run([work], HIDDEN, {}, shape).wait()[0]
    finally:
        runner.close()
        cache.close()
    assert nmse(states[RECORDED["rows"]], RECORDED["states"]) <= 1e-9
    model._runner.encode(0, work, tiny.STATES)
    head = Head("logits", lambda _, hidden: [model.model.logits(hidden)])
    forced = Work(0, tiny.FORCED, range(len(tiny.FORCED)))
    logits = model._runner.run([forced], head, {}).wait()[0][: len(tiny.FORCED)]
    assert nmse(logits[:, ::7], RECORDED["logits"]) <= 1e-9
    model._cache.remove(0)


def test_states_and_logits_equal_transformers(model):
    check_states(model)


@pytest.mark.slow
@pytest.mark.gpu
def test_states_and_logits_on_a_gpu(folder):
    with speech.load(folder, exact=True) as model:
        check_states(model)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("plain", Options(language="en", timestamps=False, **GREEDY)),
        ("timed", Options(language="en", **GREEDY)),
        ("translated", Options(language="en", task="translate", timestamps=False, **GREEDY)),
    ],
)
def test_greedy_tokens_equal_transformers(model, name: str, options: Options):
    found = []
    decode = model._decode

    def note(*args):
        made = decode(*args)
        found.append(made.tokens)
        return made

    model._decode = note
    try:
        model.transcribe(tiny.sound(), options)
    finally:
        del model._decode
    wanted = RECORDED[name].tolist()
    # Theirs leaves out what comes after the last pair, and goes on with the next window.
    wanted = wanted[:7] if name == "timed" else wanted
    assert found[0][: len(wanted)] == wanted


def test_the_language_is_detected(model):
    found = model.detect_language(tiny.sound())
    assert [*found] == ["en", "de"]
    assert RECORDED["language"] == tiny.EN
    assert sum(found.values()) == pytest.approx(1)
    assert model.transcribe(tiny.sound(), Options(**GREEDY)).language == "en"


def test_a_gguf_file_answers_the_same(model, folder, tmp_path):
    path = tmp_path / "whisper.gguf"
    create(path, folder)
    with speech.load(path, device="cpu", exact=True) as made:
        check_states(made)
        assert made.tokens.suppressed.tolist() == model.tokens.suppressed.tolist()
        assert made.is_multilingual


def test_f16_keys_change_little(folder, model):
    options = Options(language="en", timestamps=False, **GREEDY)
    with speech.load(folder, device="cpu") as made:
        assert (
            made.transcribe(tiny.sound(), options).segments[0].tokens[:8]
            == (model.transcribe(tiny.sound(), options).segments[0].tokens[:8])
        )


# Windows, with scripted tokens instead of the model's.


class Script:
    """Logits that make a model choose given tokens, window by window."""

    def __init__(self, model, *windows, silence: float = 0.0, doubt: float = 9.0) -> None:
        self.model, self.windows = model, [list(w) for w in windows]
        self.prompts: list[list[int]] = []
        self.frames: list[np.ndarray] = []
        self.silence, self.doubt = silence, doubt
        self._at = -1

    def __enter__(self):
        self.model._run, self.model._encode = self.run, self.encode
        return self

    def __exit__(self, *_):
        del self.model._run, self.model._encode
        self.model._cache.remove(0)

    def encode(self, window):
        window.ran, window.last = [], None
        self.frames.append(window.states)

    def run(self, tokens, outputs):
        if len(outputs) > 1:
            self.prompts.append(list(tokens))
            self._left = [*self.windows.pop(0), tiny.END] if self.windows else [tiny.END]
        rows = np.zeros((len(outputs), tiny.ROWS), np.float32)
        rows[0, tiny.SILENT] = np.log(self.silence * tiny.ROWS / (1 - self.silence) + 1e-9)
        rows[-1, self._left.pop(0)] += self.doubt
        return rows


def stamp(seconds: float) -> int:
    return tiny.FIRST + round(seconds / 0.02)


def text(words: str) -> list[int]:
    return [*words.encode()]


FIXED = Options(language="en", **GREEDY)


def test_the_next_window_begins_at_the_last_pair(model):
    first = [stamp(0), *text(" one"), stamp(4), stamp(4.5), *text(" two"), stamp(20), stamp(20)]
    second = [stamp(0.5), *text(" three"), stamp(6)]
    with Script(model, first, second) as script:
        found = model.transcribe(tiny.sound(26), FIXED)
    assert [(s.start, s.end, s.text, s.seek) for s in found.segments] == [
        (0, 4, " one", 0),
        (4.5, 20, " two", 0),
        # Its only timestamp is the last token, so that no pair divides it.
        (20, 26, " three", 2000),
    ]
    assert found.text == "one two three"
    assert found.duration == pytest.approx(26)
    # The second window follows the text of the first.
    head = [tiny.START, tiny.EN, tiny.TRANSCRIBE]
    past = [stamp(0), *text(" one"), stamp(4), stamp(4.5), *text(" two"), stamp(20)]
    assert script.prompts == [head, [tiny.PREVIOUS, *past[-(tiny.CONTEXT // 2 - 1) :], *head]]
    # Its frames begin at 20 seconds.
    whole = log_mel(np.pad(tiny.sound(26), (0, 64_000)), tiny.BANDS)
    np.testing.assert_array_equal(script.frames[1][0], whole[2000:2002].reshape(-1))


def test_long_sounds_are_padded_with_zeros(model):
    with Script(
        model, [stamp(0), *text(" a"), stamp(30)], [stamp(0), *text(" b"), stamp(2)]
    ) as made:
        found = model.transcribe(tiny.sound(32), FIXED)
    assert [(s.start, s.end) for s in found.segments] == [(0, 30), (30, 32)]
    assert made.frames[1].shape == (1500, 160)
    assert not made.frames[1][100:].any()
    assert made.frames[1][:100].any()


def test_text_without_timestamps(model):
    options = Options(language="en", timestamps=False, prompt="Pip", **GREEDY)
    with Script(model, text("hello")) as script:
        found = model.transcribe(tiny.sound(2), options)
    assert [(s.start, s.end, s.text) for s in found.segments] == [(0, 2, "hello")]
    head = [tiny.START, tiny.EN, tiny.TRANSCRIBE, tiny.PLAIN]
    assert script.prompts == [[tiny.PREVIOUS, *text(" Pip"), *head]]


def test_windows_without_speech_are_left_out(model):
    options = Options(language="en", temperatures=(0.0,), thresholds=Thresholds(None, -0.05, 0.6))
    window = [stamp(0), *text(" hm"), stamp(1)]
    with Script(model, window, silence=0.9):
        assert model.transcribe(tiny.sound(2), options).segments == []
    # A text that is probable counts as speech.
    with Script(model, window, silence=0.9, doubt=30.0):
        [segment] = model.transcribe(tiny.sound(2), options).segments
    assert segment.no_speech_prob == pytest.approx(0.9, abs=0.01)


def test_repetitions_are_tried_again(model):
    again = [stamp(0), *text(" na" * 6), stamp(1)]
    thresholds = Thresholds(1.2, None, None)
    options = Options(language="en", temperatures=(0.0, 0.1, 0.2), thresholds=thresholds)
    with Script(model, again, doubt=40.0) as script:
        seen = []
        run = script.model._decode

        def decode(*args):
            made = run(*args)
            seen.append(made.temperature)
            script._left = [*text(" fine"), stamp(1), tiny.END]
            return made

        script.model._decode = decode
        try:
            [segment] = model.transcribe(tiny.sound(1), options).segments
        finally:
            del script.model._decode
    # The retry continues from the same prompt, which is not run again.
    assert (seen, len(script.prompts)) == ([0.0, 0.1], 1)
    assert segment.temperature == 0.1
    assert segment.compression_ratio < 1.2


def test_segments_arrive_before_the_end(model):
    class StopError(Exception):
        pass

    def stop(segment):
        raise StopError(segment.text)

    with (
        Script(model, [stamp(0), *text(" a"), stamp(1), stamp(1)]),
        pytest.raises(StopError, match=" a"),
    ):
        model.transcribe(tiny.sound(2), FIXED, on_segment=stop)


# Errors.


def test_bad_options_and_sounds(model):
    with pytest.raises(
        OptionError, match="language: 'fr' is unknown to the model, needs one of en, de"
    ):
        model.transcribe(tiny.sound(), Options(language="fr"))
    with pytest.raises(OptionError, match="task: 'sing', needs transcribe or translate"):
        Options(task="sing")
    with pytest.raises(OptionError, match="language: 'xx' is unknown, needs a code"):
        Options(language="xx")
    with pytest.raises(OptionError, match="temperatures"):
        Options(temperatures=(3.0,))
    with pytest.raises(MediaError, match="not a sound"):
        model.transcribe(b"nothing at all")
    assert model.tokens.language_code("German") == "de"


def test_a_language_model_takes_no_sound():
    from wgpu_backend.engine.loading import bundled

    with pytest.raises(ModelError, match="'llama' is a language model and takes no sound"):
        speech.load(bundled(), device="cpu")


def test_a_speech_model_is_no_language_model(folder):
    with pytest.raises(ModelError, match=r"'whisper' takes sounds.*transcribe"):
        load(folder, device="cpu")


def test_a_closed_model_says_so(folder):
    model = speech.load(folder, device="cpu")
    model.close()
    model.close()
    for call in (model.transcribe, model.detect_language):
        with pytest.raises(BackendError, match="was closed"):
            call(tiny.sound())


def test_a_callback_cannot_use_its_model(model):
    for call in (lambda _: model.transcribe(tiny.sound()), lambda _: model.close()):
        with (
            Script(model, [stamp(0), *text(" a"), stamp(1), stamp(1)]),
            pytest.raises(BackendError, match="on_segment cannot use the model that calls it"),
        ):
            model.transcribe(tiny.sound(2), FIXED, on_segment=call)
    # The model is free again.
    with Script(model, [stamp(0), *text(" a"), stamp(1)]):
        assert model.transcribe(tiny.sound(1), FIXED).text == "a"


def test_folders_that_do_not_fit(folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    tiny.make_folder(other, max_source_positions=1000)
    with pytest.raises(ModelError, match=r"a\.position_embd\.weight is \(1500, 16\)"):
        speech.load(other, device="cpu")
    tiny.make_folder(other, decoder_attention_heads=4)
    with pytest.raises(ModelError, match=r"encoder_attention_heads.*is 2, needs the decoder's 4"):
        speech.load(other, device="cpu")
