"""What a slot read: saved into a file, brought back by another server, and erased."""

import json

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

from tests.server.serving import client_of

LONG = "Once upon a time there was a fox who lived beside a river, and a bear. " * 3
ASKED = {"prompt": LONG, "n_predict": 4, "temperature": 0, "id_slot": 1}


def completed(client, **more):
    response = client.post("/completion", json={**ASKED, **more})
    assert response.status_code == 200, response.text
    return response.json()


def done(client, action, slot=1, **body):
    response = client.post(f"/slots/{slot}?action={action}", json=body or None)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.fixture
def client(tmp_path):
    (tmp_path / "saved").mkdir()
    settings = {"default_model": "tale", "slot_folder": tmp_path / "saved"}
    with client_of(tmp_path, **settings) as client:
        yield client


def test_a_text_that_was_saved_need_not_be_read_by_another_server(client, tmp_path):
    first = completed(client)
    count = first["tokens_evaluated"]
    assert first["timings"]["prompt_n"] == count
    saved = done(client, "save", filename="fox.bin")
    assert count <= saved["n_saved"] <= count + 4
    file = tmp_path / "saved/fox.bin"
    assert file.stat().st_size == saved["n_written"]
    settings = {"default_model": "tale", "slot_folder": tmp_path / "saved"}
    with client_of(tmp_path, **settings) as other:
        restored = done(other, "restore", slot=0, filename="fox.bin")
        assert restored["n_restored"] == saved["n_saved"]
        assert restored["n_read"] == saved["n_written"]
        again = completed(other, id_slot=0)
        assert again["timings"]["prompt_n"] < 20 < again["timings"]["cache_n"]
        assert again["content"] == first["content"]
        chat = {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2, "id_slot": 1}
        assert other.post("/chat/completions", json=chat).status_code == 200
        assert done(other, "save", filename="chat.bin")["n_saved"] > 20


def test_a_text_too_short_to_be_kept_is_not_said_to_be_forgotten(client):
    read = completed(client, prompt="Once", n_predict=2)["tokens_evaluated"]
    found = client.post("/slots/1?action=save", json={"filename": "short.bin"})
    message = f"slot: it holds {read + 2} tokens, needs more than 32 to be kept"
    assert (found.status_code, found.json()["error"]["message"]) == (400, message)


def test_what_was_erased_is_read_again(client):
    count = completed(client)["timings"]["prompt_n"]
    assert completed(client)["timings"]["prompt_n"] < count
    assert done(client, "erase")["n_erased"] >= count
    assert completed(client)["timings"]["prompt_n"] == count
    assert done(client, "erase")["id_slot"] == 1
    assert done(client, "erase")["n_erased"] == 0


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("1?action=keep", {"filename": "a"}, "action: 'keep', needs save, restore or erase"),
        ("1", {}, "action: ''"),
        ("2?action=save", {"filename": "a"}, "slot: '2', needs a number below 2"),
        ("x?action=erase", {}, "slot: 'x'"),
        ("1?action=save", {}, "filename: ''"),
        ("1?action=save", {"filename": "../a"}, "filename: '../a'"),
        ("1?action=save", {"filename": "/etc/a"}, "filename"),
        ("1?action=restore", {"filename": "..\\a"}, "filename"),
        ("1?action=restore", {"filename": "none.bin"}, "no file 'none.bin'"),
        ("0?action=save", {"filename": "a"}, "slot 0: is empty"),
    ],
)
def test_what_is_wrong_is_told(client, path, body, message):
    found = client.post(f"/slots/{path}", json=body)
    assert (found.status_code, message in found.json()["error"]["message"]) == (400, True)


def test_damaged_files_and_those_of_others_are_refused(client, tmp_path):
    completed(client)
    done(client, "save", filename="fox.bin")
    file = tmp_path / "saved/fox.bin"
    whole = file.read_bytes()
    wrong = {"cut": whole[:-100], "other": whole.replace(b'"vocabulary":', b'"vocabularx":')}
    for name, data in {**wrong, "empty": b""}.items():
        (tmp_path / f"saved/{name}.bin").write_bytes(data)
        found = client.post("/slots/0?action=restore", json={"filename": f"{name}.bin"})
        assert (found.status_code, f"{name}.bin" in found.text) == (400, True), name
    asked = {"filename": "fox.bin", "model": "actor"}
    found = client.post("/slots/0?action=restore", json=asked)
    assert (found.status_code, "another model" in found.text) == (400, True)


def test_without_a_folder_nothing_is_saved(tmp_path):
    with client_of(tmp_path, default_model="tale") as client:
        found = client.post("/slots/0?action=save", content=json.dumps({"filename": "a"}))
        assert (found.status_code, "--slot-save-path" in found.text) == (501, True)
