"""The page of a study: one HTML file with its tables, figures, curves, configs and commands. It needs no network.

``Page`` is what there is to show, from wherever it was gathered; ``html`` writes it. All text is escaped.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

from condensery.reporting.curves import Curve
from condensery.reporting.drawing import Figure
from condensery.reporting.examples import Example, Examples, Finding, Shown, by_kind
from condensery.reporting.formats import SOURCE, one_lined
from condensery.reporting.markup import Markup, joined, tag
from condensery.reporting.panels import panel
from condensery.reporting.results import Row
from condensery.reporting.table import MARK, MISSING, Block, Table
from condensery.system.files import atomic
from condensery.system.progress import clock

STYLE = Path(__file__).with_name("page.css")


@dataclass(frozen=True)
class ArtifactRow:
    """One stage of a run and its artifact.

    ``warnings`` is what the stage found amiss in its input. Where there is no artifact ``failed`` says why, ``cause`` is
    the stage that failed, itself or what it needs, and ``seconds`` and the rest are empty.
    """

    stage: str
    kind: str
    id: str
    reads: Sequence[str] = ()
    seconds: float | None = None
    created: str = ""
    version: int | None = None
    cause: str = ""
    failed: str = ""
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class JobSection:
    """One run: what tells it from the others of its sweep, its command, its composed config, its stages and curves."""

    label: str
    command: str
    config: str
    made: Sequence[ArtifactRow] = ()
    curves: Mapping[str, Mapping[str, Curve]] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """Everything that is known of a run or a sweep.

    Attributes:
        name: the title.
        about: the question, as paragraphs; one that is indented is a command.
        command: what made it, as the user typed it; empty where it is not known.
        jobs: one for a run, several for a sweep.
        rows: where each number of the tables comes from.
        failed: (what, why) of jobs that left no run.
        machine: names and values, of hardware and libraries.
        examples: questions with what the rows found; none where the table is not of retrieval.
    """

    name: str
    about: Sequence[str] = ()
    command: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    jobs: Sequence[JobSection] = ()
    rows: Sequence[Row] = ()
    failed: Sequence[tuple[str, str]] = ()
    machine: Mapping[str, str] = field(default_factory=dict)
    examples: Examples | None = None


def write_page(page: Page, path: Path) -> None:
    """Write the page to ``path``."""
    with atomic(path) as temporary:
        temporary.write_text(html(page), encoding="utf-8")


def html(page: Page) -> str:
    """The whole document."""
    sections = {
        "Failed": _failed(page),
        "Warnings": _warnings(page),
        "Results": joined(results_table(table) for table in page.tables),
        "Examples": _examples(page.examples),
        "Figures": joined(map(_figure, page.figures)),
        "Training curves": _curves(page.jobs),
        "Run it again": _commands(page),
        "Where the numbers come from": _sources(page.rows),
        "Stages": _stages(page.jobs),
        "Configuration": _configs(page.jobs),
        "Machine": _machine(page.machine),
    }
    shown = {title: content for title, content in sections.items() if content}
    places = {title: title.lower().replace(" ", "-") for title in shown}
    links = tag("nav", *(tag("a", title, href=f"#{place}") for title, place in places.items()), aria_label="Sections")
    body = [tag("section", tag("h2", title), shown[title], id=place) for title, place in places.items()]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{page.name} – Condensery"),
        tag("style", Markup(STYLE.read_text(encoding="utf-8"))),
    ]
    document = tag("html", tag("head", *head), tag("body", tag("main", _header(page), links, *body)), lang="en")
    return f"<!doctype html>\n{document}\n"


def _header(page: Page) -> Markup:
    what = f"A study of {len(page.jobs)} runs" if len(page.jobs) > 1 else "A run"
    about = [tag("pre", dedent(text)) if text.startswith(" ") else tag("p", text) for text in page.about]
    return tag("header", tag("p", what, class_="kicker"), tag("h1", page.name), tag("div", *about, class_="about"))


def grid(header: Sequence[str], lines: Sequence[Sequence[str]], label: str, class_: str = "") -> Markup:
    """A table in a box that scrolls by itself; the first cell of each line names it."""
    rows = [tag("tr", tag("th", line[0], scope="row"), *(tag("td", cell) for cell in line[1:])) for line in lines]
    return _boxed(header, [tag("tbody", *rows)], label, class_)


def _boxed(header: Sequence[str], bodies: Sequence[Markup], label: str, class_: str) -> Markup:
    names = [
        tag("th", text, scope="col", class_="source" if text == SOURCE else None) if text else tag("td")
        for text in header
    ]
    head = tag("thead", tag("tr", *names))
    table = tag("table", head, *bodies, class_=class_ or None, aria_label=label)
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def results_table(table: Table) -> Markup:
    """A comparison: numbers with the best in bold and significance marks, what they show, the notes, and the differences with
    their p.

    One with blocks has a heading for each of them and a column with the sources; lines are never turned into columns there.
    """
    table = one_lined(table)
    if table.blocks and table.turned:
        table = table.turn()
    header = ["", *table.header, *([SOURCE] if table.sources else [])]
    bodies = []
    for block, places in [(Block("", len(table.names)), range(len(table.names)))] if table.turned else table.by_block():
        heading = tag("tr", tag("th", block.heading, scope="rowgroup", colspan=len(header))) if block.heading else ""
        lines = [_result(table, i) for i in places]
        bodies.append(tag("tbody", heading, *lines, class_="published" if block.published else None))
    parts = [tag("h3", table.title), _boxed(header, bodies, table.title, "numbers")]
    parts += [tag("p", table.conclusion, class_="conclusion")] if table.conclusion else []
    parts += [tag("p", note, class_="note") for note in table.notes]
    if table.comparisons:
        differences = [
            [one.name, one.column, f"{100 * one.difference:+.1f}", f"{one.p:.4f}"] for one in table.comparisons
        ]
        title = "Differences from the baseline, with p"
        content = grid(["", "metric", "difference", "p"], differences, title, "numbers")
        parts.append(tag("details", tag("summary", title), content))
    return joined(parts)


def _result(table: Table, line: int) -> Markup:
    """One line of a comparison."""
    cells = [
        tag("td", tag("strong", cell.text) if cell.best else cell.text, tag("sup", MARK) if cell.marked else "")
        for cell in table.cells[line]
    ]
    source = [] if table.turned else [tag("td", text, class_="source") for text in table.sources[line : line + 1]]
    return tag("tr", tag("th", table.names[line], scope="row"), *cells, *source)


def _examples(examples: Examples | None) -> Markup:
    """The questions under what those of a kind have in common, the first of each kind unfolded."""
    if examples is None:
        return Markup("")
    where = f"Questions of the split {examples.split} of {examples.collection}"
    where += f", and what the rows of one job found, {examples.job}" if examples.job else ""
    relevant = (
        "Relevant is what holds an answer."
        if examples.by_answers
        else "Relevant is what was judged so; what nobody judged may answer a question as well."
    )
    parts = [tag("p", f"{where}. {relevant}"), tag("p", examples.rule, class_="note")]
    for kind, items in by_kind(examples.items):
        parts.append(tag("h3", examples.headings[kind]))
        parts += [_example(item, (examples.best, examples.other), item is items[0]) for item in items]
    return joined(parts)


def _example(item: Example, compared: Sequence[str | None], unfolded: bool) -> Markup:
    """One question: the ranks of the rows that are compared, what is relevant, and what each row found."""
    ranks = [f"{one.row}: {_rank(one)}" for one in item.findings if one.row in compared]
    summary = tag("summary", tag("bdi", item.text), tag("small", " · ".join(ranks)))
    relevant = [tag("p", *_marked(one, True)) for one in item.relevant]
    if item.judged > len(item.relevant):
        relevant.append(tag("p", f"and {item.judged - len(item.relevant):,} more that are relevant", class_="note"))
    if item.answers:
        relevant.insert(0, tag("p", tag("b", "answers"), " ", tag("bdi", " / ".join(item.answers))))
    header = [tag("th", text, scope="col") for text in ("row", "first relevant", "ranked first")]
    lines = [
        tag("tr", tag("th", one.row, scope="row"), tag("td", _rank(one)), tag("td", *_first(one)))
        for one in item.findings
    ]
    caption = tag("caption", f"What each row found for: {item.text}")
    table = tag("table", caption, tag("thead", tag("tr", *header)), tag("tbody", *lines), class_="found")
    return tag("details", summary, tag("div", *relevant, class_="relevant"), table, open=unfolded, class_="example")


def _rank(finding: Finding) -> str:
    return f"not in the first {finding.depth:,}" if finding.rank is None else f"rank {finding.rank:,}"


def _first(finding: Finding) -> list[str]:
    """The passage that a row ranked first."""
    return ["nothing found"] if finding.first is None else _marked(finding.first, finding.relevant)


def _marked(passage: Shown, relevant: bool) -> list[str]:
    """A passage and whether it is relevant; set apart, for it may be written from right to left."""
    mark = tag("b", "relevant", class_="hit") if relevant else tag("span", "not relevant", class_="miss")
    title = [tag("b", passage.title), " "] if passage.title else []
    return [mark, " ", tag("bdi", *title, passage.text)]


def _figure(figure: Figure) -> Markup:
    """As an image: two SVGs in one page would share the ids of their parts."""
    data = base64.b64encode(figure.paths["svg"].read_bytes()).decode("ascii")
    image = tag("img", src=f"data:image/svg+xml;base64,{data}", alt=f"{figure.title}. {figure.caption}")
    box = tag("div", image, class_="scroll paper", tabindex=0, role="region", aria_label=figure.title)
    return tag("figure", tag("h3", figure.title), box, tag("figcaption", figure.caption))


def _curves(jobs: Sequence[JobSection]) -> Markup:
    found = [(job.label, [panel(name, curves) for name, curves in job.curves.items()]) for job in jobs]
    found = [(label, panels) for label, panels in found if panels]
    return joined(_folded(label, tag("div", *panels, class_="panels"), len(found) > 3) for label, panels in found)


def _folded(label: str, content: Markup, closed: bool) -> Markup:
    """The content under its label, to be unfolded; as it is where it has none."""
    return tag("details", tag("summary", label), content, open=not closed) if label else content


def _failed(page: Page) -> Markup:
    """What failed and why, each reason once, and how much was lost with it."""
    lines: dict[str, list[str]] = {}
    for job in page.jobs:
        for made in (made for made in job.made if made.failed and made.cause == made.stage):
            needing = sum(other.cause == made.stage for other in job.made) - 1
            without = f" ({needing} {'stage' if needing == 1 else 'stages'} after it not made)" if needing else ""
            lines.setdefault(made.failed, []).append(" · ".join(filter(None, (job.label, made.stage))) + without)
    for what, why in page.failed:
        lines.setdefault(why, []).append(what)
    items = [tag("li", tag("b", ", ".join(those)), ": ", why) for why, those in lines.items()]
    return tag("ul", *items, class_="failed") if items else Markup("")


def _warnings(page: Page) -> Markup:
    """What the stages found amiss in their input, each once, and in which jobs."""
    lines: dict[tuple[str, str], dict[str, None]] = {}
    for job in page.jobs:
        for made in job.made:
            for text in made.warnings:
                lines.setdefault((made.stage, text), {})[job.label] = None
    several = len(page.jobs) > 1
    items = [
        tag("li", tag("b", stage), ": ", text, f" ({', '.join(filter(None, labels))})" if several else "")
        for (stage, text), labels in lines.items()
    ]
    return tag("ul", *items, class_="failed") if items else Markup("")


def _commands(page: Page) -> Markup:
    parts = []
    if page.command:
        parts = [tag("p", "What is there already is reused. All of it:"), tag("pre", tag("code", page.command))]
    if len(page.jobs) > 1 or not page.command:
        each = [line for job in page.jobs if job.command for line in (f"# {job.label or 'the run'}", job.command)]
        if each:
            commands = tag("pre", tag("code", "\n".join(each)))
            parts.append(tag("details", tag("summary", "Each run by itself"), commands))
    return joined(parts)


def _sources(rows: Sequence[Row]) -> Markup:
    lines = [
        [row.name, MISSING if row.seed is None else str(row.seed), f"{row.collection or MISSING}, {row.split}",
         tag("code", row.artifact), "failed" if row.failed else ""]
        for row in rows
    ]  # fmt: skip
    if not lines:
        return Markup("")
    note = tag(
        "p", "Each number is in metrics.json of its artifact, the values of each query beside it.", class_="note"
    )
    title = "The artifact behind each row"
    return joined([grid(["row", "seed", "measured on", "artifact", ""], lines, title), note])


def _stages(jobs: Sequence[JobSection]) -> Markup:
    """Every artifact once, though several runs may share it."""
    lines: dict[tuple[str, str], list[str]] = {}
    for made in (made for job in jobs for made in job.made):
        took = MISSING if made.seconds is None else clock(made.seconds)
        if made.failed:
            took = "failed" if made.cause == made.stage else "not made"
        version = "" if made.version is None else str(made.version)
        place = tag("code", f"{made.kind}/{made.id}")
        lines.setdefault(
            (made.stage, made.id), [made.stage, took, place, version, ", ".join(made.reads), tag("time", made.created)]
        )
    if not lines:
        return Markup("")
    title = f"{len(lines)} stages and their artifacts"
    table = grid(["stage", "wall time", "artifact", "version", "reads", "made"], list(lines.values()), title)
    return tag("details", tag("summary", title), table, open=len(lines) <= 30)


def _configs(jobs: Sequence[JobSection]) -> Markup:
    return joined(
        tag("details", tag("summary", f"config.yaml{' of ' + job.label if job.label else ''}"), tag("pre", job.config))
        for job in jobs
        if job.config
    )


def _machine(machine: Mapping[str, str]) -> Markup:
    pairs = [part for name, value in machine.items() for part in (tag("dt", name), tag("dd", value))]
    return tag("dl", *pairs) if pairs else Markup("")
