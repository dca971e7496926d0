"""Chat templates: messages to the text that a model was trained to continue.

``template.py`` is the whole, ``inputs.py`` what it is given, ``sandbox.py`` the environment that it
runs in and ``filters.py`` what it calls there. ``budget.py`` is what it may use up; what a step is
about to take is in ``estimates.py`` and, of text that is formatted, in ``formatting.py``.
"""

from wgpu_backend.text.chat_template.budget import Limits
from wgpu_backend.text.chat_template.template import ChatTemplate

__all__ = ["ChatTemplate", "Limits"]
