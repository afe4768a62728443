"""The input formats of a collection, one module each: it describes the files of a format and reads them."""

from condensery.text.formats.registry import register_format

__all__ = ["register_format"]
