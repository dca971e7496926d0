"""Whisper's control tokens: tasks, languages and timestamps; and its suppressed tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import ModelError, OptionError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.text.tokenizer import Tokenizer

ARCHITECTURES = ("whisper",)
"""Architectures of speech models."""
TASKS = ("transcribe", "translate")
TIMESTAMP_SECONDS = 0.02
"""Seconds from one timestamp token to the next."""
TIMESTAMPS = 1501
# Models for English only have one token fewer: that of a language.
_MULTILINGUAL_ROWS = 51_865
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
# Codes and English names, in the order of the tokens.
_NAMES_AND_CODES = """
en english zh chinese de german es spanish ru russian ko korean fr french ja japanese pt portuguese
tr turkish pl polish ca catalan nl dutch ar arabic sv swedish it italian id indonesian hi hindi
fi finnish vi vietnamese he hebrew uk ukrainian el greek ms malay cs czech ro romanian da danish
hu hungarian ta tamil no norwegian th thai ur urdu hr croatian bg bulgarian lt lithuanian la latin
mi maori ml malayalam cy welsh sk slovak te telugu fa persian lv latvian bn bengali sr serbian
az azerbaijani sl slovenian kn kannada et estonian mk macedonian br breton eu basque is icelandic
hy armenian ne nepali mn mongolian bs bosnian kk kazakh sq albanian sw swahili gl galician
mr marathi pa punjabi si sinhala km khmer sn shona yo yoruba so somali af afrikaans oc occitan
ka georgian be belarusian tg tajik sd sindhi gu gujarati am amharic yi yiddish lo lao uz uzbek
fo faroese ht haitian_creole ps pashto tk turkmen nn nynorsk mt maltese sa sanskrit
lb luxembourgish my myanmar bo tibetan tl tagalog mg malagasy as assamese tt tatar haw hawaiian
ln lingala ha hausa ba bashkir jw javanese su sundanese yue cantonese
"""
_NAMES = _NAMES_AND_CODES.split()
LANGUAGE_NAMES: Mapping[str, str] = {
    code: name.replace("_", " ") for code, name in zip(_NAMES[::2], _NAMES[1::2], strict=True)
}
# Symbols that subtitles use for noises, or that nobody speaks.
_SEVERAL = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪"
_SYMBOLS = [*'"#()*+/:;<=>@[\\]^_`{|}~「」『』', *_SEVERAL.split()]
_NOTES = "♩♪♫♬♭♮♯"

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SpeechTokens:
    """The ids of a model's control tokens.

    Parameters
    ----------
    start, end : int
        Start of a transcript; end of the text.
    transcribe, translate, previous, no_speech, no_timestamps : int
        Tasks, start of the previous text, silence, and text without timestamps.
    languages : mapping of str to int
        Tokens by code; empty for a model of English only.
    suppressed : (n,), int
        Tokens that are never chosen.
    not_first : (n,), int
        Tokens that are not chosen as the first one.
    """

    start: int
    end: int
    transcribe: int
    translate: int
    previous: int
    no_speech: int
    no_timestamps: int
    languages: Mapping[str, int]
    suppressed: Ids
    not_first: Ids

    @property
    def timestamp(self) -> int:
        """Return the id of the first timestamp, 0 seconds; each next id is 20 ms later."""
        return self.no_timestamps + 1

    @classmethod
    def read(cls, tokenizer: Tokenizer, config: Config, rows: int) -> SpeechTokens:
        """Find the tokens in a vocabulary.

        Parameters
        ----------
        rows : int
            Rows of the embedding.

        Raises
        ------
        ModelError
            A token is missing.
        """
        source = config.source
        found = {
            "start": _find(tokenizer, source, "startoftranscript"),
            "end": _find(tokenizer, source, "endoftext"),
            "transcribe": _find(tokenizer, source, "transcribe"),
            "translate": _find(tokenizer, source, "translate"),
            "previous": _find(tokenizer, source, "startofprev"),
            # The name in older files.
            "no_speech": _find(tokenizer, source, "nospeech", "nocaptions"),
            "no_timestamps": _find(tokenizer, source, "notimestamps"),
        }
        if found["no_timestamps"] + TIMESTAMPS >= rows:
            raise ModelError(
                f"{source}: the embedding has {rows} rows, needs {TIMESTAMPS} timestamps after "
                f"token {found['no_timestamps']}"
            )
        texts = {i: tokenizer.token_text(i) for i in range(found["start"] + 1, found["translate"])}
        languages = {m[1]: i for i, text in texts.items() if (m := _LANGUAGE.fullmatch(text))}
        if not config.bool("is_multilingual", rows >= _MULTILINGUAL_ROWS):
            languages = {}
        suppressed = config.ints("suppress_tokens", [])
        suppressed = suppressed or [
            *find_symbols(tokenizer),
            *(found[n] for n in ("start", "transcribe", "translate", "previous", "no_speech")),
        ]
        space = tokenizer.encode_further(" ")
        not_first = config.ints("begin_suppress_tokens", []) or [*space, found["end"]]
        return cls(
            **found,
            languages=languages,
            suppressed=_within(suppressed, rows),
            not_first=_within(not_first, rows),
        )

    def language_code(self, language: str) -> str:
        """Return the code of a language that is given by code or English name.

        Raises
        ------
        OptionError
            The model does not have that language.
        """
        code = find_code(language)
        if not self.languages:
            if code == "en":
                return code
            raise OptionError(f"language: {language!r}, the model knows only English")
        if code not in self.languages:
            raise OptionError(
                f"language: {language[:40]!r} is unknown to the model, needs one of "
                f"{', '.join(self.languages)}"
            )
        return code

    def head(self, language: str, task: str, *, timestamps: bool) -> list[int]:
        """Return the tokens before the text: start, language, task, and perhaps no timestamps.

        Raises
        ------
        OptionError
            The model does not translate.
        """
        if task not in TASKS:
            raise OptionError(f"task: {task[:40]!r}, needs {' or '.join(TASKS)}")
        made = [self.start]
        if self.languages:
            made += [self.languages[language], getattr(self, task)]
        elif task == "translate":
            raise OptionError("task: 'translate', the model knows only English")
        return made if timestamps else [*made, self.no_timestamps]


def find_code(language: str) -> str:
    """Return the code of a language that is given by code or English name.

    Raises
    ------
    OptionError
        No model has that language.
    """
    name = language.strip().lower()
    by_name = {name: code for code, name in LANGUAGE_NAMES.items()}
    code = by_name.get(name, name)
    if code not in LANGUAGE_NAMES:
        raise OptionError(
            f"language: {language[:40]!r} is unknown, needs a code or an English name, such as de "
            "or German"
        )
    return code


def _find(tokenizer: Tokenizer, source: str, *names: str) -> int:
    for name in names:
        found = tokenizer.token_id(f"<|{name}|>")
        if found is not None:
            return found
    raise ModelError(f"{source}: the vocabulary has no token <|{names[0]}|>, which Whisper needs")


def _within(ids: Sequence[int], rows: int) -> Ids:
    # Some lists have -1 for none.
    return np.array(sorted({i for i in ids if 0 <= i < rows}), np.int64)


def find_symbols(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of tokens for symbols that are not speech, as in OpenAI's list."""
    found = {tokenizer.encode_further(" -")[0], tokenizer.encode_further(" '")[0]}
    for symbol in [*_SYMBOLS, *_NOTES]:
        for text in (symbol, f" {symbol}"):
            ids = tokenizer.encode_further(text)
            # Notes share their first byte pair, which nothing else begins with.
            if len(ids) == 1 or symbol in _NOTES:
                found.add(ids[0])
    return sorted(found)
