"""The description of an input, of whichever format: what ``conf/data/`` composes."""

from typing import Annotated

from pydantic import Field

from condensery.text.beir import BeirSource
from condensery.text.documents import DocumentsSource
from condensery.text.dpr import DprSource
from condensery.text.msmarco import MarcoDocumentsSource, MarcoSource
from condensery.text.plain_text import TextSource
from condensery.text.pydocs import PydocsSource
from condensery.text.tevatron import TevatronSource

DataConfig = Annotated[
    BeirSource
    | MarcoSource
    | MarcoDocumentsSource
    | DprSource
    | TevatronSource
    | DocumentsSource
    | TextSource
    | PydocsSource,
    Field(discriminator="format"),
]
