"""The registry of all input formats, and ``DataConfig``, the union of their descriptions: the type of ``data`` configs."""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from condensery.errors import UserError
from condensery.text.formats import (
    ADDED,
    Format,
    beir,
    documents,
    dpr,
    huggingface,
    ir_datasets,
    msmarco,
    plain_text,
    pydocs,
    tevatron,
)
from condensery.text.source import DataConfig

FORMATS: dict[str, Format] = {
    "beir": (beir.BeirSource, beir.read),
    "msmarco": (msmarco.MarcoSource, msmarco.read),
    "msmarco_documents": (msmarco.MarcoDocumentsSource, msmarco.read_as_corpus),
    "dpr": (dpr.DprSource, dpr.read),
    "tevatron": (tevatron.TevatronSource, tevatron.read),
    "documents": (documents.DocumentsSource, documents.read),
    "text": (plain_text.TextSource, plain_text.read),
    "pydocs": (pydocs.PydocsSource, pydocs.read),
    "ir_datasets": (ir_datasets.IrDatasetsSource, ir_datasets.read),
    "huggingface": (huggingface.HuggingfaceSource, huggingface.read),
    "huggingface_triples": (huggingface.HuggingfaceTriplesSource, huggingface.read_triples),
    "huggingface_documents": (huggingface.HuggingfaceDocumentsSource, huggingface.read_documents),
}
if taken := FORMATS.keys() & ADDED:
    raise UserError(f"CONDENSERY_STAGES: format {min(taken)!r}: a format of Condensery has this name; rename yours")
FORMATS |= ADDED
if TYPE_CHECKING:
    DataConfig = DataConfig
else:
    _ALL = tuple(source for source, _ in FORMATS.values())
    DataConfig = Annotated[Union[_ALL], Field(discriminator="format")]  # noqa: UP007  (the number of types varies)
