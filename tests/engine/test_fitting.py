"""Which messages of a long conversation are left out, and what is left of it."""

import pytest

import wgpu_backend
from wgpu_backend.engine.prompt import fit_conversation
from wgpu_backend.errors import ContextFull


def message(role, words):
    return {"role": role, "content": " ".join([role] * words)}


def render(messages):
    """A token a word."""
    return [word for each in messages for word in each["content"].split()]


def conversation(exchanges, system=2):
    talk = [message("system", system)] if system else []
    for number in range(exchanges):
        talk += [message("user", 5), message("assistant", 5)] if number else [message("user", 5)]
    return talk


def asked(exchanges, **how):
    """So many exchanges of ten tokens each, and a question of five."""
    system = conversation(0, **how)
    pairs = [message("user", 5), message("assistant", 5)] * exchanges
    return [*system, *pairs, message("user", 5)]


def test_a_conversation_that_fits_is_left_whole():
    messages = asked(6)
    assert fit_conversation(messages, render, 100, -1) == fit_conversation(
        messages, render, 1000, 5
    )
    assert fit_conversation(messages, render, 100, -1).dropped == 0


def test_the_oldest_exchanges_go_whole_and_the_system_message_stays():
    found = fit_conversation(asked(9), render, 100, -1)
    assert found.dropped == 6
    assert found.tokens == render(asked(6))


@pytest.mark.parametrize("answer", [-1, 0, 3, 25, 1000])
@pytest.mark.parametrize("exchanges", range(30))
def test_there_is_room_for_the_prompt_and_an_answer(exchanges, answer):
    messages = asked(exchanges)
    found = fit_conversation(messages, render, 100, answer)
    room = 25 if answer < 0 else min(answer, 25)
    assert len(found.tokens) <= 100 - room
    assert found.tokens == render([messages[0], *messages[1 + found.dropped :]])
    assert messages[1 + found.dropped]["role"] == "user"


def test_what_is_left_begins_alike_for_several_turns():
    beginnings = [fit_conversation(asked(n), render, 100, -1).dropped for n in range(30)]
    assert beginnings == sorted(beginnings)
    assert len(set(beginnings)) <= 30 * 10 // 25 + 1


def test_what_the_user_said_last_stays_with_what_followed_it():
    long = [*asked(20)[:-1], message("user", 30), message("assistant", 30), message("tool", 10)]
    found = fit_conversation(long, render, 100, -1)
    assert found.tokens == render([long[0], *long[-3:]])


def test_a_newest_message_may_take_the_room_of_the_answer_but_no_more():
    assert len(fit_conversation([*asked(3), message("user", 90)], render, 100, -1).tokens) == 92
    with pytest.raises(ContextFull, match=r"newest message, .* takes 112 tokens, .* holds 100"):
        fit_conversation([*asked(3), message("user", 110)], render, 100, -1)
    with pytest.raises(ContextFull, match=r"takes 112 tokens"):
        fit_conversation([message("system", 2), message("user", 110)], render, 100, -1)


@pytest.mark.parametrize("messages", [[], [message("system", 3)]])
def test_conversations_without_a_word_of_the_user_are_rendered(messages):
    assert fit_conversation(messages, render, 100, -1).tokens == render(messages)


@pytest.mark.slow
def test_a_conversation_longer_than_the_context_is_answered():
    said = [{"role": "system", "content": "Tell of Pip."}]
    with wgpu_backend.load("story", device="cpu", num_ctx=96) as model:
        for _ in range(6):
            said.append({"role": "user", "content": "Tell me a story about a fox named Pip."})
            text = model.chat(said, num_predict=6, options={"temperature": 0})
            said.append({"role": "assistant", "content": text})
            assert model.stats.tokens
            assert model.stats.prompt_tokens + model.stats.reused_tokens <= 96 - 6
        assert model.stats.dropped_messages in (2, 4)
        with pytest.raises(ContextFull, match="newest message"):
            model.chat([*said, {"role": "user", "content": "fox " * 96}])
        assert model.chat(said[:2], num_predict=3)
        assert model.stats.dropped_messages == 0
