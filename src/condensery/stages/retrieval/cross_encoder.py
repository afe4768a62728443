"""Stage ``cross_encoder``: one that was trained elsewhere, taken as it is."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from condensery.arguments import no_room
from condensery.errors import UserError
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.retrieval.retriever import content_of_checkpoint
from condensery.stages.work import Read, Work, checkpoint_bytes, known, released_size
from condensery.system.files import expanded


class CrossEncoderConfig(StageConfig):
    """``folder`` holds the checkpoint, or is its hub name: one for sequence classification with one label."""

    folder: str | Path  # text as it was given: ./name is a folder, name may be on the hub
    revision: str | None
    tokenizer: Annotated[str, Input("tokenizer")]
    tokens: Annotated[str, Input("tokens")]
    query_length: Annotated[int, Field(ge=4)]
    length: Annotated[int, Field(ge=8)]

    @model_validator(mode="after")
    def _room_for_a_passage(self) -> Self:
        if wrong := no_room(self.query_length, self.length):
            raise ValueError(wrong)
        return self

    def work(self, read: Read) -> Work:
        """The weights are read and written."""
        sizes = replace(known(read, "tokens"), encoder=released_size(self.folder), passage_length=self.length)
        return Work(sizes, seconds=None if sizes.encoder is None else 3.0, disk=checkpoint_bytes(sizes))

    def by_content(self) -> set[str]:
        """The folder, and what is left to it."""
        return {"folder", *([] if self.revision else ["revision"])}

    def identity(self) -> list[str]:
        """The weights and what describes them; of a hub name the name. ``UserError`` where there is no such folder."""
        return content_of_checkpoint(self.folder, "stage.cross_encoder.folder", "a trained cross-encoder")


@stage("cross_encoder", version=1, makes="cross_encoder")
def cross_encoder(config: CrossEncoderConfig, context: Context) -> dict[str, Any]:
    """Save the cross-encoder as the stage that trains one does."""
    from condensery.models.cross_encoder import Reranker, load_cross_encoder, pair_separators, save_cross_encoder
    from condensery.models.hub import checkpoint_folder
    from condensery.tokens.tokenizer import load_tokenizer

    key, named = f"stages.{context.stage_name}", expanded(config.folder)
    folder = checkpoint_folder(named if named.is_dir() else str(config.folder), config.revision)
    model = load_cross_encoder(folder, new_head=False)
    own, given = load_tokenizer(folder), load_tokenizer(context.input("tokenizer"))
    if own.get_vocab() != given.get_vocab():
        raise UserError(
            f"{key}.tokenizer: {config.tokenizer} is not the tokenizer of {config.folder}; give it a stage of its own"
            f" (stage: tokenizer, backbone: {{tokenizer: {config.folder}}}) and tokens made with that"
        )
    if config.length > model.encoder.longest:
        raise UserError(f"{key}.length: {config.length} is longer than its {model.encoder.longest} positions")
    reranker = Reranker(model, config.query_length, config.length, pair_separators(folder))
    save_cross_encoder(reranker, context.folder, context.input("tokenizer"))
    return {"query_length": config.query_length, "length": config.length}
