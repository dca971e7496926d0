"""Pictures that a worker has prepared and keeps until their requests arrive."""

import json

import numpy as np
import pytest

from wgpu_backend.engine.media import Placed, Run, TowerRules
from wgpu_backend.errors import QueueFull
from wgpu_backend.nn.tower import Media, Rows
from wgpu_backend.server.core.request import get_http_status
from wgpu_backend.server.worker.media_messages import PreparedMedia, list_placed

RULES = TowerRules("<image>", ("", ""), is_causal=True)


def media(name, nbytes=100):
    return Media({"pixels": np.zeros(nbytes, np.uint8)}, [Rows(2)], name)


def place(prepared, digest):
    return prepared.place((digest, [[3, 0, 2, None]]))


def test_a_picture_is_kept_until_each_request_has_placed_it():
    prepared = PreparedMedia()
    digest = prepared.add(media(b"a"), RULES)["digest"]
    assert prepared.add(media(b"a"), RULES)["digest"] == digest
    for _ in range(2):
        [run] = place(prepared, digest).runs
        assert (run.start, run.rows.count) == (3, 2)
    assert prepared._nbytes == 0
    with pytest.raises(QueueFull, match="send the request again"):
        place(prepared, digest)


def test_what_no_request_places_makes_room():
    prepared = PreparedMedia(most_nbytes=250)
    digests = [prepared.add(media(name), RULES)["digest"] for name in (b"a", b"b", b"c")]
    assert prepared._nbytes == 200
    with pytest.raises(QueueFull) as caught:
        place(prepared, digests[0])
    # A client sends such a request again.
    assert get_http_status(caught.value) == 503
    for digest in digests[1:]:
        place(prepared, digest)
    # One alone is kept however large it is.
    place(prepared, prepared.add(media(b"d", 1000), RULES)["digest"])


def test_runs_keep_their_fields():
    """A grid with its step, and a picture that the model attends to, whose token stays a token."""
    prepared = PreparedMedia()
    digest = prepared.add(media(b"a"), RULES)["digest"]
    runs = [Run(2, 0, Rows(6, (1, 2, 3), 0.5)), Run(9, 6, Rows(1, states=17), 114)]
    [plain] = list_placed([Placed(Media({}, [], bytes.fromhex(digest)), RULES, runs)])
    assert prepared.place(json.loads(json.dumps(plain))).runs == runs
