"""Text and tokens: tokenizers, chat templates, grammars, and parsers of models' output."""
