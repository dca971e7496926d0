"""Contexts: results equal the engine's, and sequences do not affect each other."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.builders import tiny_model
from tests.models.cases import recorded, types
from wgpu_backend import load
from wgpu_backend.errors import (
    BackendError,
    CacheFull,
    ContextError,
    ContextFull,
    OptionError,
    TokenizerError,
)
from wgpu_backend.llama import Aborted, Batch, Context, Model
from wgpu_backend.ml.backend import LoadCancelled
from wgpu_backend.testing import nmse

CLOSE = {"atol": 2e-5, "rtol": 1e-5}  # sums in another order
TOKENS = [1, 7, 3, 99, 200, 5, 5, 8]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("bridge") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path):
    with Model(path, device="cpu") as model:
        yield model


@pytest.fixture
def context(model):
    with Context(model, n_ctx=96, n_seq_max=4, kv_dtype="f32") as context:
        yield context


@pytest.fixture(scope="module")
def expected(path):
    with load(path, device="cpu", kv_dtype="f32") as language:
        yield language.logits(TOKENS)


def all_rows(tokens, sequence=0):
    batch = Batch(len(tokens))
    batch.add_sequence(tokens, sequence, logits_all=True)
    return batch


def test_logits_are_those_of_the_engine(context, expected):
    context.decode(all_rows(TOKENS))
    np.testing.assert_allclose(context.get_logits(), expected, **CLOSE)
    np.testing.assert_array_equal(context.get_logits_ith(-1), context.get_logits()[-1])


def test_logits_are_those_of_llama_cpp(tmp_path):
    case = types("llama")["f32"]
    with (
        Model(case.write(tmp_path / "model.gguf"), device="cpu", exact=True) as model,
        Context(model, kv_dtype="f32") as context,
    ):
        context.decode(all_rows(case.tokens))
        found = context.get_logits()[list(case.rows)]
    assert nmse(found, recorded("llama", "f32")) < 1e-10


def test_rows_are_found_by_place_in_the_batch(context, expected):
    batch = Batch(16)
    for i, token in enumerate(TOKENS):  # two sequences, token by token
        batch.add(token, i, 0, logits=i == 3)
        batch.add(token, i, 2, logits=i == 7)
    context.decode(batch)
    np.testing.assert_allclose(context.get_logits_ith(6), expected[3], **CLOSE)
    np.testing.assert_allclose(context.get_logits_ith(15), expected[7], **CLOSE)
    with pytest.raises(ContextError, match="token 5 has no results"):
        context.get_logits_ith(5)


def test_a_batch_of_many_passes_gives_every_row(path, model):
    tokens = np.random.default_rng(3).integers(0, 250, 300).tolist()
    with Context(model, n_ctx=320, kv_dtype="f32") as context:
        context._most_logits = 100
        context.decode(all_rows(tokens))
        found = context.get_logits()
    with load(path, device="cpu", kv_dtype="f32", num_ctx=320) as language:
        np.testing.assert_allclose(found, language.logits(tokens), **CLOSE)


def test_a_token_may_belong_to_several_sequences(context, expected):
    batch = Batch()
    for token in TOKENS[:-1]:
        batch.add(token, seq_ids=(0, 1, 3))
    context.decode(batch)
    assert [context.seq_pos_max(s) for s in range(4)] == [6, 6, -1, 6]
    context.decode(Batch.get_one(TOKENS[-1:], 3))
    np.testing.assert_allclose(context.get_logits_ith(), expected[-1], **CLOSE)


def test_a_failed_call_leaves_sequences_as_they_were(context):
    context.decode(Batch.get_one(TOKENS))
    batch = Batch(200)
    batch.add_sequence(TOKENS, 1)
    batch.add_sequence([1] * 95, 0)
    with pytest.raises(CacheFull, match="sequence 0 would have 103 positions"):
        context.decode(batch)
    context.set_abort_callback(lambda: True)
    with pytest.raises(Aborted):
        context.decode(Batch.get_one(TOKENS, 1))
    assert [context.seq_pos_max(s) for s in (0, 1)] == [7, -1]
    with pytest.raises(ContextError, match="no batch"):
        context.get_logits()


def test_an_abort_callback_ends_a_call(model):
    asked = []
    with Context(model, n_ctx=600, abort_callback=lambda: asked.append(1) or len(asked) > 1) as c:
        with pytest.raises(Aborted):
            c.decode(Batch.get_one([1] * 400))
        assert c.seq_pos_max(0) == -1


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Batch(2), ContextError, "0 tokens, needs 1"),
        (lambda: Batch.get_one([9999]), TokenizerError, "token 9999"),
        (lambda: Batch.get_one([-1]), TokenizerError, "token -1"),
        (lambda: Batch.get_one([1], 4), ContextError, "has 0 to 3"),
    ],
)
def test_a_wrong_batch_is_refused(context, make, error, message):
    with pytest.raises(error, match=message):
        context.decode(make())


def test_a_token_must_be_at_the_next_position(context):
    batch = Batch()
    batch.add(1, pos=3)
    with pytest.raises(ContextError, match="position 3 of sequence 0, the next one is 0"):
        context.decode(batch)


def test_a_full_batch_refuses_tokens():
    batch = Batch(1)
    batch.add(1)
    with pytest.raises(ContextError, match="full with 1 tokens"):
        batch.add(1)
    with pytest.raises(ContextError, match="distinct numbers"):
        Batch(2).add(1, seq_ids=(0, 0))


def test_a_gap_is_closed_by_moving_all_later_positions(context):
    context.decode(Batch.get_one(TOKENS))
    assert context.can_shift()
    assert context.seq_rm(0, 2, 4)
    with pytest.raises(ContextError, match=r"seq_add\(0, 4, -1, -2\)"):
        context.decode(Batch.get_one([1]))
    with pytest.raises(ContextError, match="must move by its size"):
        context.seq_add(0, 4, -1, -1)
    context.seq_add(0, 4, -1, -2)
    assert context.seq_pos_max(0) == 5
    context.decode(Batch.get_one([1]))


def test_removing_the_end_removes_its_gap(context):
    context.decode(Batch.get_one(TOKENS))
    assert context.seq_rm(0, 2, 4)
    assert context.seq_rm(0, 4, -1)
    assert context.seq_pos_max(0) == 1
    context.decode(Batch.get_one([1]))


def test_copies_need_an_empty_target(context):
    context.decode(Batch.get_one(TOKENS))
    context.seq_cp(0, 1, 0, 5)
    assert context.seq_pos_max(1) == 4
    with pytest.raises(ContextError, match="an empty target, not 5"):
        context.seq_cp(0, 1)
    with pytest.raises(ContextError, match="needs the first"):
        context.seq_cp(0, 2, 3)
    context.seq_keep(1)
    assert [context.seq_pos_max(s) for s in (0, 1)] == [-1, 4]


def test_states_are_pooled_as_the_engine_does(path, model):
    with (
        load(path, device="cpu", kv_dtype="f32") as language,
        Context(model, n_seq_max=2, kv_dtype="f32", embeddings=True, pooling_type=1) as context,
    ):
        context.decode(Batch.get_one(TOKENS, 1))
        states = language.states(TOKENS)
        np.testing.assert_allclose(context.get_embeddings(), states, **CLOSE)
        np.testing.assert_allclose(context.get_embeddings_seq(1), states.mean(axis=0), **CLOSE)
        with pytest.raises(ContextError, match="computes embeddings"):
            context.get_logits()
        with pytest.raises(ContextError, match="the last batch has no tokens of sequence 0"):
            context.get_embeddings_seq(0)


def test_closing_twice_is_harmless_and_later_use_is_an_error(path):
    model = Model(path, device="cpu")
    context = Context(model)
    other = Context(model)
    other.close()
    with pytest.raises(BackendError, match="the context was closed"):
        other.clear()
    model.close()
    for each in (context, other, model):
        each.close()
    with pytest.raises(BackendError, match="the model was closed"):
        context.decode(Batch.get_one([1]))
    with pytest.raises(BackendError, match="the model was closed"):
        Context(model)


def test_threads_do_not_change_each_others_logits(model, expected):
    def computed(_):
        with Context(model, n_ctx=64, kv_dtype="f32") as context:
            for token in TOKENS:
                context.decode(Batch.get_one([token]))
            return context.get_logits_ith()

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(computed, range(6)):
            np.testing.assert_allclose(found, expected[-1], **CLOSE)


def test_numbers_out_of_range_are_refused(model):
    with pytest.raises(ContextFull, match="n_ctx"):
        Context(model, n_ctx=-1)
    with pytest.raises(OptionError, match="n_seq_max"):
        Context(model, n_seq_max=300)
    with pytest.raises(OptionError, match="pooling_type"):
        Context(model, pooling_type=9)


def test_a_progress_callback_may_end_loading(path):
    fractions = []
    Model(path, device="cpu", progress_callback=fractions.append).close()
    assert fractions[-1] == 1.0
    with pytest.raises(LoadCancelled):
        Model(path, device="cpu", progress_callback=lambda _: False)


def test_vocab_only_cannot_compute(path, model):
    with Model(path, vocab_only=True) as tokens:
        assert tokens.tokenize(b"hello") == model.tokenize(b"hello")
        assert tokens.desc() == model.desc()
        with pytest.raises(ValueError, match="vocab_only"):
            Context(tokens)


def test_a_model_reports_its_metadata(path, model):
    assert (model.n_layer(), model.n_embd(), model.n_head(), model.n_head_kv()) == (2, 64, 4, 2)
    assert model.n_ctx_train() == 128
    assert model.size() == 4 * model.n_params()
    assert model.meta_val_str("general.architecture") == "llama"
    assert model.meta_val_str("nothing") is None
    assert model.meta_key_by_index(0) in model.metadata()
    assert "message" in model.chat_template()
    assert model.is_eog(model.token_eos())
    assert model.token_get_attr(model.token_bos()) == 8
    assert model.token_to_piece(model.token_bos()) == b""
    assert model.token_to_piece(model.token_bos(), special=True) == b"<|begin|>"
    assert model.detokenize(model.tokenize(b"the man", add_special=False)) == b"the man"
    with pytest.raises(TokenizerError):
        model.token_get_text(model.n_vocab())


class Sequences(RuleBasedStateMachine):
    """Tokens of each sequence, and what a fresh context makes of them."""

    model: Model

    def __init__(self):
        super().__init__()
        self.context = Context(self.model, n_ctx=96, n_seq_max=3, kv_dtype="f32")
        self.fresh = Context(self.model, n_ctx=96, kv_dtype="f32")
        self.tokens = {s: [] for s in range(3)}

    def teardown(self):
        self.context.close()
        self.fresh.close()

    sequences = st.integers(0, 2)
    some = st.lists(st.integers(0, 250), min_size=1, max_size=40)

    @rule(sequence=sequences, tokens=some)
    def decode(self, sequence, tokens):
        try:
            self.context.decode(Batch.get_one(tokens, sequence))
        except CacheFull:
            return
        self.tokens[sequence] += tokens
        self.fresh.clear()
        self.fresh.decode(Batch.get_one(self.tokens[sequence]))
        found, fresh = self.context.get_logits_ith(), self.fresh.get_logits_ith()
        np.testing.assert_allclose(found, fresh, **CLOSE)

    @rule(sequence=sequences, left=st.integers(0, 96))
    def cut(self, sequence, left):
        assert self.context.seq_rm(sequence, left, -1)
        del self.tokens[sequence][left:]

    @rule(source=sequences, to=sequences)
    @precondition(lambda self: any(self.tokens.values()))
    def copy(self, source, to):
        if source == to:
            return
        self.cut(to, 0)
        try:
            self.context.seq_cp(source, to)
        except CacheFull:
            return
        self.tokens[to] = [*self.tokens[source]]

    @rule(source=sequences, to=sequences)
    def save_and_restore(self, source, to):
        data = self.context.state_seq_get_data(source)
        try:
            self.context.state_seq_set_data(data, to)
        except CacheFull:
            self.tokens[to] = []
        else:
            self.tokens[to] = [*self.tokens[source]]

    @rule()
    def save_and_restore_all(self):
        data = self.context.state_get_data()
        try:
            self.context.state_set_data(data)
        except CacheFull:  # what was shared takes more room now
            self.tokens = {s: [] for s in range(3)}

    @invariant()
    def lengths_agree(self):
        for sequence, tokens in self.tokens.items():
            assert self.context.seq_pos_max(sequence) == len(tokens) - 1


def test_random_operations_leave_the_expected_sequences(model):
    Sequences.model = model
    run_state_machine_as_test(
        Sequences, settings=settings(max_examples=10, stateful_step_count=10, deadline=None)
    )
