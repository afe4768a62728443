"""The description of an input in any format: the type of the configs that ``conf/data/`` composes."""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from condensery.text.formats.beir import BeirSource
from condensery.text.formats.documents import DocumentsSource
from condensery.text.formats.dpr import DprSource
from condensery.text.formats.huggingface import HuggingfaceDocumentsSource, HuggingfaceSource, HuggingfaceTriplesSource
from condensery.text.formats.ir_datasets import IrDatasetsSource
from condensery.text.formats.msmarco import MarcoDocumentsSource, MarcoSource
from condensery.text.formats.plain_text import TextSource
from condensery.text.formats.pydocs import PydocsSource
from condensery.text.formats.registry import ADDED
from condensery.text.formats.tevatron import TevatronSource
from condensery.text.source import DataConfig

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
    DataConfig = Annotated[Union[_ALL], Field(discriminator="format")]  # noqa: UP007  (their number is not fixed)
