"""Stage ``evaluate_sentences``: measures an encoder on the pairs or triplets of one split."""

from pathlib import Path
from typing import Any

import numpy as np

from condensery.evaluation.metrics import Evaluation
from condensery.evaluation.sentence_tasks import nearer, spearman
from condensery.models.biencoder import BiEncoder
from condensery.models.checkpoints.retrievers import load_retriever
from condensery.retrieval.finite import check_finite
from condensery.retrieval.indexes.encoding import encode_chunks
from condensery.stages.base import Context
from condensery.stages.devices import on_device
from condensery.stages.evaluation.config import EvaluateSentencesConfig
from condensery.system.files import write_json
from condensery.system.progress import progress
from condensery.tokens.artifacts import Sentences
from condensery.tokens.text_reader import TextReader


def evaluate_sentences(config: EvaluateSentencesConfig, context: Context) -> dict[str, Any]:
    """Write evaluation.npz, with a value for each triplet or pair, and metrics.json; return the metrics."""
    sentences, encoder = Sentences(context.input("sentences")), load_retriever(context.input("encoder"))
    encode = on_device(encoder.model, BiEncoder.vectors, context, config.precision)
    rows = sentences.rows(config.split)  # (n, k)
    distinct, place = np.unique(rows, return_inverse=True)  # each sentence is encoded once
    reader = TextReader(sentences.store, sentences.vocabulary, encoder.query_length)
    parts = reader.chunks(distinct, config.chunk_tokens)
    with progress(context.stage_name, len(distinct), "sentences") as task:
        vectors = encode_chunks(encode, parts, len(distinct), task=task)
    name = context.artifact("encoder").reference
    check_finite(vectors, f"{context.stage_name}: the vector, by {name}, of sentence", distinct)
    return write_evaluation(list(vectors[place.reshape(rows.shape).T]), sentences, config.split, context.folder)


def write_evaluation(vectors: list[np.ndarray], sentences: Sentences, split: str, folder: Path) -> dict[str, Any]:
    """Measure the vectors of a split's examples, k arrays (n, d), and write the files of the evaluation into ``folder``."""
    names = [str(number) for number in range(len(vectors[0]))]
    if sentences.about["task"] == "similarity":
        evaluation = Evaluation(names, {"Spearman": spearman(vectors[0], vectors[1], sentences.scores(split))})
    else:
        evaluation = Evaluation(names, {"Accuracy": nearer(*vectors)})
    metrics = evaluation.metrics
    evaluation.save(folder / "evaluation.npz")
    write_json(folder / "metrics.json", {"metrics": metrics, "collection": sentences.about["name"]})
    return metrics
