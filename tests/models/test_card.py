"""What the card of a released checkpoint says of its licence, wherever the checkpoint lies."""

from pathlib import Path

import huggingface_hub
import pytest

from condensery.models.checkpoints.card import base_of

FRONTS = {
    "---\nlicense: apache-2.0\n---\n# A model\n": "apache-2.0",
    "\ufeff---\r\nlanguage:\r\n- en\r\nlicense: 'mit' # as its data\r\n---\r\n": "mit",
    "---\nlicense: unknown\n---\n": None,
    "---\nlicense:\n- mit\n- apache-2.0\n---\n": None,
    "---\nlicense: [mit]\n---\n": None,
    "---\ntags: [small]\n---\nlicense: mit\n": None,
    "# A model\nlicense: mit\n": None,
    "---\nno_license: mit\n": None,
    "": None,
}


@pytest.mark.parametrize(("text", "licence"), FRONTS.items())
def test_the_licence_is_that_of_the_front_matter(text: str, licence: str | None, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(text.encode())
    assert base_of(str(tmp_path)) == {"base_model": None, "base_licence": licence}


def test_a_checkpoint_without_a_card_and_none_at_all_have_no_licence(tmp_path: Path) -> None:
    assert base_of(str(tmp_path)) == base_of(str(tmp_path / "gone")) == {"base_model": None, "base_licence": None}
    assert base_of(None) == {}


def test_the_card_of_a_name_on_the_hub_is_read_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    cached = {("me/model", "README.md", "v1"): str(tmp_path / "README.md")}
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", lambda name, file, *, revision: cached.get((name, file, revision))
    )
    assert base_of("me/model", "v1") == {"base_model": "me/model", "base_licence": "mit"}
    assert base_of("me/model") == {"base_model": "me/model", "base_licence": None}
