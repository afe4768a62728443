"""Download of a recipe's data before training: the command ``condensery data NAME``, and the key ``fetch``."""

from collections.abc import Sequence

from rich.filesize import decimal as as_bytes

from condensery.errors import number_of
from condensery.pipeline.graph import Graph
from condensery.stages.corpus.config import CorpusConfig
from condensery.text.source import WantedFile


def fetch_data(graph: Graph, dry_run: bool = False) -> None:
    """Download and check the data that a recipe reads, and print every file; with ``dry_run`` only print the files.

    Raises:
        UserError: a file cannot be downloaded or fails its check.
    """
    data = {node.id: node.config.data for node in graph.nodes.values() if isinstance(node.config, CorpusConfig)}
    for one in data.values():
        _print_files(one.name, one.wanted())
        if not dry_run:
            one.fetch()
            print(f"{one.name}: all files are here and checked", flush=True)


def _print_files(name: str, files: Sequence[WantedFile]) -> None:
    missing = sum(file.size for file in files if not file.here)
    print(f"{name}: {number_of(len(files), 'files')}, {as_bytes(sum(file.size for file in files))}", end="")
    print(f"; {as_bytes(missing)} to download" if missing else "", flush=True)
    for file in files:
        size, digest = as_bytes(file.size) if file.size else "?", f"  {file.digest}" if file.digest else ""
        print(f"  {size:>11}  {'here' if file.here else 'missing':<7}  {file.path}{digest}", flush=True)
        if file.address and not file.here:
            print(f"{'from':>22}  {file.address}", flush=True)
