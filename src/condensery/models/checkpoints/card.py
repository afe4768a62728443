"""The model card: ``README.md`` of a checkpoint, with YAML metadata for the Hugging Face hub. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from condensery.models.vectors import POOLED, VectorSettings
from condensery.system.files import atomic

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
    """What the card says of a model that does not make one dense vector of a text.

    Attributes:
        template: Jinja template of the text that describes the model and shows a program, like ``card_dense.md``.
        values: further values for the template, by name.
        tags: the hub's tags of such models.
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
        licence: the hub's name for the licence of the weights, such as "apache-2.0"; None = not known.
    """

    method: str
    name: str | None = None
    data: Sequence[str] = ()
    base_model: str | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, float] = field(default_factory=dict)
    measured: Sequence[Measured] = ()
    licence: str | None = None

    def text(self, name: str, settings: VectorSettings | Described, lengths: tuple[int, int]) -> str:
        """Return the text of the whole card.

        Args:
            name: name under which a reader would load the model.
            settings: vector settings of the model; for a model that does not make one dense vector, what it makes.
            lengths: maximum query length and passage length in tokens.
        """
        from jinja2 import Template  # a dry run imports this module and renders no card

        def filled(file: Path, **values: Any) -> str:
            template = Template(file.read_text(encoding="utf-8"), trim_blocks=True, lstrip_blocks=True)
            return template.render(values, card=self, name=name, settings=settings, lengths=lengths, repr=repr)

        kind = _DENSE if isinstance(settings, VectorSettings) else settings
        pooled = POOLED[settings.pooling] if isinstance(settings, VectorSettings) else ""
        about = filled(kind.template, pooled=pooled, **kind.values)
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
            license=self.licence or _UNKNOWN,
            model_name=name.rpartition("/")[2],
            pipeline_tag="sentence-similarity" if kind is _DENSE else "feature-extraction",
            tags=[*dict.fromkeys((_LIBRARY, kind.library, "feature-extraction", *kind.tags))],
        )
        return front.to_yaml()


_DENSE = Described(Path(__file__).with_name("card_dense.md"), {}, ["dense-retrieval"])


def write_card(folder: Path, text: str) -> None:
    """Write the text of a card into the folder of a checkpoint."""
    with atomic(folder / CARD) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _shown(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
