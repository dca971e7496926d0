"""OpenAI's responses."""

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

from tests.server.serving import client_of, named_events
from wgpu_backend.server.api.openai.kept_responses import KeptResponses
from wgpu_backend.server.core.request import RequestError

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
ASKED = {"model": "actor", "input": "Hi", "temperature": 0}
THINKS = {"reasoning": {"effort": "low"}}
CALL = {"type": "function_call", "name": "weather", "arguments": '{"city": "Oslo"}'}
TEXT = {"type": "output_text", "text": "Hello there now.", "annotations": [], "logprobs": []}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with client_of(tmp_path_factory.mktemp("store")) as client:
        yield client


def asked(client, **more):
    response = client.post("/v1/responses", json={**ASKED, **more})
    assert response.status_code == 200, response.text
    return response.json()


def streamed(client, **more):
    """The last response of a stream, whose events add up to it."""
    events = named_events(client.post("/v1/responses", json={**ASKED, **more, "stream": True}))
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    texts, items, open_ = {}, [], set()
    for event in events:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(items)
                open_.add(event["item"]["id"])
                texts[event["item"]["id"]] = ""
            case (
                "output_text.delta"
                | "reasoning_text.delta"
                | "reasoning_summary_text.delta"
                | "function_call_arguments.delta"
            ):
                texts[event["item_id"]] += event["delta"]
            case "output_text.done" | "reasoning_text.done" | "reasoning_summary_text.done":
                assert texts[event["item_id"]] == event["text"]
            case "function_call_arguments.done":
                assert texts[event["item_id"]] == event["arguments"]
            case "output_item.done":
                open_.remove(event["item"]["id"])
                items.append(event["item"])
    assert not open_
    last = events[-1]["response"]
    assert events[-1]["type"] == f"response.{last['status']}"
    assert last["output"] == items
    assert last["id"] == events[0]["response"]["id"]
    return last


def contents(response):
    """Items without their ids, which are random."""
    return [
        {k: v for k, v in item.items() if k not in ("id", "call_id", "status")}
        for item in response["output"]
    ]


@pytest.mark.parametrize("ask", [asked, streamed])
def test_an_answer(client, ask):
    found = ask(client)
    assert contents(found) == [{"type": "message", "role": "assistant", "content": [TEXT]}]
    assert (found["object"], found["status"], found["error"]) == ("response", "completed", None)
    usage = found["usage"]
    assert usage["output_tokens"] == 3
    assert usage["total_tokens"] == usage["input_tokens"] + 3
    assert found["id"].startswith("resp_")
    assert found["output"][0]["id"].startswith("msg_")


@pytest.mark.parametrize("ask", [asked, streamed])
def test_an_answer_that_is_cut(client, ask):
    found = ask(client, max_output_tokens=1)
    assert found["status"] == found["output"][0]["status"] == "incomplete"
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("ask", [asked, streamed])
def test_calls(client, ask):
    assert contents(ask(client, tools=[TOOL])) == [CALL]
    assert contents(ask(client, tools=[TOOL], tool_choice="none"))[0]["content"] == [TEXT]


@pytest.mark.parametrize("ask", [asked, streamed])
def test_reasoning(client, ask):
    found = ask(client, **THINKS)
    thought = {"type": "reasoning_text", "text": "hm"}
    assert contents(found)[0] == {"type": "reasoning", "summary": [], "content": [thought]}
    assert contents(found)[1]["content"][0]["text"] == "Yes"
    assert found["usage"]["output_tokens_details"]["reasoning_tokens"] == 2


@pytest.mark.parametrize("ask", [asked, streamed])
@pytest.mark.parametrize("name", ["summary", "generate_summary"])
def test_reasoning_is_the_summary_that_a_client_asks_for(client, ask, name):
    found = ask(client, reasoning={"effort": "low", name: "auto"})
    thought = {"type": "summary_text", "text": "hm"}
    assert contents(found)[0] == {"type": "reasoning", "summary": [thought]}
    assert contents(found)[1]["content"][0]["text"] == "Yes"
    assert found["reasoning"] == {"effort": "low", "summary": "auto"}
    assert found["usage"]["output_tokens_details"]["reasoning_tokens"] == 2
    plain = ask(client, reasoning={"effort": "low", name: "none"})
    assert contents(plain)[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]


def test_events_of_a_summary_name_its_part(client):
    body = {**ASKED, "reasoning": {"effort": "low", "summary": "auto"}, "stream": True}
    events = named_events(client.post("/v1/responses", json=body))
    found = [event for event in events if "reasoning_summary" in event["type"]]
    kinds = [event["type"].removeprefix("response.reasoning_summary_") for event in found]
    assert kinds == ["part.added", "text.delta", "text.done", "part.done"]
    assert {event["summary_index"] for event in found} == {0}
    assert all("content_index" not in event for event in found)
    assert [e["part"]["text"] for e in found if "part" in e] == ["", "hm"]


def test_a_summary_is_read_as_the_reasoning_that_it_was(client):
    user = {"role": "user", "content": "Hi"}
    answer, more = {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "Why?"}

    def count(**thought):
        said = [user, {"type": "reasoning", **thought}, answer, more]
        return asked(client, input=said)["usage"]["input_tokens"]

    content = [{"type": "reasoning_text", "text": "hm"}]
    summary = [{"type": "summary_text", "text": "hm"}]
    assert count(summary=summary) == count(summary=[], content=content) > count(summary=[])


@pytest.mark.parametrize("ask", [asked, streamed])
def test_reasoning_comes_back_in_its_encrypted_content(client, ask):
    def count(**thought):
        said = [user, {"type": "reasoning", "summary": [], **thought}, answer, more]
        return asked(client, input=said)["usage"]["input_tokens"]

    user = {"role": "user", "content": "Hi"}
    answer, more = {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "Why?"}
    [thought, _] = ask(client, **THINKS, include=["reasoning.encrypted_content"])["output"]
    whole = count(content=thought["content"])
    assert count(encrypted_content=thought["encrypted_content"]) == whole
    assert count(**{key: thought[key] for key in ("content", "encrypted_content")}) == whole
    # Of another provider.
    assert count(encrypted_content="gAAAAABo") == count(encrypted_content=None) == count() < whole
    assert "encrypted_content" not in ask(client, **THINKS)["output"][0]


def test_an_empty_text_loads_the_model_as_for_clients_of_lm_studio(client):
    found = asked(client, input="", max_output_tokens=1)
    assert (found["status"], found["usage"]["output_tokens"]) == ("incomplete", 1)


def test_items_are_read(client):
    def count(**more):
        return asked(client, **more)["usage"]["input_tokens"]

    user = {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
    plain = count()
    assert count(input=[user]) == plain
    system = {"type": "message", "role": "developer", "content": "Be kind"}
    assert count(input=[system, user]) == count(instructions="Be kind") > plain
    call = {**CALL, "call_id": "c1"}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    result = {"type": "function_call_output", "call_id": "c1", "output": "3 degrees"}
    for arguments in (CALL["arguments"], "{"):
        said = [user, thought, {**call, "arguments": arguments}, result]
        found = asked(client, input=said, tools=[TOOL])
        assert contents(found)[0]["content"][0]["text"] == "It is cold."


def test_roles_alternate(client):
    def count(*items, **more):
        return asked(client, input=[*items], **more)["usage"]["input_tokens"]

    def said(role, text):
        return {"role": role, "content": text}

    user, answer = said("user", "Hi"), said("assistant", "a\n\nb")
    joined = count(user, instructions="Be kind\n\nand brief")
    assert count(said("developer", "and brief"), user, instructions="Be kind") == joined
    assert count(said("system", "Be kind"), said("developer", "and brief"), user) == joined
    apart = said("assistant", "a"), said("assistant", "b")
    assert count(user, *apart, user) == count(user, answer, user)


@pytest.mark.parametrize("ask", [asked, streamed])
def test_what_is_given_is_given_back(client, ask):
    given = {"metadata": {"a": "b"}, "parallel_tool_calls": False, "truncation": "auto"}
    found = ask(client, **given, text={"verbosity": "low"})
    assert {name: found[name] for name in given} == given
    assert found["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    assert found["usage"]["input_tokens_details"]["cache_write_tokens"] == 0


def test_the_oldest_may_be_left_out(client):
    said = [{"role": role, "content": "a" * 60} for role in ("user", "assistant") * 4]
    said.append({"role": "user", "content": "Hi"})
    refused = client.post("/v1/responses", json={**ASKED, "input": said})
    assert (refused.status_code, "context" in refused.text) == (400, True)
    assert asked(client, input=said, truncation="auto")["usage"]["input_tokens"] < 256


@pytest.mark.parametrize("ask", [asked, streamed])
def test_log_probabilities(client, ask):
    for more, top in (({"include": ["message.output_text.logprobs"]}, 0), ({"top_logprobs": 2}, 2)):
        found = ask(client, **more)
        [part] = found["output"][0]["content"]
        assert [each["token"] for each in part["logprobs"]] == ["Hello", " there", " now."]
        assert [len(each["top_logprobs"]) for each in part["logprobs"]] == [top] * 3
        assert found["top_logprobs"] == top
    found = ask(client, **THINKS, top_logprobs=0)
    assert [each["token"] for each in found["output"][1]["content"][0]["logprobs"]] == ["Yes"]


IMAGE = {
    "role": "user",
    "content": [{"type": "input_image", "image_url": "data:image/png;base64,eA=="}],
}


@pytest.mark.parametrize(
    ("more", "status", "message"),
    [
        ({"model": None}, 400, "model is required"),
        ({"model": "no"}, 404, "model 'no' not found"),
        ({"input": None}, 400, "input is required"),
        ({"input": []}, 400, "input: needs at least one item"),
        ({"input": [], "instructions": "Be kind"}, 400, "input: needs at least one item"),
        ({"input": [IMAGE]}, 400, "does not support images: it reads"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, 400, "item_reference: x not found"),
        ({"input": [{"type": "item_reference"}]}, 400, "item_reference: None not found"),
        ({"previous_response_id": "resp_1"}, 400, "'resp_1' not found; send the conversation"),
        ({"conversation": "conv_1"}, 400, "conversation: none is kept"),
        ({"background": True}, 400, "background"),
        ({"prompt": {"id": "p"}}, 400, "prompt is refused: no templates"),
        ({"tools": [{"type": 5}]}, 400, "tools[0].type: '5', needs a string"),
        ({"text": {"format": {"type": "yaml"}}}, 400, "text.format"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens: 0, needs at least 1"),
        ({"input": "a" * 600}, 400, "context"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_told(client, more, status, message, stream):
    found = client.post("/v1/responses", json={**ASKED, **more, "stream": stream})
    assert (found.status_code, message in found.json()["error"]["message"]) == (status, True)


@pytest.mark.parametrize("get", [asked, streamed])
def test_a_kept_response_is_continued_by_its_id(client, get):
    first = get(client, tools=[TOOL])
    assert first["store"]
    call = next(item for item in first["output"] if item["type"] == "function_call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}
    whole = [{"role": "user", "content": "Hi"}, *first["output"], result]
    want = get(client, input=whole, tools=[TOOL])
    by_id = get(client, input=[result], previous_response_id=first["id"], tools=[TOOL])
    assert contents(by_id) == contents(want)
    assert contents(by_id) == [
        {"type": "message", "role": "assistant", "content": by_id["output"][0]["content"]}
    ]
    assert by_id["previous_response_id"] == first["id"]
    assert by_id["usage"]["input_tokens"] == want["usage"]["input_tokens"]
    named = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    by_items = get(client, input=[whole[0], *named, result], tools=[TOOL])
    assert contents(by_items) == contents(want)
    assert by_items["usage"]["input_tokens"] == want["usage"]["input_tokens"]
    third = get(client, input="And then?", previous_response_id=by_id["id"], tools=[TOOL])
    longer = [*whole, *by_id["output"], {"role": "user", "content": "And then?"}]
    told = get(client, input=longer, tools=[TOOL])["usage"]["input_tokens"]
    assert third["usage"]["input_tokens"] == told


def test_instructions_are_of_one_response(client):
    first = asked(client, instructions="Be kind and brief to all who ask.")
    again = asked(client, previous_response_id=first["id"])
    whole = [{"role": "user", "content": "Hi"}, *first["output"], {"role": "user", "content": "Hi"}]
    assert again["usage"]["input_tokens"] == asked(client, input=whole)["usage"]["input_tokens"]


def test_a_response_that_is_not_stored_has_no_next(client):
    first = asked(client, store=False)
    assert not first["store"]
    found = client.post("/v1/responses", json={**ASKED, "previous_response_id": first["id"]})
    error = found.json()["error"]
    assert (found.status_code, error["code"]) == (400, "previous_response_not_found")


def test_errors_of_items_count_from_the_first_that_was_sent(client):
    first = asked(client)
    wrong = [{"role": "user", "content": 5}]
    more = {"input": wrong, "previous_response_id": first["id"]}
    found = client.post("/v1/responses", json={**ASKED, **more})
    assert found.status_code == 400
    assert "input[0]." in found.json()["error"]["message"]


def test_the_oldest_responses_make_room():
    kept = KeptResponses(100)
    for name in "abc":
        kept.keep(name, [{"content": "x" * 20}], [{"id": f"m{name}", "content": "y" * 10}])
    with pytest.raises(RequestError, match="'a' not found"):
        kept.conversation("a")
    with pytest.raises(RequestError, match="ma not found"):
        kept.resolve({"type": "item_reference", "id": "ma"})
    assert kept.conversation("c")[1] == kept.resolve({"type": "item_reference", "id": "mc"})
    kept.keep("d", [{"content": "x" * 200}], [])
    with pytest.raises(RequestError, match="'d' not found"):
        kept.conversation("d")
    assert kept.conversation("b")
