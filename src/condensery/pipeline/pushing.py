"""``push_to_hub``: uploads encoders of a run to the Hugging Face hub, each with a model card that has the run's numbers."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from condensery.errors import UserError, check_known
from condensery.models.checkpoints.card import CARD, Measured
from condensery.models.checkpoints.metadata import read_about, vector_settings
from condensery.pipeline.artifact_store import Store
from condensery.pipeline.config import PushTarget
from condensery.pipeline.graph import Graph
from condensery.stages.base import Artifact
from condensery.stages.card import card_of, name_of_data
from condensery.stages.registry import registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from condensery.reporting.results import Row

KEY = "push_to_hub"
# WANTED are the files of a checkpoint; LEFT is not uploaded, because the manifest and the logs describe this machine
WANTED = ("*.json", "*.safetensors", "*.txt", "*.model")
LEFT = ("manifest.json", "logs/*", "wandb/*", "saved_checkpoints/*", CARD)


def check(graph: Graph) -> None:
    """Check, before anything is computed, that encoders can be uploaded.

    Raises:
        UserError: a named stage makes no encoder, or nobody is logged in to the hub.
    """
    wanted = graph.root.push_to_hub
    encoders = [name for name, node in graph.nodes.items() if registry()[node.kind].makes == "encoder"]
    for name in wanted:
        check_known(name, encoders, f"{KEY}.{name}: no stage of this name makes an encoder")
    if wanted and not graph.root.dry_run:
        import huggingface_hub

        if huggingface_hub.get_token() is None:
            raise UserError(f"{KEY}: you are not logged in to the hub; run `hf auth login`, or set HF_TOKEN")


def push(graph: Graph, store: Store, rows: "Sequence[Row]") -> None:
    """Upload the finished encoders that ``push_to_hub`` names. Raises ``UserError`` if an upload fails."""
    for name, target in graph.root.push_to_hub.items():
        artifact = Artifact(store.path(graph.nodes[name]))
        if store.sound(graph.nodes[name]):
            store.check([artifact], parents=False)
            card = model_card(artifact, target, rows)
            print(f"[{name}] {_pushed(artifact, target.name, target.private, card)}", flush=True)


def model_card(artifact: Artifact, target: PushTarget, rows: "Sequence[Row]") -> str:
    """Return the model card of an encoder, with the numbers of the rows that were measured with it."""
    manifest = artifact.manifest
    corpus, made_by = artifact.ancestor("corpus"), registry()[manifest["kind"]].config
    data = name_of_data(corpus.path) if corpus else None
    made_from = {field: artifact.inputs(field) for field in manifest["inputs"]}
    card = card_of(made_by, manifest["config"], made_from, manifest["metrics"], data)
    store = artifact.path.parents[1]
    numbers = [
        Measured(row.collection, row.split, row.metrics)
        for row in rows
        if not row.failed and _encoder_of(store, row.artifact) == artifact.path
    ]
    about = read_about(artifact.path, "query_length", "passage_length")
    lengths = about["query_length"], about["passage_length"]
    whole = replace(card, measured=numbers, licence=target.license)
    return whole.text(target.name, vector_settings(artifact.path), lengths, artifact.path)


def _encoder_of(store: Path, evaluation: str) -> Path | None:
    """Return the encoder that a row was measured with; None if there were several encoders or none.

    Args:
        store: folder of the artifacts.
        evaluation: reference ``kind/id`` of the row's evaluation.
    """
    artifact = Artifact(store / evaluation)
    if not (artifact.path / "manifest.json").exists():
        return None
    index = artifact.ancestor("index")
    return index.input("model").path if index is not None and index.kind == "encode" else None


def _pushed(artifact: Artifact, name: str, private: bool, card: str) -> str:
    import huggingface_hub

    hub = huggingface_hub.HfApi(library_name="condensery")
    try:
        hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=name,
            folder_path=artifact.path,
            allow_patterns=list(WANTED),
            ignore_patterns=list(LEFT),
            commit_message=artifact.reference,
        )
        hub.upload_file(repo_id=name, path_or_fileobj=card.encode(), path_in_repo=CARD, commit_message="Model card")
    except Exception as error:  # errors of the network and of the hub: the library raises a dozen types
        cause = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"{KEY}: {name} was not uploaded ({cause}); the run's results are kept; run the same command to resume"
        ) from None
    return f"is at https://huggingface.co/{name}" + (" (private)" if private else "")
