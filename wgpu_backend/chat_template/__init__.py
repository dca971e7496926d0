"""Chat templates: messages to the text that a model was trained to continue.

``template.py`` is the whole, ``sandbox.py`` the environment that it runs in, ``budget.py`` what it
may use there.
"""

from wgpu_backend.chat_template.budget import Limits
from wgpu_backend.chat_template.template import ChatTemplate

__all__ = ["ChatTemplate", "Limits"]
