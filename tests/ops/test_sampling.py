import numpy as np
import pytest

from wgpu_backend.dtypes import I32, U32
from wgpu_backend.errors import ContextError, DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.reference import get_reference
from wgpu_backend.ops.sampling import sampling
from wgpu_backend.ops.sampling.host import SamplingOptions, make_sampling_params
from wgpu_backend.ops.sampling.host.weights import weights
from wgpu_backend.ops.sampling.sampling import MAX_K

NAN, INF = np.float32(np.nan), np.float32(np.inf)


def in_the_middle(shape, value, elsewhere):
    values = np.full(shape, elsewhere, np.float32)
    values[:, shape[1] // 2] = value
    return values


def clusters(rng, shape):
    """Many large values, in fewer than 64 of the subsets that the bound is estimated from."""
    values = rng.normal(size=shape)
    values[:, np.arange(shape[1]) % 256 < 60] += 50
    return values


ROWS = {
    "random": lambda rng, shape: rng.normal(size=shape),
    "ties": lambda rng, shape: np.round(rng.normal(size=shape)),
    "constant": lambda rng, shape: np.full(shape, -2.5),
    "zeros of both signs": lambda rng, shape: np.where(rng.random(shape) < 0.5, -0.0, 0.0),
    "ascending": lambda rng, shape: np.sort(rng.normal(size=shape)),
    "descending": lambda rng, shape: -np.sort(rng.normal(size=shape)),
    "ruled out but one": lambda rng, shape: in_the_middle(shape, 1, -INF),
    "a NaN in the middle": lambda rng, shape: in_the_middle(shape, -NAN, 1),
    "clusters": lambda rng, shape: clusters(rng, shape),
    "denormals": lambda rng, shape: rng.integers(-9, 9, shape) * 1e-45,
}


def top_k(executor, values, k):
    with Context(executor) as context:
        return context.from_numpy(values).top_k(k=k).numpy()


def sorted_ids(values, k):
    """Ids of the k largest, NaN first, by a sort of whole rows."""
    clean = np.where(np.isnan(values), np.inf, values.astype(np.float64))
    order = np.lexsort((np.broadcast_to(np.arange(values.shape[1]), values.shape), -clean))
    return np.pad(order[:, :k], ((0, 0), (0, max(k - values.shape[1], 0))), constant_values=-1)


# Rows in one part; in parts of about the square root; with a last part shorter than k.
@pytest.mark.parametrize("shape", [(1, 1), (3, 33), (2, 1025), (2, 6007), (1, 70_001)], ids=str)
@pytest.mark.parametrize("kind", ROWS)
def test_top_k_is_the_head_of_a_sort(any_gpu, rng, shape, kind):
    values = ROWS[kind](rng, shape).astype(np.float32)

    for k in (1, 7, 64, 256):
        np.testing.assert_array_equal(sorted_ids(values, k), top_k(any_gpu, values, k))


@pytest.mark.parametrize("cols", [151_936, 262_144])
def test_top_k_of_a_whole_vocabulary(gpu, rng, cols):
    values = rng.normal(size=(1, cols)).astype(np.float32)

    np.testing.assert_array_equal(sorted_ids(values, 40), top_k(gpu, values, 40))


@pytest.mark.parametrize("kind", ROWS)
def test_references_of_top_k_agree_with_a_sort(rng, kind):
    values = ROWS[kind](rng, (2, 500)).astype(np.float32)

    winners = get_reference("top_k_of_parts")(values, k=9, part=120)
    assert winners.shape == (2, 45)
    found = get_reference("top_k_of_ids")(values, winners, k=9)
    np.testing.assert_array_equal(sorted_ids(values, 9), found)


def test_top_k_of_ids_passes_over_ids_outside_the_row(any_gpu, check):
    values = np.array([[1, 5, 3, 4], [4, 3, 2, 1]], np.float32)
    ids = np.array([[-1, 2, 4, 0, 99], [-1, -1, 3, 1, 1 << 30]], np.int32)

    def build(context):
        return context.from_numpy(values).top_k_of_ids(context.from_numpy(ids), k=3)

    check(any_gpu, build, limit=0)
    with Context(any_gpu) as context:
        assert build(context).numpy().tolist() == [[2, 0, -1], [1, 3, -1]]


def test_top_k_takes_views(any_gpu, rng):
    values = rng.normal(size=(4, 3000)).astype(np.float32)

    with Context(any_gpu) as context:
        tensor = context.from_numpy(values)
        rows = tensor.slice(0, 1, 3).top_k(k=5).numpy()
        columns = tensor.slice(1, 7, 2900).top_k(k=5).numpy()

    np.testing.assert_array_equal(sorted_ids(values[1:3], 5), rows)
    np.testing.assert_array_equal(sorted_ids(values[:, 7:2900], 5), columns)


@pytest.mark.parametrize("cols", [5, 2048, 5000])
@pytest.mark.parametrize("length", [1, 64, 300])
def test_penalties_agree_with_numpy_to_the_last_bit(any_gpu, rng, cols, length):
    values = rng.normal(size=(3, cols)).astype(np.float32) * 9
    values[:, ::7] = -INF
    history = rng.integers(-1, min(cols, 40), (3, length)).astype(np.int32)
    history[0] = -1
    history[1, 0] = cols - 1
    params = np.stack(
        [
            make_sampling_params(
                SamplingOptions(repeat_penalty=r, presence_penalty=p, frequency_penalty=f)
            )
            for r, p, f in [(1.1, 0, 0), (1.37, 0.3, 0.7), (0.9, -0.21, 1e-3)]
        ]
    ).astype(np.float32)

    with Context(any_gpu) as context:
        x, seen = context.from_numpy(values), context.from_numpy(history)
        found = x.penalise(seen, context.from_numpy(params)).numpy()

    expected = get_reference("penalise")(values, history, params)
    np.testing.assert_array_equal(expected, found)
    np.testing.assert_array_equal(values[0], found[0])


def drawn(executor, values, ids, options, draws):
    """Tokens that the op takes, a row for each draw."""
    count = len(draws)
    params = np.tile(make_sampling_params(options).array(), (count, 1))
    with Context(executor) as context:
        x = context.from_numpy(np.tile(np.float32(values), (count, 1)))
        candidates = context.from_numpy(np.tile(np.int32(ids), (count, 1)))
        numbers = context.from_numpy(np.asarray(draws, np.uint32), U32)
        return x.sample(candidates, context.from_numpy(params), numbers).numpy()


def test_a_draw_falls_on_candidates_in_their_order(any_gpu):
    values = np.log([0.1, 0.2, 0.3, 0.4])
    options = SamplingOptions(temperature=1.0, top_k=4, top_p=1.0)
    draws = [int(u * 2**32) for u in (0, 0.39, 0.41, 0.69, 0.71, 0.89, 0.91, 1 - 2**-32)]

    found = drawn(any_gpu, values, [3, 2, 1, 0], options, draws)

    assert found.tolist() == [3, 3, 2, 2, 1, 1, 0, 0]


def test_equal_candidates_are_equally_likely(any_gpu):
    # The sum of 256 whole weights is 2³¹; one more bit and it would not fit.
    options = SamplingOptions(temperature=1.0, top_k=256, top_p=1.0)
    draws = np.arange(256) << 24  # a draw on the seam belongs to the token behind it

    found = drawn(any_gpu, np.zeros(256), range(256), options, draws)

    assert found.tolist() == list(range(256))


def test_weights_on_the_device_are_those_of_numpy(any_gpu):
    # Of two tokens the second is taken from one draw on, which tells its weight exactly.
    gaps = np.linspace(0, 11, 700, dtype=np.float32)
    logits = np.stack([np.zeros_like(gaps), -gaps], axis=1)
    params = make_sampling_params(SamplingOptions(temperature=0.9, top_p=1.0)).array()
    totals = [int(weights(row, float(params[3])).sum()) for row in logits]
    turns = [-(-(1 << 55) // total) for total in totals]

    with Context(any_gpu) as context:
        x, rows = context.from_numpy(logits), len(gaps)
        ids = context.from_numpy(np.tile(np.int32([0, 1]), (rows, 1)))
        given = context.from_numpy(np.tile(params, (rows, 1)))
        draws = [context.from_numpy(np.uint32(turns) - less, U32) for less in (0, 1)]
        behind, before = (x.sample(ids, given, d).numpy() for d in draws)

    assert behind.tolist() == [1] * len(gaps)
    assert before.tolist() == [0] * len(gaps)


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        ([0, NAN, 1], [1, 2, 0]),
        ([0, INF, 1], [1, 2, 0]),
        ([-INF, -INF, -INF], [0, 1, 2]),
    ],
)
def test_logits_that_are_not_numbers_give_no_token(any_gpu, values, ids):
    assert drawn(any_gpu, values, ids, SamplingOptions(), [0, 1 << 31]).tolist() == [-1, -1]
    found = get_reference("sample")(
        np.float32([values]),
        np.array([ids]),
        make_sampling_params(SamplingOptions()).array()[None],
        [7],
    )
    assert found.tolist() == [-1]


def test_ruled_out_and_missing_candidates_are_never_taken(any_gpu):
    options = SamplingOptions(temperature=100.0, top_p=1.0)
    draws = np.linspace(0, 2**32 - 1, 50)

    found = drawn(any_gpu, [0, -INF, -1], [0, 2, 1, -1, -1], options, draws)

    assert set(found.tolist()) == {0, 2}


def test_tokens_are_kept_in_their_places(executor, rng):
    values = rng.normal(size=(5, 50)).astype(np.float32)
    top = values.argmax(axis=1)
    params = np.tile(make_sampling_params(SamplingOptions(temperature=0.0)).array(), (5, 1))
    places = [3, 0, 6, 99, 0xFFFFFFFF]  # two that are not there
    draws = np.stack([np.zeros(5), places], axis=1).astype(np.uint32)
    with Context(executor) as context:
        x, token_slots = context.from_numpy(values), context.state((7,), I32)
        chosen = sampling.sample_into(
            token_slots,
            x,
            x.top_k(k=1),
            context.from_numpy(params),
            context.from_numpy(draws, U32),
        )
        assert chosen.numpy().tolist() == [top[1], 0, 0, top[0], 0, 0, top[2]]


def test_references_become_the_tokens_that_are_kept(executor):
    ids = np.array([[5, 0, -1, sampling.reference(0)], [sampling.reference(2), -5, -(2**31), 9]])
    with Context(executor) as context:
        token_slots = context.from_numpy(np.int32([11, 12, 13]))
        found = sampling.resolve_tokens(
            context.from_numpy(ids.astype(np.int32)), token_slots
        ).numpy()
    assert found.tolist() == [[5, 0, -1, 11], [13, -1, -1, 9]]


@pytest.mark.gpu
def test_recall_takes_more_ids_than_a_row_of_groups_has(full):
    ids = np.arange(600_000, dtype=np.int32)
    ids[-1] = sampling.reference(0)
    with Context(full) as context:
        token_slots = context.from_numpy(np.int32([7]))
        found = sampling.resolve_tokens(context.from_numpy(ids), token_slots).numpy()
    np.testing.assert_array_equal(np.append(ids[:-1], 7), found)


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda c, x: sampling.top_k(x, k=0), ShapeError, "k is 0, needs 1 to 256"),
        (lambda c, x: sampling.top_k(x, k=MAX_K + 1), ShapeError, "k is 257, needs 1 to 256"),
        (lambda c, x: sampling.top_k(x[0], k=1), ShapeError, "with 1 axes, needs 2 to 2"),
        (lambda c, x: sampling.top_k(c.from_numpy([[1]]), k=1), DTypeError, "x is i32, needs f32"),
        (
            lambda c, x: x.penalise(c.from_numpy([[0]]), c.zeros(2, 8)),
            ShapeError,
            "history has 1 rows, x has 2",
        ),
        (
            lambda c, x: x.penalise(c.from_numpy([[0], [0]]), c.zeros(2, 7)),
            ShapeError,
            "sampling has 7 columns, needs 8",
        ),
        (
            lambda c, x: x.sample(x.top_k(k=2), c.zeros(2, 8), c.zeros(2)),
            DTypeError,
            "draws is f32, needs u32",
        ),
        (
            lambda c, x: x.sample(
                c.from_numpy(np.zeros((2, 300), int)), c.zeros(2, 8), c.zeros(2, dtype=U32)
            ),
            ShapeError,
            "ids has 300 candidates, needs 1 to 256",
        ),
        (
            lambda c, x: sampling.sample_into(
                c.zeros(4, dtype=I32), x, x.top_k(k=2), c.zeros(2, 8), c.zeros(2, 1, dtype=U32)
            ),
            ShapeError,
            "draws has 1 columns, needs 2",
        ),
        (
            lambda c, x: sampling.sample_into(
                c.from_ints([0]), x, x.top_k(k=2), c.zeros(2, 8), c.zeros(2, 2, dtype=U32)
            ),
            ContextError,
            "dst is an input, needs a state",
        ),
        (
            lambda c, x: sampling.resolve_tokens(c.from_ints([0]), c.zeros(4, dtype=I32)[1:]),
            ShapeError,
            "token_slots is .3,. of strides .1,. at 1, needs a dense tensor of its own",
        ),
    ],
)
def test_operands_that_do_not_fit_are_named(full, act, error, message):
    with Context(full) as context, pytest.raises(error, match=message):
        act(context, context.from_numpy(np.zeros((2, 9), np.float32)))
