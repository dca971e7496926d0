"""Chat templates: from messages to the text that a model was trained to continue.

``template.py`` is the public class, ``sandbox.py`` its Jinja environment and the
filters there. ``budget.py`` limits time, text and memory. ``estimates.py`` and ``formatting.py``
estimate what a step is about to use. ``builtin_templates.py`` has templates by llama.cpp's names.
"""

from wgpu_backend.text.chat_template.budget import Limits
from wgpu_backend.text.chat_template.template import ChatTemplate, name_calls

__all__ = ["ChatTemplate", "Limits", "name_calls"]
