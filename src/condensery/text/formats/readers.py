"""The reader of each format."""

from collections.abc import Callable
from typing import Any

from condensery.text.formats import beir, documents, dpr, huggingface, ir_reader, msmarco, plain_text, pydocs, tevatron
from condensery.text.writer import CollectionWriter

READERS: dict[str, Callable[[Any, CollectionWriter], None]] = {
    "beir": beir.read,
    "msmarco": msmarco.read,
    "msmarco_documents": msmarco.read_as_corpus,
    "dpr": dpr.read,
    "tevatron": tevatron.read,
    "documents": documents.read,
    "text": plain_text.read,
    "pydocs": pydocs.read,
    "ir_datasets": ir_reader.read,
    "huggingface": huggingface.read,
    "huggingface_triples": huggingface.read_triples,
    "huggingface_documents": huggingface.read_documents,
}
