"""Find the nearest sentence for each sentence, by the cosine of their embeddings.

::

    $ python examples/embed.py
    0.11  A fox found a lantern in the forest.
          A ship came over the waves to the harbour.
    …

A device as the only argument (``cpu``) runs it there. The story model is small and was never
trained for this; an embedding model does better.
"""

import sys

import numpy as np

import wgpu_backend as wb

SENTENCES = (
    "A fox found a lantern in the forest.",
    "The little fox looked at the bright lantern.",
    "The boat sailed across the sea.",
    "A ship came over the waves to the harbour.",
    "She was sad and cried.",
    "He felt lonely and wept.",
)


def main(device: str | None = None) -> None:
    with wb.load(device=device) as model:
        vectors = model.embed(SENTENCES)
    vectors -= vectors.mean(axis=0)  # what all sentences share does not distinguish them
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -1)
    for sentence, row in zip(SENTENCES, cosines, strict=True):
        nearest = int(row.argmax())
        print(f"{row[nearest]:.2f}  {sentence}\n      {SENTENCES[nearest]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
