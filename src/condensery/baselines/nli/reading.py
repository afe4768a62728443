"""Stage ``read_nli``: pairs of sentences with a label, from files in the formats of SNLI, MultiNLI and AllNLI."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from condensery.baselines.nli.config import EXPECTED, ReadNliConfig
from condensery.errors import UserError, shown
from condensery.stages.base import Context
from condensery.stages.sentences.examples import Example, write_sentences
from condensery.text.lines import at_least_one, check_whole, fields_of, read_lines, read_objects
from condensery.text.words import is_blank

LABELS = ("entailment", "neutral", "contradiction")  # in the order of the data sets of the hub
NO_LABEL = ("-", "-1", "")  # the annotators did not agree
PREMISE, HYPOTHESIS, LABEL = ("premise", "sentence1"), ("hypothesis", "sentence2"), ("gold_label", "label")

Pair = tuple[str, str, int | None]  # premise, hypothesis, index in ``LABELS`` or None


def read_nli(config: ReadNliConfig, context: Context) -> dict[str, Any]:
    """Write the distinct sentences with their tokens, and for each pair its two sentences and its label.

    Raises:
        UserError: a line is malformed, or no pair has a label.
    """
    counts = Counter[str]()
    found = write_sentences(_examples(config, counts), context, "NLI", "nli", ("train",))
    return {**{name: found.pop(name) for name in ("sentences", "train")}, **counts, **found}


def _examples(config: ReadNliConfig, counts: Counter[str]) -> Iterator[Example]:
    """Yield the pairs that have a label, and count the pairs of each label in ``counts``."""
    for file in config.inputs():
        for premise, hypothesis, label in pairs_of(file.open_path()):
            counts["without_label" if label is None else LABELS[label]] += 1
            if label is not None:
                yield "train", (premise, hypothesis), label
    if not set(counts) & set(LABELS):
        raise UserError(f"{config.inputs()[0].open_path()}: no pair has a label; the file must be {EXPECTED}")


def pairs_of(path: Path) -> Iterator[Pair]:
    """Yield the pairs of one file.

    Raises:
        UserError: a field is missing, a sentence is empty, a label is unknown, or the file has no pairs.
    """
    json_lines = path.name.removesuffix(".gz").endswith((".jsonl", ".json"))
    records = read_objects(path) if json_lines else _columns(path)
    for place, record in at_least_one(records, path, f"no pair of sentences; the file must be {EXPECTED}"):
        if str(record.get("split") or "train") == "train":
            yield _pair(record, place)


def _columns(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the lines of a tab-separated file as records. The first line has the names of the fields."""
    names: list[str] = []
    for place, line in read_lines(path):
        fields = line.split("\t")
        if not names:
            names = fields
        elif line.strip():
            yield place, dict(zip(names, fields, strict=False))


def _pair(record: dict[str, Any], place: str) -> Pair:
    texts = [_field(record, names, place) for names in (PREMISE, HYPOTHESIS)]
    for text, names in zip(texts, (PREMISE, HYPOTHESIS), strict=True):
        if not isinstance(text, str):
            raise UserError(f"{place}: the {names[0]} must be a string; the file must be {EXPECTED}")
        check_whole(text, names[0], place)
        if is_blank(text):
            raise UserError(f"{place}: the {names[0]} is empty")
    written = _field(record, LABEL, place)
    label = str(written).strip().lower()
    if label in NO_LABEL:
        return texts[0], texts[1], None
    found = LABELS.index(label) if label in LABELS else int(label) if label in ("0", "1", "2") else None
    if found is None or isinstance(written, bool):
        raise UserError(f'{place}: the label must be one of {", ".join(LABELS)}, not "{shown(str(written))}"')
    return texts[0], texts[1], found


def _field(record: dict[str, Any], names: tuple[str, str], place: str) -> Any:
    value = next((record[name] for name in names if record.get(name) is not None), None)
    if value is None:
        raise UserError(f'{place}: the field "{names[0]}" or "{names[1]}" is missing ({fields_of(record)})')
    return value
