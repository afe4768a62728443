"""A YAML file that is broken, too large, or grows without bound is one line with its place, in no time and memory."""

import time
from pathlib import Path

import pytest
from forked import peak_memory
from omegaconf import OmegaConf

from condensery.errors import UserError
from condensery.pipeline import recipe_files
from condensery.pipeline.recipe_files import check_file, foreign_reference

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{this}: &{this} [{', '.join([f'*{last}'] * 9)}]\n" for last, this in zip("abcdefghi", "bcdefghij", strict=True)
)


def check(folder: Path, text: str | bytes) -> None:
    path = folder / "x.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    check_file(path)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (LAUGHS, 5, "more than 10,000 keys and values"),
        ("a: &a [x]\nb: {" + ", ".join(f"a{i}: *a" for i in range(9000)) + "}", 2, "more than 10,000"),
        ("a: &a " + "x" * 100_000 + "\nb: [" + "*a, " * 60 + "]", 2, "more than 10,000"),
        ("a: 1\nb: " + "{a: " * 900 + "1" + "}" * 900, 2, "mappings and lists are nested more than 40 deep"),
        ("a: " + "[" * 100_000, 1, "mappings and lists are nested more than 40 deep"),
        (
            "x: &x0 [1]\n" + "".join(f"b{i}: &x{i + 1} [*x{i}]\n" for i in range(900)),
            40,
            "mappings and lists are nested more than 40 deep",
        ),
        ("a: 1\nb: &b [*b]", 2, "the alias *b is inside its own anchor"),
        ("a: &a {b: 1, <<: *a}", 1, "the alias *a is inside its own anchor"),
        ("a: *nix", 1, "the alias *nix has no anchor &nix before it"),
        (b"a: 1\nb: caf\xe9\n", 2, "not valid UTF-8"),
        ("a: 1".encode("utf-16"), 1, "not valid UTF-8"),
        (b"a: 1\n\nb: a\0b\n", 3, "YAML does not allow the character U+0000"),
        ("a: a\ab", 1, "YAML does not allow the character U+0007"),
        (b"\xef\xbb\xbfa: 1", 1, "begins with a byte order mark"),
        ("a: [1\nb: 2", 2, "not valid YAML"),
        ("# no mapping\n- a", 2, "a mapping of keys to values is expected"),
        ("words", 1, "a mapping of keys to values is expected"),
        ("a: 1\nsteps: 010", 2, "010: YAML reads this in base 8 or 60"),
        ("a: {b: [-1:30]}", 1, "-1:30: YAML reads this in base 8 or 60"),
        ("a: 1\nb: [{c: '${oc.env:HOME}'}]", 2, "${oc.env:HOME}: a recipe reads only keys of the config"),
    ],
)
def test_what_cannot_be_composed_is_one_line_at_once(
    text: str | bytes, line: int, message: str, tmp_path: Path
) -> None:
    def refuse() -> None:
        started = time.process_time()
        with pytest.raises(UserError) as error:
            check(tmp_path, text)
        assert str(error.value).startswith(f"{tmp_path / 'x.yaml'}:{line}: {message}")
        assert "\n" not in str(error.value)
        assert time.process_time() - started < 1

    assert peak_memory(refuse) < 20e6


def test_without_libyaml_too_an_escape_that_names_no_character_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe_files, "LOADER", recipe_files.get_yaml_loader())
    for escape in ("\\UFFFFFFFF", "\\U00110000"):
        with pytest.raises(UserError, match="not valid YAML"):
            check(tmp_path, f'a: "{escape}"')


def test_a_file_that_is_too_large_is_not_parsed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a recipe may have 256 KiB, and this file has 292"):
        check(tmp_path, "a: 1\n# " + "x" * 300_000)


def test_files_of_the_project_pass_and_aliases_may_be_used(project: Path, tmp_path: Path) -> None:
    files = sorted((project / "conf").rglob("*.yaml"))
    assert len(files) > 80
    for path in files:
        check_file(path)
    check(tmp_path, "a: &a {b: [1, 2]}\nc: {<<: *a, d: *a}\n" + "".join(f"k{i}: *a\n" for i in range(500)))
    check(tmp_path, "")
    check(tmp_path, "a: '010'\nb: [0, 10, 0x10, 1_000, 1e-5, 12e3, .5, -0.50, 2026-11-29, '1:30', 1:b, 00:1a]")


@pytest.mark.parametrize(
    "text",
    [
        "${seed}", "a ${.b} ${..c.d}", "${table.rows[BM25 + x]}", "${a.${b}}", "${oc.env:CONDENSERY_HOME}", "100 $",
        "${oc.env:CONDENSERY_HOME,.}/x", "${oc.env:CONDENSERY_X,${seed}}", "${oc.select:a.b,1}", "{command} ${name}",
        "$HOME {a: b}",
    ],
)  # fmt: skip
def test_keys_and_variables_of_ours_may_be_read(text: str) -> None:
    assert foreign_reference(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "${oc.env:HOME}", "${ oc.env : HOME }", "a${oc.env:HOME,1}", "${oc.env:NIX,CONDENSERY_X}", "${oc.env:${seed}}",
        "${oc.${a}:HOME}", "${${a}:HOME}", "${oc.env:CONDENSERY_X,${oc.env:HOME}}", "${oc.decode:x}", "${oc.create:{a: b}}",
        "${hydra:job.env_set}", "${now:%Y}", "${oc.env:'HOME'}", "${oc.select:'${oc.env:HOME}'}", "${nix:x}", "${a", "${}",
        "${oc.dict.values:x}", "${CONDENSERY_X:oc.env}",
    ],
)  # fmt: skip
def test_nothing_else_is_read(text: str) -> None:
    assert foreign_reference(text)


def test_every_resolver_that_is_registered_is_refused_in_a_recipe() -> None:
    from omegaconf.basecontainer import BaseContainer

    for name in BaseContainer._resolvers:
        asked = foreign_reference(f"${{{name}:HOME}}")
        assert (asked is None) == (name == "oc.select"), name
    assert OmegaConf.has_resolver("oc.env")
