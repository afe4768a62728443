"""A package of one's own that adds a format, a loss and a stage, without touching ours.

    CONDENSERY_STAGES=haiku PYTHONPATH=examples/plugin \\
        python run.py --config-dir examples/plugin/conf experiment=haiku data.root=FOLDER
"""

from typing import Annotated, Any, Literal

from condensery.losses.registry import register
from condensery.stages.base import Context, Input, StageConfig
from condensery.stages.registry import stage
from condensery.system.files import write_json
from condensery.text.formats import register_format
from condensery.text.input_file import InputFile
from condensery.text.lines import read_lines
from condensery.text.records import Passage, Query
from condensery.text.source import FolderSource
from condensery.text.writer import CollectionWriter


class LinesSource(FolderSource):
    """``poems.txt`` has a poem on each line. ``asked.txt`` has for each poem a query that it answers."""

    format: Literal["lines"] = "lines"

    def input_files(self) -> list[InputFile]:
        """Both files."""
        return [InputFile("poems", self.folder / "poems.txt"), InputFile("queries", self.folder / "asked.txt")]

    def judged_splits(self) -> set[str]:
        """Of each four queries, three are for training and one is for the test."""
        return {"train", "test"}


def read(config: LinesSource, writer: CollectionWriter) -> None:
    """Poem i answers query i."""
    poems, asked = (file.open_path() for file in config.input_files())
    for number, (place, _) in enumerate(read_lines(asked)):
        writer.add_judgement("train" if number % 4 else "test", f"q{number}", f"p{number}", 1, place)
    for number, (place, line) in enumerate(read_lines(asked)):
        writer.add_query(Query(f"q{number}", line), place)
    for number, (place, line) in enumerate(read_lines(poems)):
        writer.add_passage(Passage(f"p{number}", "", line), place)


register_format(LinesSource, read)


@register("margin")
def margin(margin: float = 1.0, temperature: float = 1.0) -> Any:
    """Return the mean over all pairs of max(0, margin + score of the negative - score of the positive)."""
    from torch import Tensor

    from condensery import RetrievalLoss

    class Margin(RetrievalLoss):
        """See above."""

        def forward(self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
            scores = queries @ passages.T / temperature
            excess = (scores - scores.gather(1, positive[:, None]) + margin).clamp(min=0)  # (q, p)
            return (excess if known is None else excess.masked_fill(known, 0)).mean()

    return Margin()


class CountConfig(StageConfig):
    """Which collection is counted."""

    corpus: Annotated[str, Input("corpus")]


@stage("count_words", version=1, makes="words")
def count_words(config: CountConfig, context: Context) -> dict[str, Any]:
    """Write ``words.json``: how often each word occurs."""
    from collections import Counter

    from condensery.text.collection import Collection

    passages = Collection(context.input("corpus")).passages.column("text")
    counts = Counter(word for text in passages[:] for word in text.lower().split())
    write_json(context.folder / "words.json", dict(counts.most_common()))
    return {"words": len(counts)}
