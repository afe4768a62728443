"""Download of a recipe's data before training: the command ``condensery data NAME``, and the key ``fetch``."""

import shutil
from collections.abc import Sequence

from condensery.pipeline.graph import Graph
from condensery.stages.corpus.config import CorpusConfig
from condensery.stages.retrieval.config import BYTES, EncodeConfig
from condensery.system.downloads import as_bytes
from condensery.system.files import existing
from condensery.text.sizes import UNPACKED
from condensery.text.source import DataConfig, WantedFile

PACKED = {".gz", ".zip", ".parquet"}  # endings of compressed files
TEXT, TOKENS = 1.15, 0.45  # bytes of a collection and of its token ids, per byte of text


def fetch_data(graph: Graph, dry_run: bool = False) -> None:
    """Download and check the data that a recipe reads, and print every file; with ``dry_run`` only print the files.

    Raises:
        UserError: a file cannot be downloaded or fails its check.
    """
    data = {node.id: node.config.data for node in graph.nodes.values() if isinstance(node.config, CorpusConfig)}
    for one in data.values():
        files = one.wanted()
        _print_files(one.name, files)
        _print_disk(graph, one, files)
        if not dry_run:
            one.fetch()
            print(f"{one.name}: at hand and checked", flush=True)


def _print_files(name: str, files: Sequence[WantedFile]) -> None:
    missing = sum(file.size for file in files if not file.here)
    print(f"{name}: {len(files)} files, {as_bytes(sum(file.size for file in files))}", end="")
    print(f"; {as_bytes(missing)} to be fetched" if missing else "", flush=True)
    for file in files:
        size, digest = as_bytes(file.size) if file.size else "?", f"  {file.digest}" if file.digest else ""
        print(f"  {size:>11}  {'here' if file.here else 'missing':<7}  {file.path}{digest}", flush=True)
        if file.address and not file.here:
            print(f"{'from':>22}  {file.address}", flush=True)


def _print_disk(graph: Graph, data: DataConfig, files: Sequence[WantedFile]) -> None:
    """Print the approximate disk space of a collection's text, token ids and indexes, and the free space."""
    packed = sum(file.size * (UNPACKED if file.path.suffix in PACKED else 1) for file in files)
    parts = [f"collection and tokens about {as_bytes(packed * (TEXT + TOKENS))}"]
    dtypes = [node.config.dtype for node in graph.nodes.values() if isinstance(node.config, EncodeConfig)]
    if dtypes and (passages := data.expected().get("passages")):
        each = [passages * int(graph.root.backbone["hidden"]) * BYTES[dtype] for dtype in dtypes]
        parts.append(f"{len(each)} indexes {as_bytes(sum(each))}")
        if "float32" in dtypes:
            parts[-1] += " (stage.encode.dtype=float16 halves them)"
    folder = existing(graph.root.output_root)
    parts.append(f"free in {folder}: {as_bytes(shutil.disk_usage(folder).free)}")
    print(f"  {'; '.join(parts)}", flush=True)
