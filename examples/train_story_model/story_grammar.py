"""A seeded generator of short children's stories and of the requests that lead to them.

>>> import random
>>> print(tell(Ask(hero="fox", name="Pip", thing="kite"), random.Random(1)).text)  # doctest: +SKIP
Once upon a time, there was a curious fox named Pip. ...

A story is an opening, a plot and an ending; each is a list of beats, each beat a choice of lines
with slots (`plots.txt`, `openings.txt`, `endings.txt`). The words come from `words.py`, the
requests from `story_requests.py`.
"""

import random
import zlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import story_requests as ask_for
import words

Beats = list[list[str]]

# Plots that make no sense for a kind of thing: nobody glues a cake or bakes a pebble.
UNFIT_PLOTS = {
    "hard": frozenset[str](),
    "soft": frozenset[str](),
    "food": frozenset(
        {"broken", "practice", "brave", "trade", "rescue", "magic", "rainy", "lost", "wish"}
    ),
    "big": frozenset({"lost", "thief", "rescue"}),
    "wild": frozenset({"broken", "contest", "practice"}),
}
BREAKS = {
    "hard": ("broke in two", "cracked down the middle", "broke into three pieces"),
    "soft": ("tore in two", "tore along one side", "ripped from end to end"),
}
MENDS = {
    "hard": ("glued it back together", "put the pieces back together", "fixed it with strong glue"),
    "soft": ("stitched it up", "sewed it up with strong thread", "mended it with a bright patch"),
}
# One story in HELD_OUT_SHARE has a combination that training never sees.
HELD_OUT_SHARE = 20


@dataclass(frozen=True, slots=True)
class Ask:
    """The contents of a request; the story makes up those that are None."""

    hero: str | None = None
    hero_adjective: str | None = None
    name: str | None = None
    thing: str | None = None
    thing_adjective: str | None = None
    place: str | None = None
    plot: str | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """A story and its contents."""

    text: str
    hero: str
    name: str
    thing: str
    place: str
    plot: str

    @property
    def held_out(self) -> bool:
        """Return whether this combination of hero, name and thing is kept for evaluation."""
        key = f"{self.hero}/{self.name}/{self.thing}".encode()
        return zlib.crc32(key) % HELD_OUT_SHARE == 0


@dataclass(frozen=True, slots=True)
class Example:
    """A request, its contents, and a story that answers it."""

    request: str
    ask: Ask
    story: Story


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words that requests and heroes are drawn from."""

    heroes: list[str] = field(default_factory=lambda: words.HEROES)
    male_names: list[str] = field(default_factory=lambda: words.MALE_NAMES)
    female_names: list[str] = field(default_factory=lambda: words.FEMALE_NAMES)
    things: list[words.Thing] = field(default_factory=lambda: words.THINGS)
    plain_things: list[words.Thing] = field(default_factory=lambda: words.PLAIN_THINGS)
    invented_names: float = 0.35  # share of names put together from syllables
    rare_nouns: float = 0.2  # share of requests for a hero, or a thing, out of the ordinary


def everyday_vocabulary() -> Vocabulary:
    """Return listed words only: nothing rare, nothing put together from syllables."""
    return Vocabulary(invented_names=0.0, rare_nouns=0.0)


def unseen_vocabulary() -> Vocabulary:
    """Return heroes, names and things that occur in no training story."""
    return Vocabulary(
        heroes=words.UNSEEN_HEROES,
        male_names=words.UNSEEN_MALE_NAMES,
        female_names=words.UNSEEN_FEMALE_NAMES,
        things=[words.Thing(noun, "hard") for noun in words.UNSEEN_THINGS],
        plain_things=[words.Thing(noun, "hard") for noun in words.UNSEEN_THINGS],
        invented_names=0.0,
        rare_nouns=0.0,
    )


# --- reading the grammar ------------------------------------------------------------------------


@cache
def read_beats(filename: str) -> dict[str, Beats]:
    """Read the sections of a grammar file: name to beats; a beat lists lines to choose from."""
    text = Path(__file__).with_name(filename).read_text(encoding="utf-8")
    sections = (part.split("\n", 1) for part in text.split("== ")[1:])
    return {
        name.strip(): [beat.splitlines() for beat in body.strip().split("\n\n")]
        for name, body in sections
    }


def plot_names() -> list[str]:
    """List all plots, in the order of the file."""
    return list(read_beats("plots.txt"))


# --- words in their forms -----------------------------------------------------------------------


def article(phrase: str) -> str:
    """Return `phrase` with "a" or "an" before it."""
    vowel = phrase[0] in "aeio" or (phrase[0] == "u" and not phrase.startswith(("uni", "uku")))
    return f"{'an' if vowel else 'a'} {phrase}"


def capitalized(text: str) -> str:
    """Return `text` with its first letter in upper case."""
    return text[0].upper() + text[1:]


def described(adjective: str | None, noun: str) -> str:
    """Join an adjective and a noun, as in "red kite", or return the noun alone."""
    return f"{adjective} {noun}" if adjective else noun


def invented_name(rng: random.Random) -> str:
    """Invent a name such as "Molina"; thousands are possible."""
    name = _invented_word(rng)
    unseen = words.UNSEEN_MALE_NAMES + words.UNSEEN_FEMALE_NAMES
    return name if name not in unseen else invented_name(rng)


def _invented_word(rng: random.Random) -> str:
    parts = (words.NAME_STARTS, words.NAME_MIDDLES, words.NAME_ENDINGS)
    return "".join(rng.choice(part) for part in parts)


def _rare(listed: list[str], rng: random.Random) -> str:
    """Draw a noun that occurs only in requests: an uncommon or an invented one."""
    return rng.choice(listed) if rng.random() < 0.6 else _invented_word(rng).lower()


def pronouns(prefix: str, female: bool) -> dict[str, str]:
    """Return pronoun slots such as `he`, `His`; with prefix "f" they are the friend's."""
    he, him, his = ("she", "her", "her") if female else ("he", "him", "his")
    slots = {"he": he, "him": him, "his": his, "hers": "hers" if female else "his"}
    slots["himself"] = him + "self"
    lower = {prefix + slot: word for slot, word in slots.items()}
    upper = {capitalized(slot): capitalized(word) for slot, word in slots.items()}
    return lower | {prefix.upper() + slot: word for slot, word in upper.items()}


@dataclass(frozen=True, slots=True)
class Person:
    """A hero or a friend: kind, name and pronouns."""

    kind: str
    name: str
    female: bool


def _person(kinds: list[str], vocabulary: Vocabulary, rng: random.Random, ask: Ask) -> Person:
    if ask.name in vocabulary.female_names or ask.name in vocabulary.male_names:
        female = ask.name in vocabulary.female_names
        unfit = words.MALE_HEROES if female else words.FEMALE_HEROES
        fitting = [kind for kind in kinds if kind not in unfit]
        return Person(ask.hero or rng.choice(fitting), ask.name or "", female)
    kind = ask.hero or rng.choice(kinds)
    female = kind in words.FEMALE_HEROES or (kind not in words.MALE_HEROES and rng.random() < 0.5)
    listed = rng.choice(vocabulary.female_names if female else vocabulary.male_names)
    invented = rng.random() < vocabulary.invented_names
    return Person(kind, ask.name or (invented_name(rng) if invented else listed), female)


# --- telling ------------------------------------------------------------------------------------


def _find_thing(ask: Ask, vocabulary: Vocabulary, rng: random.Random) -> words.Thing:
    if ask.thing is None:
        pool = vocabulary.things if rng.random() < 0.7 else vocabulary.plain_things
        return rng.choice(pool)
    known = {thing.noun: thing for thing in vocabulary.things + vocabulary.plain_things}
    return known.get(ask.thing, words.Thing(ask.thing, "hard"))


def _thing_slots(thing: words.Thing, adjective: str | None, rng: random.Random) -> dict[str, str]:
    use, used = (thing.use, thing.used) if thing.use else rng.choice(words.GENERAL_USES)
    phrase = described(adjective, thing.noun)
    slots = {"thing": thing.noun, "adjthing": phrase, "athing": article(phrase)}
    slots |= {"onething": article(thing.noun), "Onething": capitalized(article(thing.noun))}
    slots |= {"use": use, "used": used}
    torn = "soft" if thing.kind == "soft" else "hard"
    return slots | {"broke": rng.choice(BREAKS[torn]), "mended": rng.choice(MENDS[torn])}


def _friend_slots(hero: Person, rng: random.Random) -> dict[str, str]:
    kinds = [kind for kind in words.FRIENDS if kind != hero.kind]
    kind, other, other2 = rng.sample(kinds, 3)
    friend = _person([kind], Vocabulary(invented_names=0.15), rng, Ask())
    while friend.name == hero.name:
        friend = _person([kind], Vocabulary(invented_names=0.15), rng, Ask())
    adjective = rng.choice(words.FRIEND_ADJECTIVES) if rng.random() < 0.6 else None
    phrase = article(described(adjective, kind))
    slots = {"Friend": friend.name, "friend": kind, "other": other, "other2": other2}
    slots |= {"afriend": phrase, "Afriend": capitalized(phrase)}
    return slots | pronouns("f", friend.female)


def _detail_slots(place: words.Place, thing: words.Thing, rng: random.Random) -> dict[str, str]:
    trade = rng.choice([other.noun for other in words.THINGS if other.noun != thing.noun])
    return {
        "place": place.noun,
        "at": place.phrase,
        "spot": place.spot,
        "Spot": capitalized(place.spot),
        "day": rng.choice(words.DAYS),
        "home": rng.choice(words.HOMES),
        "hobby": rng.choice(words.HOBBIES),
        "food": rng.choice(words.FOODS),
        "glad": rng.choice(words.GLAD),
        "trade": trade,
        "atrade": article(trade),
    }


def _outline(plot: str, rng: random.Random) -> list[str]:
    """Return unfilled lines of a story, one per beat; endings name other sections."""
    openings, endings = read_beats("openings.txt"), read_beats("endings.txt")
    beats = list(openings["opening"])
    if rng.random() < 0.35:
        beats += openings["hobby"]
    body = read_beats("plots.txt")[plot]
    beats += body[:-1]
    # the last beat names the closings that fit; only one is told, sometimes none
    closings = [line.strip("{}") for line in body[-1]]
    if rng.random() < 0.85:
        beats += endings[rng.choice(closings)]
    return [rng.choice(beat) for beat in beats]


def _pick_plot(ask: Ask, thing: words.Thing, rng: random.Random) -> str:
    fitting = [plot for plot in plot_names() if plot not in UNFIT_PLOTS[thing.kind]]
    return ask.plot if ask.plot in fitting else rng.choice(fitting)


def tell(ask: Ask, rng: random.Random, vocabulary: Vocabulary | None = None) -> Story:
    """Tell a story with the contents of `ask`; the same `rng` state gives the same story.

    Parameters
    ----------
    ask : Ask
        Hero, name, thing, place and plot, each optional. An unknown thing counts as a hard one.
    rng : random.Random
    vocabulary : Vocabulary, optional
        Where the rest is drawn from; by default the training words.

    Returns
    -------
    Story
    """
    vocabulary = vocabulary or Vocabulary()
    hero = _person(vocabulary.heroes, vocabulary, rng, ask)
    thing = _find_thing(ask, vocabulary, rng)
    adjective = ask.thing_adjective
    if adjective is None and rng.random() < 0.3:
        adjective = rng.choice(words.THING_ADJECTIVES)
    places = [p for p in words.PLACES if ask.place is None or p.noun == ask.place]
    place = rng.choice(places)
    plot = _pick_plot(ask, thing, rng)
    hero_adjective = ask.hero_adjective or rng.choice(words.HERO_ADJECTIVES)
    phrase = article(described(hero_adjective, hero.kind))
    slots = {"hero": hero.kind, "Name": hero.name, "ahero": phrase} | pronouns("", hero.female)
    slots |= _thing_slots(thing, adjective, rng)
    slots |= _friend_slots(hero, rng) | _detail_slots(place, thing, rng)
    text = " ".join(line.format_map(slots) for line in _outline(plot, rng))
    return Story(text, hero.kind, hero.name, thing.noun, place.noun, plot)


# --- requests -----------------------------------------------------------------------------------


def _draw_ask(rng: random.Random, vocabulary: Vocabulary) -> Ask:
    """Draw everything that a request may name; its phrasing selects from it."""
    hero = _person(vocabulary.heroes, vocabulary, rng, Ask())
    thing = _find_thing(Ask(), vocabulary, rng)
    rare_hero = rng.random() < vocabulary.rare_nouns
    rare_thing = rng.random() < vocabulary.rare_nouns
    return Ask(
        hero=_rare(words.RARE_HEROES, rng) if rare_hero else hero.kind,
        hero_adjective=rng.choice(words.HERO_ADJECTIVES) if rng.random() < 0.25 else None,
        name=hero.name,
        thing=_rare(words.RARE_THINGS, rng) if rare_thing else thing.noun,
        thing_adjective=rng.choice(words.THING_ADJECTIVES) if rng.random() < 0.5 else None,
        place=rng.choice(words.PLACES).noun,
    )


def _who(ask: Ask, rng: random.Random) -> tuple[str, Ask]:
    """Put the hero into words; return them and the part of `ask` that they contain."""
    assert ask.hero is not None
    kind = article(described(ask.hero_adjective, ask.hero))
    choice = rng.random()
    if choice < 0.45:
        return f"{kind} named {ask.name}", ask
    if choice < 0.6:
        return f"{kind} called {ask.name}", ask
    if choice < 0.7:
        return f"{ask.name} the {ask.hero}", _replaced(ask, hero_adjective=None)
    if choice < 0.8:
        return f"{ask.name}", _replaced(ask, hero=None, hero_adjective=None)
    return kind, _replaced(ask, name=None)


def _replaced(ask: Ask, **changes: str | None) -> Ask:
    names = Ask.__dataclass_fields__
    return Ask(**({name: getattr(ask, name) for name in names} | changes))


def _typed(text: str, rng: random.Random) -> str:
    """Return `text` as people type it: sometimes in lower case and without a full stop."""
    if rng.random() < 0.1:
        return text.lower().rstrip(".!")
    return text.rstrip(".") if rng.random() < 0.15 else text


def _phrase(template: str, ask: Ask, rng: random.Random) -> tuple[str, Ask]:
    """Fill a request template; the returned contents are those that the template mentions."""
    who, told = (
        _who(ask, rng)
        if "{who}" in template
        else ("", _replaced(ask, hero=None, hero_adjective=None, name=None))
    )
    if "{what}" not in template:
        told = _replaced(told, thing=None, thing_adjective=None)
    if "magic {what}" in template:
        told = _replaced(told, thing_adjective="magic")
    what = described(told.thing_adjective, told.thing) if told.thing else ""
    what = what.removeprefix("magic ") if "magic {what}" in template else what and article(what)
    place = next(p for p in words.PLACES if p.noun == ask.place)
    where = f" {place.phrase}" if rng.random() < 0.25 or "{what}{who}" in template else ""
    if not where or "{where}" not in template:
        told = _replaced(told, place=None)
    return template.format(who=who, what=what, where=where), told


def _where_request(ask: Ask, rng: random.Random) -> tuple[str, Ask]:
    place = next(p for p in words.PLACES if p.noun == ask.place)
    text = rng.choice(ask_for.WHERE_ONLY).format(where=f" {place.phrase}")
    return text, Ask(place=ask.place)


def _request(ask: Ask, rng: random.Random) -> tuple[str, Ask]:
    choice = rng.random()
    if choice < 0.08:
        return rng.choice(ask_for.NOTHING), Ask()
    if choice < 0.1:
        return _where_request(ask, rng)
    if choice < 0.2:
        plot = rng.choice(list(ask_for.WITH_PLOT))
        text, told = _phrase(rng.choice(ask_for.WITH_PLOT[plot]), ask, rng)
        return text, _replaced(told, plot=plot)
    if choice < 0.65:
        return _phrase(rng.choice(ask_for.WHO_AND_WHAT), ask, rng)
    pool = ask_for.WHO_ONLY if choice < 0.85 else ask_for.WHAT_ONLY
    return _phrase(rng.choice(pool), ask, rng)


def make_example(rng: random.Random, vocabulary: Vocabulary | None = None) -> Example:
    """Draw a request and tell a story that answers it."""
    vocabulary = vocabulary or Vocabulary()
    text, ask = _request(_draw_ask(rng, vocabulary), rng)
    return Example(_typed(text, rng), ask, tell(ask, rng, vocabulary))
