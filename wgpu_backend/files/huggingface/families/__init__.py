"""Families of models as Hugging Face folders have them: tables of names, one file for kin."""
