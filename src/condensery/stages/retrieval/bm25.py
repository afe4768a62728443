"""Stage ``bm25``: the lexical index, baseline and first miner of negatives."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from condensery.retrieval.analyser import check_stemmer, check_stopwords
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.work import Read, Work, known, product
from condensery.text.languages import check_language


class Bm25Config(StageConfig):
    """Robertson's parameters and the analysis of text."""

    corpus: Annotated[str, Input("corpus")]
    k1: Annotated[float, Field(ge=0)]
    b: Annotated[float, Field(ge=0, le=1)]
    stopwords: Annotated[str, AfterValidator(check_stopwords)]
    stemmer: Annotated[str, AfterValidator(check_stemmer)]
    language: Annotated[str, AfterValidator(check_language)]

    def work(self, read: Read) -> Work:
        """All passages are taken apart into words and indexed."""
        sizes = known(read)
        texts = product(sizes.collection.passages, sizes.collection.passage_tokens)
        return Work(replace(sizes, dimensions=0), seconds=product(1.1e-6, texts), disk=product(2.7, texts))


@stage("bm25", version=2, makes="index")
def bm25(config: Bm25Config, context: Context) -> dict[str, Any]:
    """Index all passages, titles included."""
    from condensery.retrieval.bm25 import build_bm25
    from condensery.text.collection import Collection

    collection = Collection(context.input("corpus"))
    analysis = (config.stopwords, config.stemmer, config.language)
    return build_bm25(collection, context.folder, config.k1, config.b, *analysis, label=context.stage_name)
