"""The entropy of CLS attention is that of the library's attention weights, and padding has no part in it."""

import pytest
import textbook
import torch

from condensery.models.attention import cls_entropy
from condensery.models.encoder import Encoder

LENGTHS = {"padded": [12, 5, 9, 3, 12], "mostly padding": [30, 3, 4, 3, 5], "of one length": [7, 7, 7]}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=list(LENGTHS))
@pytest.mark.parametrize("family", textbook.FAMILIES)
def test_entropy_is_that_of_the_librarys_attention(family: str, lengths: list[int]) -> None:
    model = textbook.language_model(family, dropout=0.3).base_model.eval()
    rows = textbook.rows(lengths)
    (chunk,) = rows.cut([len(lengths)])
    ids, attention, _ = rows.padded
    weights = model(input_ids=ids, attention_mask=attention, output_attentions=True).attentions
    wanted = []
    for layer in weights:  # (b, h, t, t)
        by_row = []
        for row, length in enumerate(lengths):
            of_cls = layer[row, :, 0, :length]
            by_row.append(torch.stack([-(head * head.log()).sum() for head in of_cls]).mean())
        wanted.append(torch.stack(by_row))
    found = cls_entropy(Encoder(model).eval(), chunk)
    torch.testing.assert_close(found, torch.stack(wanted), rtol=0, atol=1e-10)
    assert found.shape == (3, len(lengths))
    assert float(found.detach().std()) > 0.01, "layers and texts differ"


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=list(LENGTHS))
def test_even_attention_has_the_logarithm_of_the_length(lengths: list[int]) -> None:
    model = textbook.language_model().base_model.eval()
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight.zero_()
            layer.attention.self.query.bias.zero_()
    (chunk,) = textbook.rows(lengths).cut([len(lengths)])
    wanted = torch.tensor(lengths).double().log().expand(3, -1)
    torch.testing.assert_close(cls_entropy(Encoder(model).eval(), chunk), wanted, rtol=0, atol=1e-12)
