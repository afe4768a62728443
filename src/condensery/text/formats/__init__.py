"""The formats of texts that become a collection, one file each: what a format's files are, and how they are read."""

from condensery.text.formats.registry import register_format

__all__ = ["register_format"]
