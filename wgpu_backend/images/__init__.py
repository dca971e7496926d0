"""Pictures from text: folders of pipelines, their tokenizers, schedulers and pictures."""
