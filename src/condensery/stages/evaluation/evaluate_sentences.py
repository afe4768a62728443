"""Stage ``evaluate_sentences``: an encoder on the pairs or triplets of one split."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from condensery.models.flops import Step
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.checks import Split
from condensery.stages.work import Read, Work, known

if TYPE_CHECKING:
    import numpy as np

    from condensery.tokens.artifacts import Sentences


class EvaluateSentencesConfig(StageConfig):
    """``encoder`` is any checkpoint; the longest input is that with which it was trained."""

    encoder: Annotated[str, Input("encoder")]
    sentences: Annotated[str, Input("sentences")]
    split: Split
    precision: Literal["fp32", "bf16", "fp16"]
    chunk_tokens: Annotated[int, Field(gt=0)]

    def work(self, read: Read) -> Work:
        """Every sentence of the split once."""
        sizes = known(read)
        texts, size = sizes.sentences, sizes.encoder
        if texts is None or size is None:
            return Work(sizes)
        rows = texts.examples[self.split] * texts.each
        length = min(texts.tokens + 2, sizes.passage_length or 128)
        step = Step(size, rows, length, self.chunk_tokens, trained=False, precision=self.precision)
        return Work(sizes, 1, step, seconds=0.0, disk=8.0 * rows)


@stage("evaluate_sentences", version=2, makes="evaluation")
def evaluate_sentences(config: EvaluateSentencesConfig, context: Context) -> dict[str, Any]:
    """Write evaluation.npz (a value of each triplet or pair) and metrics.json."""
    from condensery.evaluation.metrics import Evaluation
    from condensery.evaluation.sentences import nearer, spearman
    from condensery.system.files import write_json
    from condensery.tokens.artifacts import Sentences

    sentences = Sentences(context.input("sentences"))
    rows = sentences.rows(config.split)
    vectors = _vectors(config, context, sentences, rows)
    names = [str(number) for number in range(len(rows))]
    if sentences.about["task"] == "similarity":
        evaluation = Evaluation(names, {"Spearman": spearman(vectors[0], vectors[1], sentences.scores(config.split))})
    else:
        evaluation = Evaluation(names, {"Accuracy": nearer(*vectors)})
    metrics = evaluation.metrics
    evaluation.save(context.folder / "evaluation.npz")
    write_json(context.folder / "metrics.json", {"metrics": metrics, "collection": sentences.about["name"]})
    return metrics


def _vectors(
    config: EvaluateSentencesConfig, context: Context, sentences: "Sentences", rows: "np.ndarray"
) -> "list[np.ndarray]":
    """The vectors of the sentences ``rows`` (n, k) of the examples, each sentence encoded once: k of (n, d)."""
    import numpy as np
    import torch

    from condensery.models.checkpoint import load_retriever
    from condensery.retrieval.finite import check_finite
    from condensery.stages.devices import autocast, torch_device
    from condensery.system.progress import progress
    from condensery.tokens.batches import chunks, text_rows

    device = torch_device(context.runtime.accelerator)
    encoder = load_retriever(Path(context.input("encoder")))
    model = encoder.model.to(device).eval()
    distinct, place = np.unique(rows, return_inverse=True)
    texts = text_rows(sentences.store, distinct, sentences.vocabulary, encoder.query_length)
    vectors: np.ndarray | None = None
    with progress(context.stage_name, len(distinct), "sentences") as task:
        for chunk in chunks(*texts, config.chunk_tokens, sentences.vocabulary.pad):
            with torch.inference_mode(), autocast(device, config.precision):
                part = model.vectors(chunk.to(device)).float().cpu().numpy()
            vectors = np.empty((len(distinct), part.shape[1]), np.float32) if vectors is None else vectors
            vectors[chunk.rows.numpy()] = part
            task.advance(len(part))
    assert vectors is not None, "a split has an example"
    name = "{0.kind}/{0.id}".format(context.artifact("encoder"))
    check_finite(vectors, f"{context.stage_name}: by {name}, the vector of sentence", distinct)
    return list(vectors[place.reshape(rows.shape).T])
