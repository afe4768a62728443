"""Fetching the data of a recipe before anything is trained: the command ``condensery data NAME``, and the key ``fetch``."""

from collections.abc import Sequence

from condensery.errors import UserError
from condensery.pipeline.graph import Graph
from condensery.system.downloads import as_bytes
from condensery.text.source import DataConfig

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


def fetch_data(graph: Graph) -> None:
    """Fetch and check what the stages of a recipe read; print every file. Raises ``UserError`` as ``DataConfig.fetch``."""
    done = set[str]()
    for node in graph.nodes.values():
        data = getattr(node.config, "data", None)
        if not isinstance(data, DataConfig) or node.id in done:
            continue
        done.add(node.id)
        files = data.fetch()
        sizes = [path.stat().st_size for path in files]
        print(f"{data.name}: {len(files)} files, {as_bytes(sum(sizes))}, at hand and checked", flush=True)
        for path, size in zip(files, sizes, strict=True):
            print(f"  {as_bytes(size):>10}  {path}", flush=True)
