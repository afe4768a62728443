"""Configs of the stages of BERT + NLI (Sentence-BERT, Reimers and Gurevych 2019)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from condensery.models.flops import Step
from condensery.ranges import Count, Positive, Weight
from condensery.stages.base import Input, Operational, StageConfig, TextLength
from condensery.stages.registry import stage
from condensery.stages.training_config import EncoderStageConfig
from condensery.stages.workload import Read, Sizes, Work, known, with_encoder
from condensery.system.files import expanded
from condensery.text.hashes import content_hashes
from condensery.text.input_file import InputFile
from condensery.text.sizes import CHARACTERS, SentenceSizes, counted_examples

EXPECTED = (
    'JSON lines (.jsonl) or columns between tabs (.tsv, .txt) with a header; the fields are "premise" and "hypothesis" (or'
    ' "sentence1" and "sentence2"), and "label" (or "gold_label")'
)


@stage("read_nli", "reading:read_nli", version=1, makes="nli")
class ReadNliConfig(StageConfig):
    """Read pairs of sentences with a label: entailment, contradiction or neutral (SNLI, MultiNLI, AllNLI, or your own).

    A pair without a gold label (``-`` or ``-1``) is left out. Labels 0, 1 and 2 are entailment, neutral and contradiction, as
    in the data sets of the hub. From a file with a field ``split``, only the pairs of ``train`` are read.
    """

    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the tokenizer"""
    paths: Annotated[list[str], Field(min_length=1), Operational()]  # the id depends on the content, not on the paths
    """the files, .jsonl or .tsv, plain or .gz; several are read one after the other"""

    def inputs(self) -> list[InputFile]:
        """Return the files that are read."""
        role, hint = "file of NLI pairs", f": {EXPECTED}"
        return [InputFile(role, expanded(path), hint, may_be_empty=True) for path in self.paths]

    def identity(self) -> list[str]:
        """Return the content hashes of the files.

        Raises:
            UserError: a file is missing or unreadable; this is checked before anything is computed.
        """
        return content_hashes([file.look() for file in self.inputs()])

    def work(self, read: Read) -> Work:
        """Estimate the work: each line of the files is a pair."""
        found = counted_examples({str(number): file for number, file in enumerate(self.inputs())}, 2)
        if found is None:
            return Work(known(read))
        found = SentenceSizes({"train": sum(found.examples.values())}, 2, found.tokens, found.reading)
        disk = 2 * CHARACTERS * found.tokens * found.sentences
        return Work(replace(known(read), sentences=found), seconds=found.reading, disk=disk)

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """Return the counted pairs."""
        if expected.sentences is None:
            return expected
        return replace(expected, sentences=replace(expected.sentences, examples={"train": float(metrics["train"])}))


@stage("finetune_nli", "training:finetune_nli", version=1, makes="encoder", together=True)
class FinetuneNliConfig(EncoderStageConfig):
    """Train a sentence encoder on the labels of NLI pairs, with the classification objective of Sentence-BERT.

    From the vectors u and v of the two sentences, a linear layer on (u, v, |u - v|) predicts the label. Only the encoder is
    saved.
    """

    nli: Annotated[str, Input("nli")] = "nli"
    """the stage with the pairs (read_nli)"""
    length: TextLength = 128
    """maximum tokens of a sentence, including [CLS] and [SEP]"""
    batch_size: Count = 16
    """pairs per step"""
    epochs: Positive | None = 1
    """passes over the pairs"""
    learning_rate: Positive = 2e-5
    """peak learning rate of AdamW (of Adam, if ``weight_decay`` is 0)"""
    weight_decay: Weight = 0.0
    """weight decay of AdamW; biases and LayerNorm weights are not decayed"""

    def work(self, read: Read) -> Work:
        """Estimate the work of the training steps. A step reads ``batch_size`` pairs, each sentence separately."""
        sizes, step = with_encoder(known(read), self.backbone, self.length), None
        texts = sizes.sentences
        if texts is not None and sizes.encoder is not None:
            length = min(texts.tokens + 2, self.length)
            step = Step(sizes.encoder, 2.0 * self.batch_size, length, self.budget, precision=self.precision)
        return self.training(sizes, step, None if texts is None else texts.examples["train"])
