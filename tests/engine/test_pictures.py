"""Pictures in prompts: a tiny Llama with Gemma 3's tower beside it, whose rows see each other."""

import gc
import shutil
import threading
import weakref
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import wgpu_backend as wb
from tests.builders import tiny_model
from tests.models.test_vision_towers import (
    GEMMA3,
    Q_WIDTH,
    QWEN_KEYS,
    WIDTH,
    gemma3_weights,
    qwen_weights,
)
from tests.models.towers import write_mmproj
from tests.patience import PATIENCE, until
from wgpu_backend.engine.batching.loop import TokenLoop
from wgpu_backend.engine.media import (
    STAND_IN,
    Illustrations,
    Inserted,
    Placed,
    Prompt,
    Run,
    TowerRules,
    place,
)
from wgpu_backend.engine.towers import Graphs, Speeds, Towers
from wgpu_backend.errors import (
    ContextFull,
    DeviceError,
    MediaError,
    ModelError,
    OptionError,
    TemplateError,
)
from wgpu_backend.ml.numpy_executor import NumpyPausableRun
from wgpu_backend.nn.batch import Work
from wgpu_backend.nn.tower import NUMBER_MARK, Rows, make_media
from wgpu_backend.nn.transformer import EMBEDDINGS

RED = np.full((40, 30, 3), (250, 10, 10), np.uint8)
BLUE = np.full((30, 40, 3), (10, 10, 250), np.uint8)
TEXT = "the <__media__> in an <__media__> on the"
GREEDY = {"temperature": 0}


def write_tower(path, width=64):
    rng = np.random.default_rng(5)
    weights = gemma3_weights()
    weights["mm.input_projection.weight"] = rng.standard_normal((WIDTH, width)) * 0.3
    return write_mmproj(path, {**GEMMA3, "vision.projection_dim": width}, weights)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("pictures")
    tiny_model(made / "model.gguf")
    write_tower(made / "mmproj.gguf")
    return made


@pytest.fixture
def model(folder):
    with wb.load(folder / "model.gguf", device="cpu", kv_dtype="f32", num_parallel=4) as loaded:
        yield loaded


def greedy(model, text, images, count):
    """The most likely tokens, each after a pass over everything before it."""
    prompt = model.towers.raw(
        model.prompter, text, [wb.engine.media.Part("image", i) for i in images]
    )
    tokens = [*prompt.tokens]
    for _ in range(count):
        inserted = model.towers.insert(prompt.placed)
        rows = model._rows("logits", tokens, model._logits, len(tokens), inserted=inserted)
        tokens.append(int(rows[-1].argmax()))
    return tokens[len(prompt.tokens) :]


def test_rows_stand_in_place_of_the_marker(model):
    prompt = model._raw_prompt(TEXT, [RED, BLUE])
    runs = [run for each in prompt.placed for run in each.runs]
    assert [run.rows.count for run in runs] == [4, 4]
    inside = [t for run in runs for t in prompt.tokens[run.start : run.end]]
    assert len(set(inside)) == 8
    assert min(inside) >= STAND_IN
    assert sum(token >= STAND_IN for token in prompt.tokens) == 8
    around = "\n\n<start_of_image><end_of_image>\n\n"
    text = model.tokenizer.decode([t for t in prompt.tokens if t < STAND_IN])
    assert text == f"the {around} in an {around} on the"


def test_logits_are_those_of_the_rows_in_a_pass(model):
    """The tower's rows as embeddings of one pass, in which each picture is a span."""
    prompt = model._raw_prompt(TEXT, [RED, BLUE])
    count = len(prompt.tokens)
    embeddings = np.full((count, 64), np.nan, np.float32)
    spans = []
    for each in prompt.placed:
        [run] = each.runs
        embeddings[run.start : run.end] = model.towers.encode(each)
        spans.append((run.start, run.end - 1))
    tokens = [0 if token >= STAND_IN else token for token in prompt.tokens]
    found = model.logits(TEXT, images=[RED, BLUE])
    model.cache.remove(0)
    work = Work(0, tokens, range(count), {EMBEDDINGS: embeddings}, spans)
    wanted = model.runner.run([work], model._logits, {}).wait()[0][:count]
    assert np.array_equal(found, wanted)
    # A causal pass gives others, so that spans are part of it.
    model.cache.remove(0)
    work = Work(0, tokens, range(count), {EMBEDDINGS: embeddings})
    causal = model.runner.run([work], model._logits, {}).wait()[0][:count]
    assert np.abs(found - causal).max() > 1e-3


def test_pictures_come_first_in_a_text_without_markers(model):
    wanted = model.logits("<__media__>the", images=[RED])
    assert np.array_equal(model.logits("the", images=[RED]), wanted)
    assert not np.array_equal(model.logits("the", images=[BLUE]), wanted)


@pytest.mark.parametrize("chunk", [256, 5])
def test_generate_and_the_cache(model, tower_runs, chunk):
    """Also with passes shorter than a picture's rows, which then have a pass of their own."""
    wanted = greedy(model, TEXT, [RED, BLUE], 6)
    assert len(tower_runs) == 2
    model.runner.chunk = chunk
    model.generate("other", raw=True, num_predict=1)
    for reused in (False, True):
        text = model.generate(TEXT, raw=True, images=[RED, BLUE], options=GREEDY, num_predict=6)
        assert text == model.tokenizer.decode(wanted)
        assert (model.stats.reused_tokens > 20) == reused
    # Another picture in the same place is another prefix.
    model.generate(TEXT, raw=True, images=[RED, RED], options=GREEDY, num_predict=1)
    start = model._raw_prompt(TEXT, [RED, RED]).placed[1].runs[0].start
    assert model.stats.reused_tokens == start


def test_an_engine(model, tower_runs):
    prompt = model._raw_prompt(TEXT, [RED, BLUE])
    wanted = model.tokenizer.decode(greedy(model, TEXT, [RED, BLUE], 6))
    plain = model.generate("the in an", raw=True, options=GREEDY, num_predict=20)
    tower_runs.clear()
    model.towers._rows._rows.clear()

    def ask(tokens, placed=(), count=6):
        fields = {"placed": placed, "options": GREEDY, "max_tokens": count}
        return engine.submit(wb.Request.of(tokens, **fields))

    with wb.Engine(model, num_parallel=4) as engine:
        running = ask(model.prompter.raw("the in an"), count=20)
        several = [ask(prompt.tokens, prompt.placed) for _ in range(2)]
        assert [each.result().text for each in several] == [wanted] * 2
        assert running.result().text == plain
        assert len(tower_runs) == 2
        # Its prefix is cached: the tower is not needed.
        model.towers._rows._rows.clear()
        again = ask(prompt.tokens, prompt.placed).result()
        assert again.text == wanted
        assert again.usage.cached_tokens >= prompt.placed[1].end
        assert again.usage.prompt_tokens == len(prompt.tokens)
        assert len(tower_runs) == 2


def test_chat_with_parts_and_with_a_list(model):
    parts = [
        {"type": "text", "text": "the "},
        {"type": "image", "image": RED},
        {"type": "text", "text": " in"},
    ]
    found = [
        model.chat([{"role": "user", "content": parts}], options=GREEDY, num_predict=5),
        model.chat(
            [{"role": "user", "content": "the ", "images": [RED]}], options=GREEDY, num_predict=5
        ),
    ]
    frame = "<|begin|><|user|>{}<|end|><|assistant|>"
    for text, made in zip(("the <__media__> in", "<__media__>the "), found, strict=True):
        wanted = greedy(model, frame.format(text), [RED], 5)
        # The template writes the token that begins a text itself.
        assert made == model.tokenizer.decode(wanted)


def write_seer(folder):
    """Qwen2-VL's tower, with a language model that has no axes of positions."""
    tiny_model(folder / "model.gguf")
    weights = qwen_weights(2)
    weights["mm.2.weight"] = np.resize(weights["mm.2.weight"], (64, 4 * Q_WIDTH))
    weights["mm.2.bias"] = np.zeros(64)
    keys = {**QWEN_KEYS[2], "vision.projection_dim": 64, "vision.video_min_pixels": 28 * 28}
    write_mmproj(folder / "mmproj.gguf", keys, weights)
    return folder / "model.gguf"


def test_chat_with_a_video(tmp_path):
    still = np.zeros((28, 28, 3), np.uint8)
    with wb.load(write_seer(tmp_path), device="cpu", kv_dtype="f32") as loaded:

        def ask(**part):
            made = {"type": "video", **part}
            text = {"type": "text", "text": "the"}
            loaded.chat([{"role": "user", "content": [made, text]}], num_predict=2)
            return loaded.stats.prompt_tokens + loaded.stats.reused_tokens

        before = ask(video=[still, RED[:28, :28]])
        # The third frame is a grid of its own.
        rows = loaded.towers.get("image").prepare(still).rows
        assert ask(video=[still, RED[:28, :28], still], fps=1.5) - before == rows
        with pytest.raises(MediaError, match="frame 1 has 40 x 30 pixels, frame 0 has 28 x 28"):
            ask(video=[still, BLUE])
        with pytest.raises(MediaError, match=r"a\.mp4: No such file"):
            ask(video="a.mp4")
        # Two frames of half a second each, of which four are taken.
        shown = [Image.fromarray(each) for each in (still, RED[:28, :28])]
        shown[0].save(tmp_path / "a.png", save_all=True, append_images=shown[1:], duration=500)
        four = ask(video=[still, still, RED[:28, :28], RED[:28, :28]], fps=4)
        assert ask(video=tmp_path / "a.png", fps=4) == four
        # The same digest: no token of the prompt but the last was computed again.
        assert loaded.stats.prompt_tokens == 1
        with pytest.raises(OptionError, match="fps: 'fast'"):
            ask(video=[still], fps="fast")


def test_a_spelled_marker_in_a_message_is_text(model):
    """Only a raw prompt has markers: in messages a picture has a place of its own."""
    text = model.chat("the <__media__> in", options=GREEDY, num_predict=3)
    assert isinstance(text, str)
    with_picture = [{"role": "user", "content": "a <__media__>", "images": [RED]}]
    assert isinstance(model.chat(with_picture, num_predict=1), str)


def test_errors(model, folder, tmp_path):
    with pytest.raises(OptionError, match=r"it has 1 markers of pictures.*2 were given"):
        model.logits("a <__media__>", images=[RED, BLUE])
    with pytest.raises(OptionError, match="images: need a text"):
        model.logits([1, 2], images=[RED])
    with pytest.raises(MediaError, match="not an image"):
        model.generate("a", images=[b"text"])
    with pytest.raises(OptionError, match=r"images: .*needs a list"):
        model.generate("a", images=b"text")
    with pytest.raises(TemplateError, match="part of type 'image', needs text, or data as 'image'"):
        model.chat([{"role": "user", "content": [{"type": "image"}]}])
    with pytest.raises(ContextFull):
        model.generate("the " * 5000, raw=True, images=[RED])
    tiny_model(tmp_path / "alone.gguf")
    with (
        wb.load(tmp_path / "alone.gguf", device="cpu") as alone,
        pytest.raises(OptionError, match=r"alone\.gguf: it has no tower for pictures"),
    ):
        alone.generate("a", images=[RED])
    write_tower(tmp_path / "mmproj-48.gguf", 48)
    with pytest.raises(ModelError, match=r"rows have 48 columns, .*model\.gguf needs 64"):
        wb.load(folder / "model.gguf", device="cpu", mmproj=tmp_path / "mmproj-48.gguf")


def test_what_pictures_rule_out(model):
    prompt = model._raw_prompt(TEXT, [RED, BLUE])
    with wb.Engine(model) as engine, pytest.raises(OptionError, match="prompt_logprobs"):
        engine.submit(
            wb.Request(prompt.tokens, placed=prompt.placed, logprobs=1, prompt_logprobs=True)
        )
    # Stand-ins without what they stand for are no tokens.
    with wb.Engine(model) as engine, pytest.raises(ModelError, match="is not a token"):
        engine.submit(wb.Request(prompt.tokens))


def test_a_context_does_not_shift_over_pictures(folder):
    with wb.load(folder / "model.gguf", device="cpu", num_ctx=128) as small:
        prompt = small._raw_prompt(TEXT, [RED, BLUE])
        fields = {"placed": prompt.placed, "when_full": "shift", "ignore_eos": True}
        with wb.Engine(small) as engine:
            found = engine.submit(wb.Request(prompt.tokens, max_tokens=200, **fields)).result()
        assert found.usage.completion_tokens < 128 - len(prompt.tokens) + 2
        assert found.usage.prompt_tokens == len(prompt.tokens)


def turned(*runs):
    """Rows that rotate by several positions; runs are (start, grid)."""
    placed = [
        Placed(None, None, [Run(start, 0, Rows(int(np.prod(grid)), grid))]) for start, grid in runs
    ]
    return Inserted(placed, 8, turns=True)


def test_positions_in_time_height_and_width():
    """Wang et al. 2024, "Qwen2-VL", §2.1, counted row by row."""
    runs = ((3, (1, 2, 3)), (12, (1, 4, 2)), (22, (2, 2, 2)))
    wanted, at = [], 0
    kinds = dict(runs)
    place_in_text = 0
    while place_in_text < 40:
        if place_in_text in kinds:
            grid = kinds[place_in_text]
            wanted += [
                (at + t, at + h, at + w)
                for t in range(grid[0])
                for h in range(grid[1])
                for w in range(grid[2])
            ]
            place_in_text += int(np.prod(grid))
            at += max(grid)
        else:
            wanted.append((at,) * 3)
            place_in_text += 1
            at += 1
    inserted = turned(*runs)
    assert inserted.positions(0, 40).tolist() == [list(each) for each in wanted]
    for start, end in ((0, 5), (5, 9), (4, 13), (8, 21), (29, 40), (13, 14), (39, 40)):
        assert inserted.positions(start, end).tolist() == [list(w) for w in wanted[start:end]]


def test_messages_keep_their_other_parts():
    shown = Illustrations(
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "a", "images": [b"1", b"2"], "name": "n"},
            {"role": "user", "content": [{"type": "image", "image": b"3"}]},
        ]
    )
    assert [part.source for part in shown.parts] == [b"1", b"2", b"3"]
    assert shown.messages[0] == {"role": "system", "content": "s"}
    assert shown.messages[1]["name"] == "n"
    assert "images" not in shown.messages[1]
    template = "{% for part in message.content %}{% if part.type == 'image' %}<pic>{% endif %}"
    messages, markers, numbers = shown.spell(shown.messages[2:], template, [("<pic>",)])
    assert (messages, markers, numbers) == (shown.messages[2:], ["<pic>"], [2])
    messages, markers, numbers = shown.spell(shown.messages, "{{ message.content }}", [("<pic>",)])
    assert numbers == [0, 1, 2]
    assert messages[1]["content"] == f"{markers[0]}{markers[1]}a"


def test_results_of_tools_are_texts_with_markers():
    """The template writes the user's picture, and would write the tool's list as Python does."""
    template = "{% for m in messages %}{% if m.content[0].type == 'image' %}<image>{% endif %}"
    one, two = {"type": "image", "image": b"1"}, {"type": "image", "image": b"2"}
    asked = {"type": "text", "text": " what?"}
    shown = Illustrations(
        [{"role": "user", "content": [one, asked]}, {"role": "tool", "content": [two, asked]}]
    )
    (user, result), markers, numbers = shown.spell(shown.messages, template, [("<image>",)])
    assert user["content"] == [{"type": "image", "number": 0}, asked]
    assert isinstance(result["content"], str)
    [marker] = [each for each in markers if each in result["content"]]
    assert result["content"] == f"{marker} what?"
    assert "<image>" in markers
    assert numbers == [0, 1]
    assert [shown.parts[number].source for number in numbers] == [b"1", b"2"]


def test_a_tower_of_an_unknown_kind_does_not_hide_the_other(folder, tmp_path):
    shutil.copy(folder / "model.gguf", tmp_path / "model.gguf")
    weights = gemma3_weights()
    weights["mm.input_projection.weight"] = np.zeros((WIDTH, 64))
    unknown = {
        "vision.projection_dim": 64,
        "has_audio_encoder": True,
        "audio.projector_type": "qwen3a",
    }
    write_mmproj(tmp_path / "mmproj.gguf", {**GEMMA3, **unknown}, weights)
    with wb.load(tmp_path / "model.gguf", device="cpu", kv_dtype="f32") as loaded:
        assert loaded.towers.modalities == ["image"]
        assert len(loaded.logits("the <__media__>", images=[RED])) > 4
        with pytest.raises(OptionError, match="it has no tower for sound"):
            loaded.generate("the", raw=True, audio=[np.zeros(16_000, np.float32)])


def test_a_layout_has_the_number_of_its_picture(model):
    media = [make_media({}, [f"<{NUMBER_MARK}>", Rows(count)]) for count in (1, 2)]
    rules = TowerRules("<image>", ("", ""), True)
    prompt = place(
        "a <image> b <image>", [(each, rules) for each in media], model.tokenizer, ["<image>"]
    )
    assert model.tokenizer.decode([t for t in prompt.tokens if t < STAND_IN]) == "a <0> b <1>"


def test_place_needs_as_many_markers_as_pictures(model):
    with pytest.raises(OptionError, match=r"2 markers.*<__media__>.*0 were given"):
        place("<__media__><__media__>", [], model.tokenizer)


def test_several_towers_in_the_folder(folder, tmp_path):
    """Texts are answered as ever; a picture needs one to be named."""
    tiny_model(tmp_path / "model.gguf")
    for name in ("mmproj-a.gguf", "mmproj-b.gguf"):
        write_tower(tmp_path / name)
    with wb.load(tmp_path / "model.gguf", device="cpu") as model:
        assert not model.towers.has("image")
        assert isinstance(model.generate("a", num_predict=2), str)
        with pytest.raises(ModelError, match=r"mmproj-a\.gguf, mmproj-b\.gguf; pass one"):
            model.generate("a", images=[RED])
    with wb.load(folder / "model.gguf", device="cpu") as model:
        assert model.towers.has("image")
        assert not model.towers.has("audio")


def test_a_tower_that_fails_ends_its_request_alone(model, monkeypatch):
    plain = model.generate("the in an", raw=True, options=GREEDY, num_predict=8)
    prompt = model._raw_prompt(TEXT, [RED, BLUE])

    def fail(graphs, media):
        raise ModelError("a tower's result is not finite")

    with monkeypatch.context() as patch, wb.Engine(model, num_parallel=2) as engine:
        patch.setattr(Graphs, "begin", fail)
        bad = engine.submit(wb.Request(prompt.tokens, placed=prompt.placed))
        good = engine.submit(
            wb.Request(model.prompter.raw("the in an"), options=GREEDY, max_tokens=8)
        )
        with pytest.raises(ModelError, match="not finite"):
            bad.result()
        assert good.result().text == plain
    with monkeypatch.context() as patch:
        patch.setattr(Graphs, "begin", fail)
        with pytest.raises(ModelError, match="not finite"):
            model.generate(TEXT, raw=True, images=[RED, BLUE])
    assert isinstance(model.generate(TEXT, raw=True, images=[RED, BLUE], num_predict=1), str)


# Pieces of a picture between steps.


@pytest.fixture
def smallest_pieces(monkeypatch):
    """Have each piece be one dispatch, however long steps are."""
    monkeypatch.setattr(Speeds, "count", lambda *_: 1)


def submit(engine, text, count, placed=()):
    tokens = text if placed else engine.model.prompter.raw(text)
    fields = {"placed": placed, "options": GREEDY, "max_tokens": count, "ignore_eos": True}
    return engine.submit(wb.Request.of(tokens, **fields))


class Pieces(list):
    """For each piece in an engine: the tokens of other choices before it, pieces and steps."""

    core = None


@pytest.fixture
def pieces(monkeypatch):
    found = Pieces()
    advance = Towers.advance

    def note(towers, inserted, index, seconds, *, together=1):
        core = found.core
        if core is not None:
            others = [e for e in core._running() if e.inserted is not inserted and not e.finished]
            made = {each.ticket.id: each.made for each in others}
            found.append((made, together, len(core._in_flight)))
        return advance(towers, inserted, index, seconds, together=together)

    monkeypatch.setattr(Towers, "advance", note)
    return found


@pytest.mark.slow
def test_streams_get_a_token_between_pieces(model, smallest_pieces, pieces):
    prompt = model._raw_prompt(TEXT, [RED, BLUE])
    wanted = model.tokenizer.decode(greedy(model, TEXT, [RED, BLUE], 4))
    plain = [model.generate(t, raw=True, options=GREEDY, num_predict=120) for t in ("the", "in an")]
    model.towers._rows._rows.clear()
    with wb.Engine(model, num_parallel=4) as engine:
        pieces.core = engine._core
        streams = [submit(engine, text, 120) for text in ("the", "in an")]
        for stream in streams:
            next(iter(stream))
        pieces.clear()
        asked = submit(engine, prompt.tokens, 4, prompt.placed)
        assert asked.result().text == wanted
        assert [stream.result().text for stream in streams] == plain
    # Two pictures, each of as many dispatches as the tower's graph has.
    [(_, graph)] = model.towers._graphs[id(prompt.placed[0].tower)]._recorded.values()
    assert len(pieces) == 2 * len(graph.costs) > 80
    for (made, together, in_flight), (later, *_) in pairwise(pieces):
        assert (together, in_flight) == (1, 0)
        assert len(made) == 2
        assert all(later[id] > count for id, count in made.items())


def test_without_streams_pieces_follow_each_other(model, pieces):
    """Nor do requests count that wait for their own pictures."""
    prompts = [model._raw_prompt(TEXT, each) for each in ([RED, BLUE], [BLUE, RED])]
    with wb.Engine(model, num_parallel=4) as engine:
        pieces.core = engine._core
        for each in [submit(engine, p.tokens, 1, p.placed) for p in prompts]:
            each.result()
    assert {together for _, together, _ in pieces[1:]} == {2}


def test_a_client_that_vanishes_stops_the_tower(model, smallest_pieces, pieces):
    prompt = model._raw_prompt(TEXT, [RED, BLUE])
    with wb.Engine(model, num_parallel=4) as engine:
        pieces.core = engine._core
        stream = submit(engine, "the", 120)
        next(iter(stream))
        asked = submit(engine, prompt.tokens, 4, prompt.placed)
        assert until(lambda: len(pieces) > 3)
        asked.cancel()
        asked.result()
        ran = len(pieces)
        assert ran < 40
        assert stream.result().usage.completion_tokens == 120
        assert len(pieces) == ran
        assert model.towers._now is None
        # Another request begins from the first piece.
        again = submit(engine, prompt.tokens, 4, prompt.placed).result().text
    assert again == model.tokenizer.decode(greedy(model, TEXT, [RED, BLUE], 4))


def test_an_error_in_a_piece_ends_its_request_alone(model, smallest_pieces, pieces, monkeypatch):
    plain = model.generate("the in an", raw=True, options=GREEDY, num_predict=60)
    prompt = model._raw_prompt(TEXT, [RED, BLUE])
    wanted = model.tokenizer.decode(greedy(model, TEXT, [RED, BLUE], 4))
    model.towers._rows._rows.clear()
    advance = NumpyPausableRun.advance

    def fail(run, count):
        if run.done == 7:
            raise DeviceError("the eighth piece")
        return advance(run, count)

    with wb.Engine(model, num_parallel=2) as engine:
        pieces.core = engine._core
        good = submit(engine, "the in an", 60)
        with monkeypatch.context() as patch:
            patch.setattr(NumpyPausableRun, "advance", fail)
            with pytest.raises(DeviceError, match="the eighth piece"):
                submit(engine, prompt.tokens, 4, prompt.placed).result()
        assert good.result().text == plain
        assert submit(engine, prompt.tokens, 4, prompt.placed).result().text == wanted


def test_a_session_leaves_the_model_to_others_between_pieces(model, smallest_pieces, pieces):
    """Each of these has its turn: calls of other threads, and a second session's picture."""
    wanted = model.tokenizer.decode(greedy(model, TEXT, [RED, BLUE], 4))
    green = [np.full((30, 30, 3), (10, 250, 10), np.uint8), RED]
    other = model.tokenizer.decode(greedy(model, TEXT, green, 4))
    model.towers._rows._rows.clear()
    pieces.clear()
    order, ended, found = [], threading.Event(), {}
    advance = Towers.advance

    def note(towers, *given, **options):
        order.append("piece")
        return advance(towers, *given, **options)

    def use():
        while not ended.is_set():
            model.alone(lambda: order.append("call"))

    def ask(session, images):
        options = {"raw": True, "images": images, "options": GREEDY, "num_predict": 4}
        found[session] = session.generate(TEXT, **options)

    with pytest.MonkeyPatch.context() as patch, model.session() as one, model.session() as two:
        patch.setattr(Towers, "advance", note)
        caller = threading.Thread(target=use)
        askers = [
            threading.Thread(target=ask, args=each) for each in ((one, [RED, BLUE]), (two, green))
        ]
        for thread in (caller, *askers):
            thread.start()
        for thread in askers:
            thread.join()
        ended.set()
        caller.join()
        assert (found[one], found[two]) == (wanted, other)
    first = order.index("piece")
    between = order[first : len(order) - order[::-1].index("piece")]
    # Two towers of some 50 dispatches for two or three pictures.
    assert between.count("piece") > 80
    assert sum(pair == ("piece", "call") for pair in pairwise(between)) > 20


def test_other_pictures_meanwhile(model, smallest_pieces, pieces):
    """Sessions and functions of the model encode theirs between pieces of a request's picture."""
    prompt = model._raw_prompt(TEXT, [RED, BLUE])
    wanted = model.tokenizer.decode(greedy(model, TEXT, [RED, BLUE], 4))
    green = [np.full((30, 30, 3), (10, 250, 10), np.uint8)]
    logits = model.logits(TEXT, images=green * 2)
    model.towers._rows._rows.clear()
    with wb.Engine(model, num_parallel=4) as engine:
        pieces.core = engine._core
        stream = submit(engine, "the", 120)
        next(iter(stream))
        asked = submit(engine, prompt.tokens, 4, prompt.placed)
        assert until(lambda: len(pieces) > 3)
        np.testing.assert_array_equal(model.logits(TEXT, images=green * 2), logits)
        assert asked.result().text == wanted
        stream.cancel()


@pytest.mark.slow
@pytest.mark.gpu
def test_pieces_on_a_gpu_give_the_same_bits(folder, smallest_pieces):
    with wb.load(folder / "model.gguf", kv_dtype="f32", num_parallel=4) as model:
        prompt = model._raw_prompt("the <__media__> in", [RED])
        [placed] = prompt.placed
        graphs = model.towers._graphs[id(placed.tower)]
        encoding = graphs.begin(placed.media)
        encoding.advance(0, together=1)
        # Other graphs run between two pieces.
        model.generate("the in an", raw=True, num_predict=2)
        found = encoding.finish()
        encoding = graphs.begin(placed.media)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Speeds, "count", lambda _, dispatches, first, seconds: len(dispatches))
            wanted = encoding.finish()
        np.testing.assert_array_equal(found, wanted)
        with wb.Engine(model, num_parallel=2) as engine:
            stream = submit(engine, "the in an", 100)
            alone = model.generate("the in an", raw=True, options=GREEDY, num_predict=100)
            submit(engine, prompt.tokens, 2, prompt.placed).result()
            assert stream.result().text == alone


@pytest.mark.slow
@pytest.mark.gpu
def test_a_deterministic_engine_gives_the_same_bits_in_company(folder, full):
    """Log probabilities of requests with pictures and without, alone and together."""
    where = {"device": full.info, "num_parallel": 8, "kv_dtype": "f32"}
    how = {"deterministic": True, "batch_tokens": 64, "prefix_cache": False}
    with wb.load(folder / "model.gguf", **where) as model:
        prompts = [
            model._raw_prompt(TEXT, [RED, BLUE]),
            model._raw_prompt("in <__media__> the", [BLUE]),
            *(Prompt(model.prompter.raw(text)) for text in ("the in an", "on " * 40, "the")),
        ]

        def ask(engine, number):
            prompt, options = prompts[number], {"seed": number, "temperature": 1.0}
            fields = {"placed": prompt.placed, "options": options, "max_tokens": 5, "logprobs": 2}
            return engine.submit(wb.Request.of(prompt.tokens, ignore_eos=True, **fields))

        def found(asked):
            [choice] = asked.result(PATIENCE).choices
            return choice.tokens, [each.logprob for each in choice.logprobs]

        with wb.Engine(model, **how) as engine:
            alone = [found(ask(engine, number)) for number in range(len(prompts))]
            together = [ask(engine, number) for number in (3, 0, 2, 1, 4, 0, 1)]
            for number, asked in zip((3, 0, 2, 1, 4, 0, 1), together, strict=True):
                assert found(asked) == alone[number]
        # Its tokens are those of the pictures.
        with wb.Engine(model) as engine:
            assert [found(ask(engine, number))[0] for number in (0, 1)] == [
                tokens for tokens, _ in alone[:2]
            ]
        # Four rows of a picture attend to each other.
        with (
            wb.Engine(model, deterministic=True, batch_tokens=3, num_parallel=2) as engine,
            pytest.raises(OptionError, match=r"batch_tokens: 3 .*4 rows .*with 4 at least"),
        ):
            ask(engine, 1)


def test_a_pass_of_fixed_shape_has_room_for_whole_pictures(model):
    """A picture that the rest of the pass has no room for waits for the next one."""

    def whole(budget, *given):
        loop = SimpleNamespace(_shapes=True, _options=SimpleNamespace(budget=budget))
        seated = [
            SimpleNamespace(sent=sent, ahead=0, inserted=inserted) for sent, _, inserted in given
        ]
        planned = TokenLoop._whole_runs(loop, seated, [share for _, share, _ in given])
        places = {id(each): place for place, each in enumerate(seated)}
        return {places[id(each)]: count for each, count in planned}

    tower = SimpleNamespace(is_causal=False)
    picture = Inserted([Placed(None, tower, [Run(10, 0, Rows(6))])], 8, turns=False)
    assert picture.longest == 6
    assert whole(12, (0, 4, None), (10, 4, picture), (0, 4, None)) == {0: 4, 1: 6, 2: 2}
    assert whole(9, (0, 4, None), (10, 4, picture), (0, 1, None)) == {0: 4, 2: 1}
    assert whole(9, (10, 3, picture), (10, 3, picture), (0, 3, None)) == {0: 6, 2: 3}
    # Text before the picture ends there.
    assert whole(12, (8, 4, picture), (0, 4, None)) == {0: 2, 1: 4}


def test_speeds_learn_the_time_of_each_dispatch():
    """Seconds of three ops, whose costs say nothing of them, from pieces of several."""
    a, b, c = ("a", 4_000_000), ("b", 100_000), ("c", 40_000_000)
    real, layer = {a: 0.002, b: 0.0001, c: 0.001}, [a, b, b, c]
    graph, speeds = layer * 40, Speeds()
    pieces, at = [], 0
    while at < len(graph):
        count = speeds.count(graph, at, 0.004)
        took = sum(real[each] for each in graph[at : at + count])
        speeds.measure(graph[at : at + count], took)
        pieces.append(took)
        at += count
    assert max(pieces[8:-1]) <= 0.0065
    assert min(pieces[8:-1]) >= 0.0015
    assert sum(speeds.predict(each) for each in layer) == pytest.approx(0.0032, rel=0.3)
    # A pause of the machine counts four times at most.
    before = speeds.predict(a)
    speeds.measure([a], 10.0)
    assert speeds.predict(a) == pytest.approx(4 * before)
    # However short the time, a piece is one dispatch, and it ends with the graph.
    assert speeds.count(graph, 0, 0.0) == 1
    assert speeds.count(graph, len(graph) - 2, 9.0) == 2


def test_a_new_dispatch_is_run_once_in_a_piece():
    """One that takes ten times as long as predicted delays others once, and not those known."""
    slow, quick, speeds = ("slow", 1_000_000), ("quick", 1_000_000), Speeds()
    speeds.measure([quick], 0.001)
    graph = [quick, *[slow] * 11, quick]
    count = speeds.count(graph, 0, 0.02)
    assert count == 2
    speeds.measure(graph[:count], 0.011)
    assert speeds.predict(quick) == 0.001
    assert speeds.predict(slow) == pytest.approx(0.01)
    assert speeds.count(graph, count, 0.025) == 2
    # Known ones that took longer leave the new one a part.
    speeds.measure([quick, ("other", 5)], 0.001)
    assert 0 < speeds.predict(("other", 5)) <= 0.0001 + 1e-12


def test_a_request_without_pictures_has_none_after_a_list():
    """As requests arrive in other processes, where tuples are lists."""
    assert wb.Request([1], placed=[]) == wb.Request([1])


def test_a_closed_model_is_released_without_a_collection(folder):
    gc.disable()
    try:
        model = wb.load(folder / "model.gguf", device="cpu")
        model.generate("a", raw=True, images=[RED], num_predict=1)
        references = [weakref.ref(part) for part in (model, model.towers, model.backend)]
        model.close()
        del model
        assert [part() for part in references] == [None] * 3
    finally:
        gc.enable()
