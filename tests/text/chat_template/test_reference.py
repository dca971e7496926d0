"""Chat templates against plain Jinja set up as transformers does: the same text, or both refuse."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from tests.text.chat_template.reference import TOKENS, reference
from wgpu_backend.errors import TemplateError
from wgpu_backend.text.chat_template import ChatTemplate

HERE = Path(__file__).parents[2]
OWN = HERE / "data" / "chat_templates"
SHARED = HERE.parent.parent / "shared" / "data" / "chat_templates"
CONVERSATIONS = json.loads((OWN / "conversations.json").read_text("utf-8"))
# A content of None, which transformers leaves out: templates that fail of that are given it here.
WITHOUT_CONTENT = "reasoning about a call"
NOW = datetime(2026, 1, 2, 3, 4, 5)


def rendered(render, conversation):
    """Text of a conversation, None where the template refuses it."""
    try:
        return render(**conversation)
    except Exception:  # a template can raise whatever its expressions do
        return None


def differences(path):
    source = path.read_text("utf-8")
    theirs = reference(source, NOW)
    mine = ChatTemplate(source, **TOKENS, clock=lambda: NOW)

    def render(**conversation):
        try:
            return mine.render(**conversation)
        except TemplateError:
            return None

    found = {
        name: (render(**conversation), rendered(theirs, conversation))
        for name, conversation in CONVERSATIONS.items()
    }
    return [
        name
        for name, (made, wanted) in found.items()
        if made != wanted and not (wanted is None and name == WITHOUT_CONTENT)
    ]


def test_there_are_thirteen_conversations_and_no_template_refuses_all():
    assert len(CONVERSATIONS) == 13
    for path in OWN.glob("*.jinja"):
        render = reference(path.read_text("utf-8"), NOW)
        texts = [rendered(render, conversation) for conversation in CONVERSATIONS.values()]
        assert len({text for text in texts if text is not None}) >= 4, path.name


@pytest.mark.parametrize("path", sorted(OWN.glob("*.jinja")), ids=lambda path: path.stem)
def test_templates_render_as_plain_jinja_does(path):
    assert differences(path) == []


def test_other_people_s_templates_render_as_plain_jinja_does(pytestconfig):
    folder = Path(pytestconfig.getoption("--chat-templates") or SHARED)
    paths = sorted(folder.glob("*.jinja"))
    if not paths:
        pytest.skip("no chat templates beside this checkout, nor --chat-templates FOLDER")
    different = {path.name: differences(path) for path in paths}
    assert {name: names for name, names in different.items() if names} == {}
    print(f"{len(paths)} templates, {len(CONVERSATIONS)} conversations")  # noqa: T201
