"""The description of an input, of whichever format: what ``conf/data/`` composes."""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from condensery.text.beir import BeirSource
from condensery.text.documents import DocumentsSource
from condensery.text.dpr import DprSource
from condensery.text.formats import ADDED
from condensery.text.huggingface import HuggingfaceDocumentsSource, HuggingfaceSource, HuggingfaceTriplesSource
from condensery.text.ir_datasets import IrDatasetsSource
from condensery.text.msmarco import MarcoDocumentsSource, MarcoSource
from condensery.text.plain_text import TextSource
from condensery.text.pydocs import PydocsSource
from condensery.text.source import DataConfig
from condensery.text.tevatron import TevatronSource

_OURS = (
    BeirSource,
    MarcoSource,
    MarcoDocumentsSource,
    DprSource,
    TevatronSource,
    DocumentsSource,
    TextSource,
    PydocsSource,
    IrDatasetsSource,
    HuggingfaceSource,
    HuggingfaceTriplesSource,
    HuggingfaceDocumentsSource,
)
if TYPE_CHECKING:
    DataConfig = DataConfig
else:
    _ALL = (*_OURS, *(source for source, _ in ADDED.values()))
    DataConfig = Annotated[Union[_ALL], Field(discriminator="format")]  # noqa: UP007  (their number is not known)
