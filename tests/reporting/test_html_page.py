"""The page of a study: whole without a network, everything escaped, readable in a browser at any width."""

import base64
import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from condensery.evaluation.significance import Interval
from condensery.reporting.curves import Curve
from condensery.reporting.drawing import Figure
from condensery.reporting.examples import CLOSE, LOST, WON, Example, Examples, Finding, Shown
from condensery.reporting.figures import Line, draw_differences, draw_scores
from condensery.reporting.html import macros
from condensery.reporting.html_page import SHOWN, ArtifactRow, JobSection, Page, html, results_table
from condensery.reporting.panels import nice_ticks, panel
from condensery.reporting.results import Row
from condensery.reporting.table import Block, Cell, Comparison, Table
from condensery.system.files import write_json, write_text

EVIL = "<script>alert('x')</script>\"&amp;"
VOID = {"meta", "img", "line", "polyline", "circle"}
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Reader(HTMLParser):
    """The elements of a page; fails where one is not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_startendtag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.elements if found == name]


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def table(name: str = "coCondenser", columns: int = 2) -> Table:
    header = [f"Recall@{10 ** (n % 4)} of set {n}" for n in range(columns)]
    return Table(
        title=f"results of {name}",
        header=header,
        names=["BM25", name],
        cells=[[Cell("35.2 ± 0.3", best=True, marked=True) for _ in header], [Cell() for _ in header]],
        notes=[f"In percent. {name}"],
        comparisons=[Comparison(name, header[0], -0.031, 0.0042, Interval(-0.05, -0.01, 0.011), name)],
    )


def curves(steps: int = 400) -> dict[str, Curve]:
    step = np.arange(steps, dtype=float)
    mlm = 4 + 5 * np.exp(-step / 90) + 0.2 * np.sin(step)
    parts = {"train/mlm_head": mlm, "train/mlm_late": mlm + 0.6, "train/contrast": 3 * np.exp(-step / 60)}
    found = {name: Curve(step, values) for name, values in parts.items()}
    found["train/loss"] = Curve(step, sum(one for one in parts.values()))
    return found | {"val/mrr@10": Curve(step[::50], np.linspace(0.02, 0.31, len(step[::50])))}


def examples(name: str = "coCondenser") -> Examples:
    passage = Shown("p1", f"Title {name}", f"Text of a passage {name} …")
    findings = [
        Finding("BM25", 0.2, 5, 1000, Shown("p2", "", "another passage"), relevant=False),
        Finding(name, 1.0, 1, 1000, passage, relevant=True),
        Finding("third", 0.0, None, 1000, None, relevant=False),
    ]
    items = [
        Example(kind, f"q{at}", f"Which one {at}? {name}", ["an answer"] if at else [], [passage], 1 + at, findings)
        for at, kind in enumerate((WON, WON, LOST, CLOSE))
    ]
    return Examples(f"squad {name}", "test", "MRR@10", name, "BM25", items)


def page(folder: Path, name: str = "coCondenser", jobs: int = 2, columns: int = 2) -> Page:
    (folder / "figure.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 300"><rect width="800" height="300" fill="#ddd"/></svg>'
    )
    made = [
        ArtifactRow("corpus", "corpus", "0123456789abcdef", (), 12.3, "2026-01-02 03:04:05", 2),
        ArtifactRow(name, "finetune", "fedcba9876543210", ("corpus",), cause=name, failed=f"text.txt:3: {name}"),
        ArtifactRow("index", "encode", "00", (name,), cause=name, failed=f"text.txt:3: {name}"),
    ]
    found = {} if jobs == 0 else {"round1": curves(), name: curves(1)}
    return Page(
        name=name,
        about=[f"Is it better? {name}", "  python run.py -m experiment=x"],
        command="python run.py -m experiment=x 'seed=1,2'",
        tables=[table(name, columns)],
        figures=[Figure("entropy", f"Entropy {name}", f"By layer, in nats. {name}", {"svg": folder / "figure.svg"})],
        jobs=[
            JobSection(f"seed={n}" if jobs > 1 else "", f"python run.py seed={n}", f"name: {name}\nseed: {n}\n", made, found)
            for n in range(max(jobs, 1))
        ],
        rows=[Row("BM25", "c", "test", {"M": 0.3}, seed=1, artifact="evaluate/aa"),
              Row(name, "c", "test", {}, seed=1, artifact="evaluate/bb", failed="it broke")],
        failed=[("seed=3", f"no file {name}")],
        machine={"processor": f"A CPU {name}", "torch": "2.13.0"},
        examples=examples(name),
    )  # fmt: skip


def test_all_that_is_known_is_on_the_page(tmp_path: Path) -> None:
    text = html(page(tmp_path))
    reader = read(text)
    shown = " ".join(reader.texts)
    for wanted in (
        "A study of 2 runs", "Is it better?", "python run.py -m experiment=x", "'seed=1,2'", "35.2 ± 0.3", "†", "In percent.",
        "-3.1", "0.0042", "python run.py seed=1", "evaluate/aa", "finetune/fedcba9876543210", "0:12", "text.txt:3",
        "no file", "(1 stage after it not computed)", "not computed",
        "A CPU", "2.13.0", "2026-01-02 03:04:05", "config.yaml of seed=1",
    ):  # fmt: skip
        assert wanted in shown, wanted
    assert '<a href="#from-0"><strong>35.2 ± 0.3</strong></a><sup>†</sup>' in text


def test_whatever_is_shown_is_escaped(tmp_path: Path) -> None:
    plain, evil = read(html(page(tmp_path))), read(html(page(tmp_path, EVIL)))
    assert evil.all("script") == [{}], "its own"
    assert Counter(name for name, _ in evil.elements) == Counter(name for name, _ in plain.elements)
    shown = "".join(evil.texts) + "".join(str(value) for _, given in evil.elements for value in given.values())
    assert shown.count(EVIL) > 15
    assert not any(key.startswith("on") for _, given in evil.elements for key in given)


def test_each_text_that_is_shown_is_escaped_wherever_it_stands(tmp_path: Path) -> None:
    """Every field of every part of the page, by itself, with a word that tells which it is."""
    (tmp_path / "figure.svg").write_text("<svg/>")
    said = iter(range(100))

    def evil() -> str:
        return f"<script>{next(said)}</script>'\"><b onload=x>"

    compared = Table(
        title=evil(),
        header=[evil()],
        names=[evil(), evil()],
        cells=[[Cell(evil(), best=True)], [Cell(evil(), marked=True)]],
        notes=[evil()],
        comparisons=[Comparison(evil(), evil(), 0.1, 0.2, Interval(0.0, 0.2, 0.05), "a")],
        sources=[evil(), evil()],
        blocks=[Block(evil(), 1, published=True), Block(evil(), 1)],
    )
    made = [
        ArtifactRow(evil(), evil(), evil(), (evil(),), 1.0, evil(), 1),
        ArtifactRow("failed", "kind", "id", cause="failed", failed=evil()),
    ]
    whole = Page(
        name=evil(),
        about=[evil(), "  " + evil()],
        command=evil(),
        tables=[compared],
        figures=[Figure("x", evil(), evil(), {"svg": tmp_path / "figure.svg"})],
        jobs=[JobSection(evil(), evil(), evil(), made, {evil(): curves(2)}), JobSection(evil(), evil(), evil())],
        rows=[Row(evil(), evil(), evil(), {}, artifact=evil())],
        failed=[(evil(), evil())],
        machine={evil(): evil()},
        examples=Examples(
            evil(), evil(), evil(), evil(), evil(), by_answers=True, job=evil(),
            items=[
                Example(WON, "q1", evil(), [evil()], [Shown("p1", evil(), evil())], 1, [
                    Finding(evil(), 1.0, 1, 100, Shown("p1", evil(), evil()), relevant=True)
                ])
            ],
        ),
    )  # fmt: skip
    text = html(whole)
    reader = read(text)
    shown = "".join(reader.texts) + "".join(str(value) for _, given in reader.elements for value in given.values())
    assert [number for number in range(next(said)) if f"<script>{number}</script>" not in shown] == [], "not shown"
    assert re.findall(r"<script|<b onload", text.replace(str(tmp_path), "")) == ["<script"], "its own"
    assert not any(key.startswith("on") for _, given in reader.elements for key in given)


def test_each_question_shows_what_the_rows_found(tmp_path: Path) -> None:
    text = html(page(tmp_path))
    section = text.split('<section id="examples">')[1].split("</section>")[0]
    reader = read(section)
    shown = " ".join("".join(reader.texts).split())
    assert [re.sub("<.*?>", "", one) for one in re.findall("<h3>.*?</h3>", section)] == [
        "coCondenser ahead of BM25", "coCondenser behind BM25", "Smallest difference",
    ]  # fmt: skip
    for wanted in (
        "Questions of the split test of squad coCondenser. A passage is relevant if it was judged relevant;",
        "A rule chooses these questions. coCondenser, the best row by MRR@10 apart from BM25, is compared with BM25",
        "Which one 0? coCondenserBM25: rank 5 · coCondenser: rank 1",
        "relevant Title coCondenser Text of a passage coCondenser …",
        "BM25rank 5not relevant another passage",
        "thirdnot in the first 1,000nothing found",
        "and 2 more relevant passages",
        "answers an answer",
    ):
        assert wanted in shown, wanted
    assert [details.get("open", "closed") for details in reader.all("details")] == [None, "closed", None, None]
    assert len(reader.all("caption")) == len(reader.all("table")) == 4
    assert {header["scope"] for header in reader.all("th")} == {"row", "col"}


def test_a_page_says_whose_job_its_questions_are_of_and_that_answers_count(tmp_path: Path) -> None:
    found = replace(page(tmp_path), examples=replace(examples(), job="seed=1", by_answers=True))
    shown = "".join(read(html(found)).texts)
    assert "what the rows of one job found, seed=1. A passage is relevant if it holds an answer." in shown
    alone = "".join(read(html(replace(found, examples=replace(examples(), other=None)))).texts)
    assert "Highest MRR@10 of coCondenser" in alone
    assert "coCondenser is compared with its own mean of MRR@10" in alone


def test_a_page_without_examples_has_no_such_section(tmp_path: Path) -> None:
    assert "Examples" not in read(html(replace(page(tmp_path), examples=None))).texts


def test_nothing_is_fetched_from_elsewhere(tmp_path: Path) -> None:
    text = html(page(tmp_path))
    reader = read(text)
    assert not {"link", "iframe", "object"} & {name for name, _ in reader.elements}
    assert reader.all("script") == [{}], "not from a file"
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)
    assert script
    allowed = base64.b64encode(sha256(script[1].encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'" in text
    assert all(str(image["src"]).startswith("data:image/") for image in reader.all("img"))
    assert all(str(link["href"]).startswith("#") for link in reader.all("a"))
    assert not re.search(r"url\(|@import|http(?!-equiv)", text)


def test_it_can_be_read_by_ear_and_by_keyboard(tmp_path: Path) -> None:
    reader = read(html(page(tmp_path)))
    assert reader.all("html") == [{"lang": "en"}]
    levels = [int(name[1]) for name, _ in reader.elements if re.fullmatch(r"h[1-6]", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), "no level is left out"
    assert all(header.get("scope") in ("col", "row") for header in reader.all("th"))
    assert all(image.get("alt") for image in reader.all("img"))
    assert all(one.get("aria-label") or one.get("aria-hidden") for one in reader.all("svg"))
    boxes = [given for _, given in reader.elements if "scroll" in str(given.get("class")).split()]
    assert boxes
    assert all(box["tabindex"] == "0" and box["aria-label"] for box in boxes), "a box that scrolls is reached by keys"
    places = [given["id"] for _, given in reader.elements if "id" in given]
    assert len(set(places)) == len(places)
    assert {str(link["href"])[1:] for link in reader.all("a")} <= set(places)


def test_a_run_without_a_table_is_a_page_too(tmp_path: Path) -> None:
    reader = read(html(Page("bare", jobs=[JobSection("", "", "name: bare\n")])))
    assert [text for text in reader.texts if text.startswith("A ")] == ["A run"]
    assert "Results" not in reader.texts


def test_a_stage_that_jobs_share_is_listed_once(tmp_path: Path) -> None:
    assert "".join(read(html(page(tmp_path, jobs=3))).texts).count("corpus/0123456789abcdef") == 1


def test_the_file_is_written_whole(tmp_path: Path) -> None:
    write_text(tmp_path / "index.html", html(page(tmp_path)))
    assert (tmp_path / "index.html").read_text() == html(page(tmp_path))
    write_json(tmp_path / "x.json", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.svg", "index.html", "x.json"]


def test_a_panel_shows_each_line_with_its_last_value() -> None:
    drawn = panel("round1", curves())
    reader = read(drawn)
    assert len(reader.all("polyline")) == 5
    points = [place.split(",") for line in reader.all("polyline") for place in str(line["points"]).split()]
    assert len(points) <= 5 * 160
    assert all(0 <= float(x) <= 340 and 0 <= float(y) <= 190 for x, y in points)
    assert "validation MRR@10 31.0 %" in "".join(reader.texts)
    assert "after 399 steps" in str(reader.all("svg")[-1]["aria-label"])
    assert "nothing was logged" in "".join(read(panel("empty", {})).texts)


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (3.4, 9.1, [0, 2.5, 5, 7.5, 10]),
        (6.0, 7.1, [6, 6.5, 7, 7.5]),
        (0, 31, [0, 10, 20, 30, 40]),
        (0, 0, [0, 0.25, 0.5]),
    ],
)
def test_ticks_are_round_and_hold_the_values(low: float, high: float, wanted: list[float]) -> None:
    ticks = nice_ticks(low, high)
    assert ticks == pytest.approx(wanted)


def test_templates_escape_what_they_are_given_and_drop_control_characters() -> None:
    drawn = macros("page.html").faults([("<b>\x1b[1m", '"&"')])
    assert drawn == '<ul class="failed"><li><b>&lt;b&gt;[1m</b>: &#34;&amp;&#34;</li></ul>'
    assert "<ul" in macros("page.html").commands(drawn, ""), "what is HTML already stays"


def test_a_number_leads_to_its_seed_artifact_run_and_curves(tmp_path: Path) -> None:
    made = [
        ArtifactRow("tokens", "tokens", "01"),
        ArtifactRow("round1", "finetune", "02", ("tokens",)),
        ArtifactRow("round1.index", "encode", "03", ("round1", "tokens")),
        ArtifactRow("round1.evaluation", "evaluate", "bb", ("round1.index",)),
    ]
    jobs = [JobSection(f"seed={n}", "", "name: x", made, {"round1": curves()} if n == 1 else {}) for n in (1, 2)]
    text = html(replace(page(tmp_path), jobs=jobs))
    reader = read(text)
    links = [str(link["href"]) for link in reader.all("a")]
    assert "#from-0" in links, "the cell of BM25"
    assert links.count("#config-0") == 1, "the run of the row that this run measured"
    assert links.count("#curves-finetune-02") == 1
    assert [one["id"] for one in reader.all("figure") if "id" in one] == ["curves-finetune-02"], (
        "the shared curves, once"
    )
    published = Table("t", ["M"], ["BM25", "coCondenser"], [[Cell("18.7", published=True)], [Cell()]])
    shown = str(results_table(published, {"BM25": "from-0", "coCondenser": "from-1"}))
    assert "<a " not in shown, "what was printed elsewhere, or not measured, leads nowhere"


def test_a_figure_has_its_numbers(tmp_path: Path) -> None:
    lines = [Line("ours", list(range(1, 101)), [[at, at + 2.0] for at in range(100)]), Line("BM25", [], [[35.3]])]
    figure = draw_scores(tmp_path / "score", "Score", "By amount.", {"MRR@10": lines}, "amount")
    reader = read(html(replace(page(tmp_path), figures=[figure])))
    assert "The numbers of the figure: Score" in reader.texts
    at = reader.texts.index("ours")
    assert reader.texts[at : at + 5] == ["ours", "1", "1", "1.4", "2"]
    assert reader.texts.count("ours") == SHOWN
    assert f"{SHOWN + 1} of 101 points; all are in score.csv." in reader.texts
    at = reader.texts.index("35.3")
    assert reader.texts[at - 1 : at + 3] == ["BM25", "35.3", "0", "1"]
    compared = [Comparison("MLM", "MRR@10", 0.031, 0.01, Interval(0.0105, 0.052, 0.01), "warm start")]
    figure = draw_differences(tmp_path / "differences", "Against it", "In points.", compared)
    reader = read(html(replace(page(tmp_path), figures=[figure])))
    at = reader.texts.index("low")
    assert reader.texts[at - 2 : at + 7] == [
        *("baseline", "difference", "low", "high"),
        *("MLM", "warm start", "3.1", "1.05", "5.2"),
    ]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_a_click_on_a_heading_sorts_the_lines_of_each_part(tmp_path: Path) -> None:
    numbers = ["9.5", "–", "1,200", "35.2 ± 0.3", "-3"]
    table = Table("t", ["M"], [f"row {n}" for n in range(5)], [[Cell(text)] for text in numbers])
    (tmp_path / "page.html").write_text(html(replace(page(tmp_path), tables=[table])))
    clicks = """d=f.contentDocument; t=d.querySelector("#results table"); b=t.querySelector("thead button"); said=[];
        for (i=0;i<3;i++) {b.click(); said.push([...t.tBodies[0].rows].map(r=>r.cells[0].textContent.slice(-1)).join(""),
        b.parentElement.ariaSort)}; document.title=said.join()"""
    assert shown_title(tmp_path, clicks) == "23041,descending,40321,ascending,01234,"


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
@pytest.mark.parametrize("width", [360, 1280])
def test_a_browser_shows_it_without_overflow(width: int, tmp_path: Path) -> None:
    name = "a-name-that-is-longer-than-a-telephone-is-wide-and-has-no-blank"
    write_text(tmp_path / "page.html", html(page(tmp_path, name, columns=9)))
    measure = "d=f.contentDocument.documentElement;document.title=[d.scrollWidth,d.clientWidth,d.scrollHeight].join()"
    title = shown_title(tmp_path, measure, width)
    wide, inner, high = map(int, title.split(","))
    assert wide <= inner, "the page itself does not scroll sideways"
    assert inner > width - 30
    assert high > 1500


def shown_title(folder: Path, script: str, width: int = 1280) -> str:
    """The title that ``script`` gives a page that shows page.html in its frame ``f``."""
    frame = f"<iframe id=f src=page.html width={width} height=900 onload='{script}'></iframe>"
    (folder / "frame.html").write_text(f"<!doctype html><title></title>{frame}")
    assert CHROMIUM
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage",
               "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000",
               "--window-size=1400,1000", "--dump-dom"]  # fmt: skip
    done = subprocess.run(
        [CHROMIUM, *options, (folder / "frame.html").as_uri()], capture_output=True, text=True, timeout=120,
        env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip
    title = re.search(r"<title>(.+)</title>", done.stdout)
    assert title, done.stderr[-500:]
    return title[1]


def test_published_and_measured_lines_stand_under_their_headings() -> None:
    table = Table(
        title="comparison",
        header=["MRR@10"],
        names=["BM25", "coCondenser", "ours"],
        cells=[[Cell("18.7", published=True)], [Cell("38.2", best=True, published=True)], [Cell("9.1")]],
        sources=["CO t1", "CO t1", "2 seeds"],
        blocks=[Block(f"published: {EVIL}", 2, published=True), Block("measured here: squad", 1)],
    )
    shown = str(results_table(table))
    published, measured = shown.split("<tbody")[1:]
    assert "published" in published.split(">")[0]
    assert "published" not in measured
    assert "38.2" in published
    assert "CO t1" in published
    assert "measured here: squad" in measured
    assert EVIL not in shown
    assert str(results_table(replace(table, turned=True))) == shown
