"""Weights between a start and what was trained from it."""

import copy

import pytest
import textbook
import torch

from condensery.errors import UserError
from condensery.models.biencoder import BiEncoder
from condensery.models.blending import blended, same_weights
from condensery.models.encoder import Encoder


def moved(encoder: Encoder, by: float) -> Encoder:
    other = copy.deepcopy(encoder)
    with torch.no_grad():
        for weight in other.parameters():
            weight += by
    return other


def test_a_share_lies_between_the_two_and_neither_is_changed() -> None:
    start = BiEncoder(Encoder(textbook.language_model().base_model))
    trained = BiEncoder(moved(start.query, 1.0))
    half = blended(start, trained, 0.25)
    for first, own, last in zip(start.parameters(), half.parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(own, first + 0.25)
        torch.testing.assert_close(last, first + 1.0)
    assert half.shared
    assert same_weights(blended(start, trained, 1.0), trained)


def test_one_tower_and_two() -> None:
    start = BiEncoder(Encoder(textbook.language_model().base_model))
    trained = BiEncoder(moved(start.query, 1.0), start.passage)
    half = blended(start, trained, 0.5)
    assert not half.shared
    assert same_weights(half.passage, start.passage), "to the bit"
    assert not same_weights(half.query, start.query)
    with pytest.raises(UserError, match="the initial retriever has two towers"):
        blended(trained, start, 0.5)


def test_other_shapes_are_refused() -> None:
    start = BiEncoder(Encoder(textbook.language_model().base_model))
    other = copy.deepcopy(start)
    other.passage.model.encoder.layer = other.passage.model.encoder.layer[:1]
    with pytest.raises(UserError, match="differ in shape"):
        blended(start, other, 0.5)
