"""The model card: ``README.md`` of a checkpoint, with YAML metadata for the Hugging Face hub. This file imports no torch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from condensery.models.checkpoints.sentence_transformers import layers_after_pooling
from condensery.models.vectors import POOLED, VectorSettings
from condensery.system.files import expanded, is_hub_name

CARD = "README.md"
_LIBRARY = "condensery"
_UNKNOWN = "unknown"  # the hub's name for an unknown licence
TEMPLATE = Path(__file__).with_name("card.md")


@dataclass(frozen=True)
class Measured:
    """The results of a checkpoint on one split of a collection. ``metrics`` maps a metric's name to its value, 0 to 1."""

    collection: str
    split: str
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Described:
    """Describes, in a card, a model that does not map a text to one dense vector.

    Attributes:
        template: Jinja template, such as ``card_dense.md``, of the text that describes the model and shows a program.
        values: further values for the template, by name.
        tags: tags of such models on the hub.
        library: name of the library that opens the model.
    """

    template: Path
    values: Mapping[str, Any]
    tags: Sequence[str]
    library: str = "sentence-transformers"


@dataclass(frozen=True)
class Card:
    """The contents of a model card.

    Attributes:
        method: the training method, in a few words.
        name: name of the model; None = the name of its folder.
        data: names of the collections on which the model was trained.
        base_model: hub name of the initial checkpoint; None = the initial checkpoint is not on the hub, or there is none.
        recipe: name of a setting -> value of the setting.
        training: name of a logged value, such as a loss -> last value that was logged.
        measured: results on test collections.
        licence: the hub's name for the licence of the weights, such as "apache-2.0"; None = the user has named no licence.
        base_licence: the licence that the card of the initial checkpoint names; None = it names no licence, or there is no
            initial checkpoint.
    """

    method: str
    name: str | None = None
    data: Sequence[str] = ()
    base_model: str | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, float] = field(default_factory=dict)
    measured: Sequence[Measured] = ()
    licence: str | None = None
    base_licence: str | None = None

    def text(self, name: str, settings: VectorSettings | Described, lengths: tuple[int, int], folder: Path) -> str:
        """Return the text of the whole card.

        Args:
            name: name under which a reader would load the model.
            settings: vector settings of the model; ``Described`` for a model that does not map a text to one dense vector.
            lengths: maximum query length and passage length in tokens.
            folder: folder of the model.
        """
        from jinja2 import Template  # a dry run imports this module and renders no card

        def filled(file: Path, **values: Any) -> str:
            template = Template(file.read_text(encoding="utf-8"), trim_blocks=True, lstrip_blocks=True)
            return template.render(values, card=self, name=name, settings=settings, lengths=lengths, repr=repr)

        kind = _DENSE if isinstance(settings, VectorSettings) else settings
        pooled = POOLED[settings.pooling] if isinstance(settings, VectorSettings) else ""
        layers = layers_after_pooling(folder, settings) if isinstance(settings, VectorSettings) else []
        about = filled(kind.template, pooled=pooled, layers=layers, **kind.values)
        return filled(TEMPLATE, front=self._front(name, kind), about=about, shown=_shown) + "\n"

    def _front(self, name: str, kind: Described) -> str:
        from huggingface_hub import EvalResult, ModelCardData

        results = [
            EvalResult("text-retrieval", one.collection, one.collection, metric, value, dataset_split=one.split)
            for one in self.measured
            for metric, value in one.metrics.items()
        ]
        front = ModelCardData(
            base_model=self.base_model,
            eval_results=results or None,
            library_name=kind.library,
            license=self.licence or self.base_licence or _UNKNOWN,
            model_name=name.rpartition("/")[2],
            pipeline_tag="sentence-similarity" if kind is _DENSE else "feature-extraction",
            tags=[*dict.fromkeys((_LIBRARY, kind.library, "feature-extraction", *kind.tags))],
        )
        return front.to_yaml()


_DENSE = Described(Path(__file__).with_name("card_dense.md"), {}, ["dense-retrieval"])


def base_of(checkpoint: object, revision: str | None = None) -> dict[str, Any]:
    """Return the arguments of ``Card`` about an initial checkpoint: its hub name, and the licence that its card names.

    Args:
        checkpoint: folder, or hub name whose card is read from the hub's local cache; any other value = no checkpoint.
        revision: commit, tag or branch on the hub.
    """
    from huggingface_hub import try_to_load_from_cache

    if not isinstance(checkpoint, str | Path):
        return {}
    on_hub = is_hub_name(str(checkpoint)) and not expanded(checkpoint).exists()
    cached = try_to_load_from_cache(str(checkpoint), CARD, revision=revision) if on_hub else None
    file = Path(cached) if isinstance(cached, str) else expanded(checkpoint) / CARD
    text = file.read_text(encoding="utf-8-sig", errors="replace") if file.is_file() else ""
    licence = re.match(rf"---\n(?:(?!---).*\n)*?license: *['\"]?(?!{_UNKNOWN})([\w.+-]+)", text)
    return {"base_model": checkpoint if on_hub else None, "base_licence": licence and licence[1]}


def _shown(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
