"""Models whose layers forget: right in every way of asking, and little is read twice."""

import numpy as np
import pytest

from tests.builders import Dims, tiny_model
from tests.engine.streams import token_stream, tokens_of
from wgpu_backend import nn
from wgpu_backend.dtypes import F32
from wgpu_backend.engine.runner import Head, Runner
from wgpu_backend.engine.sessions import Session
from wgpu_backend.errors import ContextError
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.models.llama import Llama
from wgpu_backend.nn.batch import Work
from wgpu_backend.nn.kvcache.factory import make_cache
from wgpu_backend.nn.kvcache.layered import LayeredCache
from wgpu_backend.nn.kvcache.layers import StateShape
from wgpu_backend.nn.kvcache.paged import PagedCache
from wgpu_backend.nn.kvcache.recurrent import Checkpoints
from wgpu_backend.ops.sampling.host import SamplingOptions
from wgpu_backend.testing import nmse

LIMIT = 1e-10  # sums in another order, as in tests of models
POSITIONS, INTERVAL, LAYERS = 512, 64, 4
WINDOWS = (20, 0, 7, 33)
TOKENS = np.random.default_rng(2).integers(0, 256, 300).tolist()


class Windowed(Llama):
    """Llama with windows of several lengths, and one layer that sees all."""

    def layer(self, config):
        attention = nn.SelfAttention(config, self.rope, window=WINDOWS[config.index])
        return nn.Layer(config, attention, nn.MLP(config))


class Hybrid(Llama):
    """Llama that can go on only from where states were kept, as if it had some."""

    def cache_layers(self):
        return [(shape, StateShape(state=(4,))) for shape in super().cache_layers()]


class Convolved(Windowed):
    """Windows, and a short convolution in front: states that the device writes."""

    def cache_layers(self):
        first, *rest = super().cache_layers()
        return [(first, StateShape(taps=(3, self.width))), *rest]

    def embed(self, batch):
        state = batch.state(0, "taps")
        weight = np.random.default_rng(3).standard_normal((self.width, 4), "f4")
        x = super().embed(batch)
        return x.short_conv(batch.context.from_numpy(weight), state.rows, state.runs)


class Running:
    """A model with a cache."""

    def __init__(self, model, cache, chunk) -> None:
        self.model, self.cache = model, cache
        self.runner = Runner(model, cache, chunk)
        self.head = Head("logits", lambda _, hidden: [model.logits(hidden)])
        self.session = Session(cache)
        self.vocabulary = model.token_embedding.weight.shape[0]

    def ask(self, tokens, step=32, sequence=0):
        """Logits of all tokens, in passes of so many."""
        parts = []
        for start in range(0, len(tokens), step):
            part = tokens[start : start + step]
            work = Work(sequence, part, range(len(part)))
            parts.append(self.runner.run([work], self.head, {}).wait()[0][: len(part)])
        return np.concatenate(parts)

    def answer(self, prompt, limit, depth=4, ends=()):
        """Greedy tokens after a prompt, and how many of the prompt were computed."""
        greedy, room = SamplingOptions(temperature=0.0), POSITIONS
        how = {"vocabulary": self.vocabulary, "depth": depth, "ends": ends, "max_tokens": limit}
        stream = token_stream(self.runner, self.session, prompt, greedy, room=room, **how)
        return list(tokens_of(stream)), stream.stats.prompt_tokens

    def close(self):
        self.runner.close()
        self.cache.close()


@pytest.fixture(scope="module", params=["numpy", pytest.param("full", marks=pytest.mark.gpu)])
def backend(request, tmp_path_factory):
    executor = NumpyExecutor()
    if request.param != "numpy":
        executor = request.getfixturevalue("executors")(request.param)
    path = tmp_path_factory.mktemp("forgetting") / "tiny.gguf"
    with open_gguf(tiny_model(path, dims=Dims(LAYERS, context=POSITIONS))) as file:
        backend = Backend(file, executor)
        backend.load()
        yield backend


@pytest.fixture
def make(backend):
    made = []

    def make(kind, *, forgets=True, chunk=32):
        model = kind(backend)
        layers, executor = model.cache_layers(), backend.executor
        if forgets:
            points = Checkpoints(INTERVAL, 3)
            cache = make_cache(executor, layers, 2, POSITIONS, F32, points)
            assert isinstance(cache, LayeredCache)
        else:
            cache = PagedCache(executor, list(layers), 4 * POSITIONS, F32)
        made.append(Running(model, cache, chunk if forgets else 512))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.slow
@pytest.mark.parametrize("step", [32, 7, 1])
def test_a_window_gives_the_same_whatever_is_forgotten(make, step):
    tokens = TOKENS[: 60 if step == 1 else 300]
    wanted = make(Windowed, forgets=False).ask(tokens, 300)
    assert nmse(make(Windowed).ask(tokens, step), wanted) <= LIMIT


@pytest.mark.slow
def test_states_go_on_as_if_a_text_were_one_pass(make):
    wanted = make(Convolved, chunk=128).ask(TOKENS[:100], 100)
    model = make(Convolved)
    assert nmse(model.ask(TOKENS[:100], 7), wanted) <= LIMIT
    left = model.cache.remove(0, 60)
    assert 60 - INTERVAL <= left <= 60
    model.ask(TOKENS[:40], sequence=2)
    works = [Work(2, TOKENS[40:45], range(5)), Work(0, TOKENS[left : left + 20], range(20))]
    got = model.runner.run(works, model.head, {}).wait()[0]
    assert nmse(got[:5], wanted[40:45]) <= LIMIT
    assert nmse(got[5:25], wanted[left : left + 20]) <= LIMIT
    begin = model.cache.copy_prefix(0, 1, left + 20)
    assert begin == left + 20
    got = model.ask(TOKENS[begin : begin + 9], 4, sequence=1)
    assert nmse(got, wanted[begin : begin + 9]) <= LIMIT


@pytest.mark.slow
def test_windows_and_states_matter(make):
    everything = make(Llama, forgets=False).ask(TOKENS)
    windowed = make(Windowed, forgets=False).ask(TOKENS)
    assert nmse(windowed, everything) > 1e-4
    assert nmse(make(Convolved).ask(TOKENS), windowed) > 1e-4


def test_sequences_of_a_batch_forget_for_themselves(make):
    windowed, whole = make(Windowed), make(Windowed, forgets=False)
    windowed.ask(TOKENS[:100], 32, sequence=1)
    works = [Work(1, TOKENS[100:120], range(20)), Work(2, TOKENS[:5], range(5))]
    got = windowed.runner.run(works, windowed.head, {}).wait()[0]
    assert nmse(got[:20], whole.ask(TOKENS[:120])[100:]) <= LIMIT
    assert nmse(got[20:25], whole.ask(TOKENS[:5], sequence=2)) <= LIMIT


def test_a_copied_prefix_goes_on_as_the_sequence_would(make):
    windowed = make(Windowed)
    windowed.ask(TOKENS[:200])
    begin = windowed.cache.copy_prefix(0, 1, 150)
    assert 150 - INTERVAL <= begin <= 150
    wanted = make(Windowed, forgets=False).ask(TOKENS[:220])
    assert nmse(windowed.ask(TOKENS[begin:220], 30, sequence=1), wanted[begin:]) <= LIMIT
    assert nmse(windowed.ask(TOKENS[200:220]), wanted[200:]) <= LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Windowed, Hybrid])
def test_the_next_turn_of_a_chat_reads_at_most_an_interval_again(make, kind):
    talk, anew = make(kind), make(kind)
    prompt = TOKENS[:150]
    first, computed = talk.answer(prompt, 40)
    assert computed == 150
    for shared in (190, 185, 149, 120, 64, 30):  # what a template leaves of the turns before
        following = [*(prompt + first)[:shared], *TOKENS[200:230]]
        got, computed = talk.answer(following, 12)
        again = computed - 30
        assert 0 <= again <= INTERVAL + 1
        anew.cache.remove(0)
        anew.session.tokens.clear()
        assert got == anew.answer(following, 12)[0]


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_an_end_loses_nothing_that_was_read_before_it(make, depth):
    talk = make(Hybrid)
    tokens, _ = talk.answer(TOKENS[:150], 40)
    end = next(t for i, t in enumerate(tokens) if i > 9 and t not in tokens[:i])
    talk.answer(TOKENS[:20], 1)
    made, _ = talk.answer(TOKENS[:150], 40, depth, [end])
    assert made == tokens[: tokens.index(end)]
    kept = talk.cache.length(0)
    assert talk.session.tokens == (TOKENS[:150] + made)[:kept]
    if depth <= 4:
        assert kept == 150 + len(made)


@pytest.mark.parametrize("shared", [False, True])
def test_after_a_shift_keys_are_those_of_their_new_positions(make, shared):
    talk, whole = make(Windowed, forgets=False), make(Windowed, forgets=False)
    talk.ask(TOKENS[:200])
    if shared:
        talk.cache.copy_prefix(0, 1, 200)
    talk.cache.shift(0, 40, 130)
    assert talk.cache.length(0) == 110
    whole.ask([*TOKENS[:40], *TOKENS[130:200]])
    # Those of a first layer depend on nothing but their token and its position.
    assert nmse(first_keys(talk, 110), first_keys(whole, 110)) <= 1e-9
    if shared:
        whole.ask(TOKENS[:200], sequence=1)
        assert nmse(first_keys(talk, 200, 1), first_keys(whole, 200, 1)) <= 1e-12


def first_keys(talk, count, sequence=0):
    """Keys of the first layer at the positions of a sequence."""
    table = np.zeros((1, talk.cache.positions // 32), np.int32)
    talk.cache.fill_table(table, [sequence])
    at = np.arange(count)
    keys = talk.model.backend.executor.read(talk.cache.tensors[0])
    return keys[table[0, at // 32] * 32 + at % 32]


def test_a_shift_of_windows_goes_where_enough_is_left(make):
    talk = make(Windowed)
    talk.ask(TOKENS[:200])
    assert talk.cache.can_shift(0, 32, 128)
    assert not talk.cache.can_shift(0, 32, 192), "the window of 33 would see what is gone"
    talk.cache.shift(0, 32, 128)
    assert talk.cache.length(0) == 104
    assert np.isfinite(talk.ask(TOKENS[200:230])).all()
    assert 0 < talk.cache.resume_point(0, 134) <= 134


def test_states_cannot_be_shifted(make):
    talk = make(Hybrid)
    talk.ask(TOKENS[:100])
    assert not talk.cache.can_shift(0, 32, 64)
    with pytest.raises(ContextError, match="cannot remove positions 32 to 64 of 100"):
        talk.cache.shift(0, 32, 64)


@pytest.mark.parametrize("spans", [(), ((40, 45),)])
def test_tokens_of_a_span_see_each_other(make, spans):
    rows = []
    for last in (7, 8):
        talk = make(Windowed, chunk=64)
        talk.ask(TOKENS[:30])
        tokens = [*TOKENS[30:75], last, *TOKENS[76:80]]
        works = [Work(0, tokens, range(len(tokens)), spans=spans)]
        rows.append(talk.runner.run(works, talk.head, {}).wait()[0][: len(tokens)])
    differ = np.abs(rows[0] - rows[1]).max(axis=1) > 0
    assert differ.argmax() == (40 if spans else 45)
