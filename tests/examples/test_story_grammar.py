"""The story generator, and the limits of the model trained on it. Needs no torch."""

import random
import re
import sys
from pathlib import Path

import gguf
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "train_story_model"
BUNDLED = ROOT / "wgpu_backend" / "bundled" / "story.gguf"
MAX_BUNDLED_BYTES = 3_000_000


@pytest.fixture(scope="module")
def grammar():
    sys.path.insert(0, str(FOLDER))
    try:
        import story_grammar
    finally:
        sys.path.remove(str(FOLDER))
    return story_grammar


@pytest.fixture(scope="module")
def examples(grammar):
    rng = random.Random(11)
    return [grammar.make_example(rng) for _ in range(5000)]


@pytest.fixture(scope="module")
def stories(examples):
    return [example.story for example in examples]


def test_a_seed_gives_the_same_examples_again(grammar, examples):
    rng = random.Random(11)

    assert [grammar.make_example(rng) for _ in range(50)] == examples[:50]


def test_another_seed_gives_other_stories(grammar, stories):
    rng = random.Random(12)

    assert grammar.make_example(rng).story.text != stories[0].text


def test_stories_hardly_ever_repeat(stories):
    assert len({story.text for story in stories}) >= 4900


def test_every_story_has_its_hero_name_thing_and_place(stories):
    for story in stories:
        for word in (story.name, story.thing, story.place):
            assert word in story.text
        assert story.hero in story.text.lower()


def test_what_a_request_asks_for_is_in_its_story(examples):
    for example in examples:
        ask, text = example.ask, example.story.text
        wanted = (ask.name, ask.hero, ask.hero_adjective, ask.thing, ask.thing_adjective, ask.place)
        assert [word for word in wanted if word and word not in text] == []


def test_a_request_names_what_it_asks_for(examples):
    for example in examples:
        ask, request = example.ask, example.request.lower()
        wanted = (ask.name, ask.hero, ask.hero_adjective, ask.thing, ask.thing_adjective, ask.place)
        assert [word for word in wanted if word and word.lower() not in request] == []


def test_articles_agree_with_the_next_word(examples):
    for example in examples:
        for text in (example.request, example.story.text):
            assert not re.search(r"\b[Aa] [aeioAEIO]\w", text), text
            assert not re.search(r"\b[Aa]n [^aeiouAEIOU]", text), text


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        ("fox", "a fox"),
        ("owl", "an owl"),
        ("unicorn", "a unicorn"),
        ("umbrella", "an umbrella"),
        ("ukulele", "a ukulele"),
    ],
)
def test_article_goes_by_sound(grammar, phrase, expected):
    assert grammar.article(phrase) == expected


def test_stories_are_clean_text(stories):
    for story in stories:
        assert "  " not in story.text
        assert not set(story.text) & set("{}_*|\n\t")
        assert story.text == story.text.strip()
        assert story.text.isascii()


@pytest.mark.slow
def test_sentences_start_with_a_capital_and_the_last_one_ends(stories):
    for story in stories:
        # after a quotation its speaker may follow in lower case: "Stop!" cried Pip
        starts = re.findall(r"(?:^|[.!?] )\"?(\w)|[.!?]\" \"(\w)", story.text)
        assert all((first or second).isupper() for first, second in starts)
        assert story.text.endswith((".", "!", "?", '"'))


def test_quotation_marks_come_in_pairs(stories):
    assert [story.text for story in stories if story.text.count('"') % 2] == []


def test_stories_are_short_but_not_too_short(stories):
    lengths = [len(story.text.split()) for story in stories]

    assert min(lengths) >= 80
    assert max(lengths) <= 190


def test_every_plot_is_told(grammar, stories):
    assert len(grammar.plot_names()) >= 12
    assert {story.plot for story in stories} == set(grammar.plot_names())


def test_requests_come_in_many_phrasings(grammar, examples):
    import story_requests

    phrasings = (story_requests.WHO_AND_WHAT, story_requests.WHO_ONLY, story_requests.WHAT_ONLY)
    assert sum(map(len, phrasings)) >= 25
    asks = [example.ask for example in examples]
    assert any(ask == grammar.Ask() for ask in asks)
    assert any(ask.hero and not ask.thing for ask in asks)
    assert any(ask.thing and not ask.hero for ask in asks)


def test_the_vocabulary_is_wide(grammar):
    import words

    assert len(words.THINGS) + len(words.PLAIN_THINGS) >= 60
    assert len(words.PLACES) >= 30
    assert len(set(words.MALE_NAMES) | set(words.FEMALE_NAMES)) >= 150


def test_no_word_is_listed_twice(grammar):
    import words

    things = [thing.noun for thing in words.THINGS + words.PLAIN_THINGS]
    for listed in (words.HEROES, things, words.MALE_NAMES, words.FEMALE_NAMES, words.FRIENDS):
        assert len(listed) == len(set(listed))


def test_unseen_words_stay_out_of_training(grammar, stories):
    unseen = grammar.unseen_vocabulary()
    names = {*unseen.male_names, *unseen.female_names}
    things = {thing.noun for thing in unseen.things}
    for story in stories:
        assert story.name not in names
        assert story.hero not in unseen.heroes
        assert story.thing not in things


def test_one_combination_in_twenty_is_held_out(grammar, stories):
    held_out = sum(story.held_out for story in stories)

    assert 0.5 < held_out * grammar.HELD_OUT_SHARE / len(stories) < 1.5


def test_a_hero_and_a_thing_asked_for_are_told_about(grammar):
    ask = grammar.Ask(hero="fox", name="Pip", thing="kite", thing_adjective="red")
    told = [grammar.tell(ask, random.Random(seed)).text for seed in range(50)]

    assert all("fox named Pip" in text or "Pip was a" in text for text in told)
    assert all("red kite" in text for text in told)


def test_the_bundled_model_is_small():
    assert 0 < BUNDLED.stat().st_size <= MAX_BUNDLED_BYTES


@pytest.fixture(scope="module")
def bundled_fields():
    reader = gguf.GGUFReader(str(BUNDLED))
    return {name: field.contents() for name, field in reader.fields.items()}


def test_the_bundled_model_says_what_it_is(bundled_fields):
    assert bundled_fields["general.architecture"] == "llama"
    assert bundled_fields["general.name"] == "Story"
    assert bundled_fields["general.license"] == "MIT"
    assert bundled_fields["tokenizer.ggml.pre"] == "gpt-2"
    assert len(bundled_fields["tokenizer.ggml.tokens"]) == bundled_fields["llama.vocab_size"]


def test_the_bundled_chat_template_ignores_the_system_message(bundled_fields):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " A story about a fox. "},
        {"role": "assistant", "content": "Once there was a fox."},
        {"role": "user", "content": "Again!"},
    ]
    template = ImmutableSandboxedEnvironment().from_string(
        bundled_fields["tokenizer.chat_template"]
    )
    rendered = template.render(messages=messages, bos_token="<|begin|>", add_generation_prompt=True)

    assert rendered == (
        "<|begin|><|user|>A story about a fox.<|end|><|assistant|>Once there was a fox.<|end|>"
        "<|user|>Again!<|end|><|assistant|>"
    )
