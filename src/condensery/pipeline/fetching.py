"""Fetching the data of a recipe before anything is trained: the command ``condensery data NAME``, and the key ``fetch``."""

from collections.abc import Sequence

from condensery.errors import UserError
from condensery.pipeline.graph import Graph
from condensery.system.downloads import as_bytes
from condensery.text.source import DataConfig, WantedFile

COMMAND = "data"
ALONE = "stages.corpus={stage: corpus}"  # what is run where no recipe is named


def as_overrides(arguments: Sequence[str]) -> list[str]:
    """``data NAME [key=value ...]`` as keys: the recipe that is named, or the collection alone, with ``fetch=true``.

    Where no ``data=`` says which library knows the name, it is ir_datasets if it does, otherwise the Hugging Face hub.
    Other arguments are left as they are, and all of them where none is ``data``.

    Raises:
        UserError: no name follows.
    """
    if COMMAND not in arguments:
        return list(arguments)
    at = arguments.index(COMMAND)
    name = arguments[at + 1] if len(arguments) > at + 1 else "="
    if "=" in name or name.startswith("-"):
        raise UserError("data: give a name, as in `condensery data msmarco-passage` or `condensery data mteb/scifact`")
    rest = [*arguments[:at], *arguments[at + 2 :]]
    if not any(one.startswith("data=") for one in rest):
        rest.append(f"data={_library_of(name)}")
    if not any(one.startswith(("experiment=", "stages.")) for one in rest):
        rest.append(ALONE)
    return [*rest, f"data.name={name}", "fetch=true"]


def _library_of(name: str) -> str:
    from condensery.text.ir_datasets import knows

    return "ir_datasets" if knows(name) else "huggingface"


def fetch_data(graph: Graph, dry_run: bool = False) -> None:
    """Fetch and check what the stages of a recipe read, and print every file; with ``dry_run`` print what is missing alone.

    Raises ``UserError`` as ``DataConfig.fetch``.
    """
    done = set[str]()
    for node in graph.nodes.values():
        data = getattr(node.config, "data", None)
        if not isinstance(data, DataConfig) or node.id in done:
            continue
        done.add(node.id)
        _print_files(data.name, data.wanted())
        if not dry_run:
            data.fetch()
            print(f"{data.name}: at hand and checked", flush=True)


def _print_files(name: str, files: Sequence[WantedFile]) -> None:
    missing = sum(file.size for file in files if not file.here)
    print(f"{name}: {len(files)} files, {as_bytes(sum(file.size for file in files))}", end="")
    print(f"; {as_bytes(missing)} to be fetched" if missing else "", flush=True)
    for file in files:
        size, digest = as_bytes(file.size) if file.size else "?", f"  {file.digest}" if file.digest else ""
        print(f"  {size:>11}  {'here' if file.here else 'missing':<7}  {file.path}{digest}", flush=True)
        if file.address and not file.here:
            print(f"{'from':>22}  {file.address}", flush=True)
