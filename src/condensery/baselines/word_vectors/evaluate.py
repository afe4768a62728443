"""Stage ``evaluate_word_vectors``: the mean of the word vectors of a sentence, measured on a sentence task."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.baselines.word_vectors.config import EvaluateWordVectorsConfig
from condensery.errors import UserError
from condensery.stages.base import Context
from condensery.stages.evaluation.evaluate_sentences import write_evaluation
from condensery.text.lines import read_lines
from condensery.text.table import TextTable
from condensery.text.words import words
from condensery.tokens.artifacts import Sentences

HEADER = 2  # fields of the first line of word2vec's format: the number of words and the number of dimensions


def evaluate_word_vectors(config: EvaluateWordVectorsConfig, context: Context) -> dict[str, Any]:
    """Write the files of ``evaluate_sentences``; return the metrics, and the share of the words that have a vector.

    Raises:
        UserError: a line is malformed, or no word of the sentences has a vector.
    """
    sentences = Sentences(context.input("sentences"))
    rows = sentences.rows(config.split)  # (n, k)
    distinct, place = np.unique(rows, return_inverse=True)
    column = TextTable(context.input("sentences") / "sentences.arrow").column("text")
    texts = [words(column[row]) for row in distinct.tolist()]
    wanted = {word for text in texts for word in text}
    path = config.file().open_path()
    vectors = read_vectors(path, wanted)
    if not vectors:
        raise UserError(f"{path}: has no word of the sentences of {config.sentences}; name vectors of their language")
    means = averaged(texts, vectors)  # (distinct, d)
    metrics = write_evaluation(list(means[place.reshape(rows.shape).T]), sentences, config.split, context.folder)
    return {**metrics, "words_with_a_vector": len(vectors) / len(wanted)}


def read_vectors(path: Path, wanted: Collection[str]) -> dict[str, NDArray[np.float32]]:
    """Read the vectors (d,) of the words ``wanted`` from a file in GloVe's text format; if a word has several lines, the
    first is used.

    GloVe has a few words that contain spaces. They are skipped, since no wanted word contains a space. A first line with the
    sizes of the file, as word2vec writes it, is skipped as well.

    Raises:
        UserError: a line has too few numbers, or something else than a finite number.
    """
    found: dict[str, NDArray[np.float32]] = {}
    fields = 0  # number of fields of a line, including the word
    for number, (place, line) in enumerate(read_lines(path)):
        parts = line.rstrip().split(" ")
        if not parts[0].isascii() and parts[0] == parts[0].lower():  # ``words`` gives strasse for straße
            parts[0] = "".join(words(parts[0])) or parts[0]
        if not fields:
            if len(parts) == HEADER and number == 0:
                continue
            fields = len(parts)
        if len(parts) < fields or fields <= HEADER:
            raise UserError(f"{place}: {len(parts) - 1} numbers; expected a word and its numbers, separated by spaces")
        if parts[0] in wanted and parts[0] not in found and len(parts) == fields:
            try:
                vector = np.array(parts[1:], dtype=np.float32)  # (d,)
            except ValueError:
                vector = np.array([np.nan], np.float32)
            if not np.isfinite(vector).all():
                raise UserError(f"{place}: {fields - 1} finite numbers are expected after the word")
            found[parts[0]] = vector
    return found


def averaged(texts: Sequence[Sequence[str]], vectors: dict[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the mean vector (n, d) of each text's words that have a vector; zeros for a text without such a word."""
    dimensions = len(next(iter(vectors.values())))
    means = np.zeros((len(texts), dimensions), np.float32)
    for row, text in enumerate(texts):
        if known := [vectors[word] for word in text if word in vectors]:
            means[row] = np.mean(known, axis=0)
    return means
