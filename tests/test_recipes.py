"""The shipped recipes: each composes, and each runs to its end on a small set of its format."""

import csv
import gzip
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Mapping
from itertools import groupby, zip_longest
from pathlib import Path

import compositions
import pytest
import yaml
from error_lines import names
from hydra.core.hydra_config import HydraConfig
from hydra.plugins.sweeper import Sweeper
from paq_files import write_paq
from slow import slow_except
from small_runs import (
    MODEL,
    PROJECT,
    Text,
    amount,
    costs,
    metrics_of,
    run_command,
    some_text,
    splits_of,
    write_articles,
    write_beir,
    write_documents,
    write_dpr,
    write_hub,
    write_marco,
    write_marco_documents,
    write_questions,
    write_stsb,
    write_tevatron,
    write_text_files,
)
from small_t5 import save_small_t5

from condensery.pipeline import run
from condensery.pipeline.artifact_store import State, Store
from condensery.pipeline.dry_run.costs import Costs
from condensery.pipeline.graph import Graph
from condensery.pipeline.reports import study

CONF = PROJECT / "conf"
RECIPES = sorted(
    path.relative_to(CONF / "experiment").with_suffix("").as_posix() for path in CONF.glob("experiment/**/*.yaml")
)
OPTIONS = [
    f"{path.parent.name}={path.stem}"
    for path in sorted(CONF.glob("*/*.yaml"))
    if path.parent.name not in ("experiment", "stage", "base")
]
TEXT = some_text(documents=24, seed=5)
ARTICLES = some_text(documents=30, paragraphs=6, seed=5)
TRAINING = (
    *("pretrain_mlm", "pretrain_condenser", "pretrain_cocondenser", "pretrain_cotmae", "pretrain_retromae"),
    *("pretrain_ict", "finetune", "finetune_generator", "finetune_sentences", "train_cross_encoder"),
)
# steps for the recipes whose number of steps is their own
FEW = [f"stage.{kind}.{key}" for kind in TRAINING for key in ("steps=2", "epochs=null", "token_budget=null")]
LOCAL = ["stage.warm_start.length=64", "stage.pretrain_cocondenser.length=64", "stage.finetune.passage_length=64"]
MARCO_FILES = ["collection.tsv", "queries.train.tsv", "qrels.train.tsv", "queries.dev.small.tsv", "qrels.dev.small.tsv"]

MARCO_ROWS = [
    "BM25",
    *(f"{name}{end}" for name in ("BERT", "Condenser", "coCondenser") for end in ("", " + hard negatives")),
]
SCRATCH = ["stages.condenser_round1.backbone.name=null"]  # instead of the Condenser on the hub
ON_MARCO = [name for name in RECIPES if name.endswith("_msmarco")]
ON_PASSAGES = ("condenser_ct_msmarco", "low_data_msmarco", "rocketqa_msmarco", "abs_msmarco", "abs_models_msmarco")
ON_PASSAGES += tuple(f"{name}_msmarco" for name in ("tas_b", "tct_colbert", "led", "pair", "rocketqa_v2", "simlm"))
ON_PASSAGES += ("released_msmarco", "doc2query_msmarco", "deepct_msmarco", "late_interaction_msmarco")
ON_PASSAGES += ("simlm_pretraining_msmarco", "lexmae_msmarco", "dpr_paq_msmarco", "ance_msmarco")
ON_WEB = [name for name in ON_MARCO if name not in ON_PASSAGES]
DOWNLOADED = [
    f"{name}_msmarco" for name in ("cocondenser", "rerank", "released", "low_data", "abs", "ance", "doc2query")
]
DOWNLOADED += ["cocondenser_msmarco_document"]  # each reads other files, or reads them otherwise
ON_QUESTIONS = [name for name in RECIPES if name.endswith("_nq")]
ON_TRIVIA = [name for name in RECIPES if name.endswith("_triviaqa")]
ABLATIONS = {  # settings and seeds of each
    "ablation/pretraining": (1, 3),
    "ablation/mixed_context": (2, 3),
    "ablation/query_number": (4, 3),
    "ablation/query_source": (1, 3),
    "ablation/low_data": (3, 3),
    "ablation/hard_negatives": (1, 3),
    "ablation/second_round": (1, 3),
    "ablation/contrast_batch": (5, 3),
    "ablation/head_start": (1, 3),
    "ablation/stsb": (3, 3),
    "ablation/wiki_sections": (3, 3),
    "ablation/batch_scheduling": (2, 3),
    "ablation/batch_scheduling_size": (3, 3),
    "ablation/rocketqa": (1, 3),
    "ablation/attention_entropy": (1, 3),
    "ablation/attention_entropy_sections": (1, 3),
    "ablation/pretraining_steps": (2, 3),
    "ablation/pretraining_speed": (3, 3),
    "ablation/model_size": (2, 3),
    "ablation/rocketqa_comparison": (1, 3),
    "ablation/warm_start": (1, 3),
    "ablation/warm_start_squad": (1, 3),
    "ablation/windows": (2, 3),
    "ablation/baselines": (1, 3),
}
# By recipe: a digest of the ids of all artifacts. Where it changes, what users have is made anew: say so in the changelog
IDS = Path(__file__).with_name("recipe_ids.json")
SHARED = {  # stages that jobs share, and how many of them there are: one set of queries, a start for each seed
    **{name: {"queries": 1, "warm": seeds} for name, (_, seeds) in ABLATIONS.items()},
    "ablation/low_data": {"bm25": 1, "warm": 3, "mlm": 3, "cocondenser": 3},
    "ablation/hard_negatives": {"bm25_negatives": 1, "mlm": 3, "cocondenser": 3},
    "ablation/second_round": {"bm25": 1, "warm": 3, "mlm": 3, "cocondenser": 3, "mined": 3},
    "ablation/contrast_batch": {"bm25": 1, "warm": 3, "warm_tuned": 3, "cocondenser": 15},
    "ablation/head_start": {"bm25": 1, "warm": 3, "condenser": 3, "own_head": 3, "head_first": 3},
    **{key: {"sentences": 1, "mlm": 3, "cocondenser": 3} for key in ("ablation/stsb", "ablation/wiki_sections")},
    "ablation/batch_scheduling": {"cocondenser": 1, "random": 3, "abs_encoder": 3},
    "ablation/batch_scheduling_size": {"cocondenser": 1, "random": 9, "abs_encoder": 9, "abs_beam": 0},
    "ablation/rocketqa": {"corpus": 1, "mlm": 3, "cross_encoder": 3},
    "ablation/attention_entropy": {"corpus": 1, "mlm": 3, "entropy": 3},
    "ablation/attention_entropy_sections": {"sentences": 1, "cocondenser": 3, "entropy": 3},
    "ablation/pretraining_steps": {"tokens": 1, "warm": 3, "mlm": 6, "cocondenser": 6, "fused": 6, "random_tuned": 3},
    "ablation/pretraining_speed": {"queries": 1, "warm": 3, "cocondenser": 9, "query_as_context": 9, "warm_tuned": 3},
    "ablation/windows": {"bm25": 1, "warm": 3, "cocondenser": 3, "cocondenser_tuned.index": 6, "fused": 6},
    "ablation/model_size": {"tokenizer": 2, "warm": 6, "bm25": 1, "cocondenser": 6, "fused": 6},
    "ablation/rocketqa_comparison": {"corpus": 1, "mlm": 3, "cross_encoder": 3},
    "ablation/baselines": {
        "bm25_negatives": 1,
        "warm": 3,
        "dense": 3,
        "lexical": 3,
        "colbert.index": 3,
        "splade.index": 3,
    },
    **{
        key: {"tokens.token_vectors": 1, "noise": 3, "warm": 3, "cocondenser": 3, "mlm": 0, "round2": 0}
        for key in ("ablation/warm_start", "ablation/warm_start_squad")
    },
}
ON_NLI = ("bert_nli", "bert_nli_stsb")
ON_SENTENCES = (
    *("condenser_stsb", "condenser_wiki_sections", "ablation/stsb", "ablation/wiki_sections"),
    "ablation/attention_entropy_sections",
)
SMALL_ROWS = [  # of the quickstart, of SQuAD and of the ablations that build on the quickstart, BM25 beside them
    *("warm start", "MLM", "Condenser", "coCondenser", "coCondenser + hard negatives"),
    "coCondenser + hard negatives + BM25",
]
WARM_ROWS = [  # of the study of the warm start, besides those of the recipe that it keeps
    "random weights",
    "+ co-occurrence embeddings and unigram bias",
    "+ attention near the identity",
    "+ small positions",
    "random weights, as they are",
    "co-occurrence embeddings, as they are",
    "attention near the identity, as it is",
    "small positions, as they are",
    "warm start, as it is",
    "coCondenser, as it is",
]
ROCKETQA = [
    f"RocketQA: {step}" for step in ("cross-batch negatives", "+ hard negatives", "+ denoising", "+ augmentation")
]
CROSS = ["stage.train_cross_encoder.steps=2", "stage.train_cross_encoder.epochs=null"]
BEIR = ("cocondenser_beir", "cocondenser_beir_by_name")
GIVEN = {  # what else must be given
    "released_msmarco": ["data.titles=null"],
    **{f"low_data_{name}": ["stages.ict_tuned.backbone.name=a/ict"] for name in ("msmarco", "nq", "triviaqa")},
    "attention_entropy_nq": [
        *("stages.ict.folder=.", "stages.ict_tuned.backbone.name=a/ict"),
        *("stages.condenser.folder=.", "stages.condenser_tuned.backbone.name=a/condenser"),
    ],
    "attention_entropy_sections": [
        *("stages.ict.folder=.", "stages.ict_tuned.backbone.name=a/ict"),
        *("stages.condenser.folder=.", "stages.condenser_tuned.backbone.name=a/condenser"),
    ],
    **{name: ["stages.retriever.folder=.", "backbone.tokenizer=a/retriever"] for name in BEIR},
}
OTHER_FORMATS = {f"data={name}" for name in ("beir", "squad", "msmarco", "msmarco_web", "msmarco_documents", "text")}
BY_NAME = {  # data that have a name and no root, and below which folder of small_runs.write_hub they are here
    "data=ir_datasets": "",
    "data=huggingface": "retrieval",
    "data=huggingface_triples": "triples",
    "data=huggingface_documents": "documents",
}
OTHER_FORMATS |= {f"data={name}" for name in ("nq", "triviaqa", "tevatron")}


@pytest.fixture
def named_apart(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Check that stages of a sweep's jobs have one name only where they have one artifact; return the number of jobs."""
    # Before the first job Hydra composes all of them to see that it can; here they are composed in any case
    monkeypatch.setattr(Sweeper, "validate_batch_is_legal", lambda *_: None)
    jobs: list[dict[str, str]] = []
    project = run.project

    def planned(graph: Graph, store: Store, states: Mapping[str, State]) -> Costs:
        labels = study.labels(graph, [one.lstrip("+") for one in HydraConfig.get().overrides.task])
        jobs.append({f"{name} · {labels.get(name, '')}": node.id for name, node in graph.nodes.items()})
        return project(graph, store, states)

    def check() -> int:
        of: dict[str, set[str]] = {}
        for name, identifier in (one for job in jobs for one in job.items()):
            of.setdefault(name, set()).add(identifier)
        assert not {name: ids for name, ids in of.items() if len(ids) > 1}
        return len(jobs)

    monkeypatch.setattr(run, "project", planned)
    return check


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small folder of each format: for a recipe the one that it reads."""
    folder = tmp_path_factory.mktemp("roots")
    judged = write_text_files(folder / "judged", TEXT)
    write_questions(judged, _by_paragraph(judged, TEXT))
    marco, documents = write_marco(folder / "marco", TEXT), write_documents(folder / "documents", TEXT)
    write_stsb(folder / "articles", ARTICLES)
    write_paq(folder / "paq")
    return {
        **dict.fromkeys(ON_MARCO, marco),
        "ict_wikipedia": documents,
        **dict.fromkeys((*ON_SENTENCES[:2], *ON_SENTENCES[3:]), write_articles(folder / "articles", ARTICLES)),
        **dict.fromkeys(("cocondenser_squad", "ablation/warm_start_squad"), write_beir(folder / "beir", TEXT)),
        "condenser_wikipedia": documents,
        "condenser_wikipedia_books": write_documents(folder / "documents", TEXT, "books.jsonl"),
        "mini": documents,
        "cocondenser_local": write_text_files(folder / "text", TEXT),
        "cocondenser_local_queries": judged,
        "adapt": write_text_files(folder / "adapted", TEXT),
        **dict.fromkeys(
            ("adapt_queries", "ablation/released", "ablation/released_low_data", "ablation/released_text"), judged
        ),
        **dict.fromkeys((*ON_QUESTIONS, "attention_entropy_sections"), write_dpr(folder / "nq", TEXT)),
        **dict.fromkeys(ON_TRIVIA, write_dpr(folder / "triviaqa", TEXT, "trivia", gz=True)),
        "cocondenser_msmarco_document": write_marco_documents(folder / "marco_documents", TEXT),
        "cocondenser_beir": write_beir(folder / "scifact", TEXT),
        "data=tevatron": write_tevatron(folder / "tevatron", TEXT),
        "openstax": _judged_documents(folder / "openstax", TEXT),
        "paq": folder / "paq",
        "hub": write_hub(folder / "hub", TEXT),
    }


def _judged_documents(root: Path, text: Text) -> Path:
    """Whole documents, and questions that each has one of them as its answer."""
    document = {name: of for name, _, _, of in text.passages}
    write_questions(root, Text(text.passages, [(*question, document[at]) for *question, at in text.questions]))
    return write_documents(root, text)


def _by_paragraph(root: Path, text: Text) -> Text:
    """The questions with the ids that the reader of text files gives: file#paragraph."""
    files = {path.stem: path.relative_to(root).as_posix() for path in root.rglob("d*.*")}
    ids: dict[str, str] = {}
    seen: dict[str, int] = {}
    for name, _, _, document in text.passages:
        ids[name] = f"{files[document]}#{seen.get(document, 0)}"
        seen[document] = seen.get(document, 0) + 1
    return Text(text.passages, [(name, words, ids[passage]) for name, words, passage in text.questions])


def test_the_recipes_that_the_readme_speaks_of_are_here() -> None:
    assert {"quickstart", "smoke", "condenser_wikipedia", "cocondenser_msmarco", "cocondenser_squad"} <= set(RECIPES)
    assert {"cocondenser_local", "cocondenser_local_queries"} <= set(RECIPES)


def sentences_of(recipe: str, roots: dict[str, Path]) -> list[str]:
    """The overrides that say where the examples of a sentence task, the sections of Wikipedia, or PAQ's files lie."""
    if recipe == "attention_entropy_sections":
        return [f"stages.wikipedia.data.root={roots['condenser_wiki_sections']}"]
    if recipe == "dpr_paq_msmarco":
        return [f"stages.pairs.root={roots['paq']}"]
    if recipe not in (*ON_SENTENCES, *ON_NLI):
        return []
    articles = roots["condenser_wiki_sections"]
    given = [f"stage.read_sts.root={articles}", f"stage.section_triplets.path={articles}/documents.jsonl"]
    if recipe in ON_NLI:
        pairs, vectors = articles / "nli.jsonl", articles / "glove.txt"
        pairs.write_text('{"premise": "a", "hypothesis": "b", "label": "neutral"}\n')
        vectors.write_text("a 0.1 0.2\n")
        given = [given[0], f"stage.read_nli.paths=[{pairs}]", f"stage.evaluate_word_vectors.path={vectors}"]
    return given


@pytest.mark.parametrize("path", sorted(CONF.rglob("*.yaml")), ids=lambda path: path.relative_to(CONF).as_posix())
def test_a_value_is_written_where_it_counts(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"^[^#]*:\s+[&*]\w+|^\s*<<:", text, re.MULTILINE), "an anchor ties two stages together"
    if path.parent.name == "base":
        builds_on = [one for one in yaml.safe_load(text).get("defaults", []) if one != "_self_"]
        assert all("override " in next(iter(one)) for one in builds_on), "a base builds on no other file"


def builds_on(path: str) -> set[str]:
    """All files that a file of conf/ is composed of, and the options that it chooses, such as ``/backbone: bert_base``."""
    found: set[str] = set()
    for one in yaml.safe_load((CONF / f"{path}.yaml").read_text()).get("defaults", []):
        if isinstance(one, dict):
            found |= {f"{key.removeprefix('override ')}: {value}" for key, value in one.items()}
        elif one != "_self_":
            found |= {one} | builds_on(one[1:] if one.startswith("/") else f"experiment/{one}")
    return found


@pytest.mark.parametrize("recipe", [name for name in RECIPES if not name.startswith(("ablation/", "adapt"))])
def test_a_recipe_of_berts_size_has_chunks_that_fill_a_gpu(recipe: str) -> None:
    """Those of a CPU, of 2,048 tokens, left an H100 idle for most of the time."""
    parts = builds_on(f"experiment/{recipe}")
    large = bool(parts & {"/backbone: bert_base", "/backbone: condenser"})
    assert ("/base/gpu_chunks" in parts) == large


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_composes_to_a_graph(
    recipe: str, roots: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the folder `.` of GIVEN is empty, so that ids depend on recipes alone
    given = [f"data.root={roots[recipe]}"] if recipe in roots else []
    given += [*GIVEN.get(recipe, []), *sentences_of(recipe, roots), "trainer.precision=fp32"]
    done = run_command(f"experiment={recipe}", *given, "dry_run=plan", f"output_root={tmp_path / 'out'}").sound()
    assert re.search(r"corpus .* to be made", done.out)
    assert not (tmp_path / "out").exists(), "a dry run writes nothing"
    ids = " ".join(re.findall(r" ([0-9a-f]{16}) ", done.out))
    digest = hashlib.sha256(ids.encode()).hexdigest()[:16]
    assert digest == json.loads(IDS.read_text()).get(recipe), f"ids of artifacts are others than before, now {digest}"


@pytest.mark.parametrize(
    "recipe",
    slow_except(
        ABLATIONS,
        "ablation/pretraining",
        "ablation/stsb",
        "ablation/rocketqa",
        "ablation/batch_scheduling",
    ),
)
def test_every_ablation_is_a_sweep_over_any_collection(
    recipe: str, roots: dict[str, Path], tmp_path: Path, named_apart: Callable[[], int]
) -> None:
    given = ["data=squad", f"data.root={roots['cocondenser_squad']}", "dry_run=plan", f"output_root={tmp_path}"]
    done = run_command("-m", f"experiment={recipe}", *given, *sentences_of(recipe, roots)).sound()
    assert "unknown before the run" not in done.out, "the sizes of these files are known"
    settings, seeds = ABLATIONS[recipe]
    assert len(re.findall("^== job ", done.out, re.MULTILINE)) == settings * seeds
    for stage, number in SHARED[recipe].items():
        assert len(set(re.findall(rf" {stage} .* ([0-9a-f]{{16}}) ", done.out))) == number, stage
    assert named_apart() == settings * seeds


SWEEPS = [
    name
    for name in RECIPES
    if name not in ABLATIONS and "sweeper" in str(yaml.safe_load((CONF / f"experiment/{name}.yaml").read_text()))
]


@pytest.mark.parametrize(
    "recipe",
    slow_except(
        [*SWEEPS, *(name for name in RECIPES if re.match("mixed_context|query_number", name))],
        "condenser_wiki_sections",
        "cocondenser_beir",
        "mixed_context_msmarco",
    ),
)
def test_jobs_of_every_sweep_have_names_of_their_own(
    recipe: str, roots: dict[str, Path], tmp_path: Path, named_apart: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [f"data.root={roots[recipe]}"] if recipe in roots and recipe not in BEIR else []
    if recipe == "cocondenser_beir":
        given = [f"data.root={roots[recipe]},{roots['cocondenser_squad']}"]
    if recipe == "cocondenser_beir_by_name":
        given = ["data.name=beir/scifact,beir/nfcorpus"]
    if recipe in ON_MARCO and recipe.startswith(("low_data", "query_number")):
        given += ["table.split=test"]  # the files of TREC are not here
    given += [*GIVEN.get(recipe, []), *sentences_of(recipe, roots), "trainer.precision=fp32"]
    run_command("-m", f"experiment={recipe}", *given, "dry_run=plan", f"output_root={tmp_path / 'out'}").sound()
    assert named_apart() > (recipe != "attention_entropy_nq"), "which sweeps over one value"


def test_what_is_composed_once_is_what_hydra_composes(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = [
        ["experiment=smoke", "seed=3", "stage.finetune.steps=7"],
        ["experiment=smoke", "backbone=small", "+stages.more={stage: pretrain_mlm}"],
        ["experiment=smoke", "seed=4"],
        ["experiment=ablation/low_data", "~table.rows.MLM"],
    ]
    kept = [run_command(*command, "--cfg", "all").sound().out for command in (*commands, *commands)]
    monkeypatch.setattr(compositions, "_all_unchanged", lambda repo: False)
    assert kept == 2 * [run_command(*command, "--cfg", "all").sound().out for command in commands]
    assert "steps: 7" in kept[0]
    assert "steps: 7" not in kept[2]


def test_the_pretraining_ablation_has_all_objectives(tmp_path: Path) -> None:
    done = run_command("experiment=ablation/pretraining", "--cfg", "job").sound()
    for kind in ("mlm", "condenser", "cocondenser", "cotmae", "retromae", "ict"):
        assert f"stage: pretrain_{kind}\n" in done.out
    assert "mixed_context: 0.5" in done.out
    assert "init: backbone" in done.out


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.startswith("data=")])
def test_every_kind_of_data_composes(option: str, roots: dict[str, Path], tmp_path: Path) -> None:
    with_root = "pydocs" not in option and option not in BY_NAME
    recipe = "condenser_wikipedia" if with_root else "quickstart"
    given = [f"data.root={roots[recipe]}"] if with_root else []
    if option in BY_NAME:
        below = BY_NAME[option]
        recipe = "condenser_wikipedia" if below in ("documents", "triples") else "cocondenser_squad"
        given = [f"data.name={roots['hub'] / below if below else 'beir/scifact'}"]
    done = run_command(f"experiment={recipe}", option, *given, "dry_run=plan", f"output_root={tmp_path}")
    if option in OTHER_FORMATS:
        assert re.fullmatch(r"error: .*(missing|no such file|no text files).*\n", done.err), done.err
    else:
        done.sound()


GROUPS = [list(options) for group, options in groupby(OPTIONS, lambda option: option.split("=")[0]) if group != "data"]
TOGETHER = [
    [one for one in options if one] for options in zip_longest(*GROUPS)
]  # each once, one of each group a command


@pytest.mark.parametrize("options", TOGETHER, ids=" ".join)
def test_every_option_composes(options: list[str], tmp_path: Path) -> None:
    run_command(
        "experiment=condenser_wikipedia", "data=pydocs", *options, "dry_run=plan", f"output_root={tmp_path}"
    ).sound()


@pytest.mark.parametrize(
    ("base", "key", "words"),
    [
        ("both_towers", "stages.both.init", "as in experiment=adapt_queries base=both_towers"),
        ("ict", "stages.ict_round1.negatives", "as in experiment=cocondenser_msmarco base=ict"),
        ("pretrained", "stages.warm_tuned.init", "may be for other recipes (conf/base/pretrained.yaml)"),
    ],
)
def test_a_base_for_other_recipes_says_so(base: str, key: str, words: str, tmp_path: Path) -> None:
    given = f"data.root={tmp_path}", "backbone.name=some/retriever", f"output_root={tmp_path}", "dry_run=plan"
    names(run_command("experiment=adapt", f"base={base}", *given).err, key, f"base={base}", words)


def test_msmarco_without_data_names_each_missing_file_and_where_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "marco").mkdir()
    recipe = ["experiment=cocondenser_msmarco", f"output_root={tmp_path / 'out'}"]
    for root in ([f"data.root={tmp_path / 'marco'}"], [f"data.root={tmp_path / 'nowhere'}"], []):
        done = run_command(*recipe, *root)
        assert done.code == 1
        assert done.out == ""
        assert done.err.startswith("error: data.root=")
        assert done.err.count("\n") == 1
        for name in (*MARCO_FILES, "msmarco-docs.tsv"):
            assert name in done.err
        assert "https://microsoft.github.io/msmarco/" in done.err
        assert "collectionandqueries.tar.gz" in done.err
    assert not list(tmp_path.glob("out/*")), "nothing was begun"


@pytest.mark.parametrize("recipe", slow_except(ON_WEB, *ON_WEB[::5]))
def test_recipes_on_the_web_documents_name_what_is_missing(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "marco").mkdir()
    done = run_command(f"experiment={recipe}", f"data.root={tmp_path / 'marco'}", f"output_root={tmp_path / 'out'}")
    assert done.code == 1
    assert done.err.startswith("error: data.root=")
    assert done.err.count("\n") == 1
    assert all(name in done.err for name in [*MARCO_FILES, "msmarco-docs.tsv"])
    assert not list(tmp_path.glob("out/*")), "nothing was begun"


@pytest.mark.parametrize(
    "recipe", slow_except(ON_MARCO, "cocondenser_msmarco", "released_msmarco", "doc2query_msmarco")
)
def test_missing_files_of_msmarco_offer_a_command_that_downloads_them(
    recipe: str, roots: dict[str, Path], tmp_path: Path
) -> None:
    pytest.importorskip("ir_datasets")
    given = [f"experiment={recipe}", f"output_root={tmp_path / 'out'}", "trainer.precision=fp32", "data.dev_queries=40"]
    given += [*GIVEN.get(recipe, []), *sentences_of(recipe, roots)]
    err = run_command(*given, f"data.root={tmp_path}").err
    offered = re.search(
        r"or have them downloaded: python run.py (.*); for a first look on a CPU: python run.py (.*)", err
    )
    assert offered, err
    for command in offered.groups():
        overrides = [word for word in shlex.split(command) if "=" in word or word.startswith("~")]
        assert not any(word.startswith("data.root=") for word in overrides)
        again = run_command(*overrides, f"output_root={tmp_path / 'out'}", "dry_run=plan").sound()
        assert re.search(r"corpus .* to be made", again.out)
    own = {"data.titles=null"}  # a key of the format that is replaced
    assert set(given) - own <= set(shlex.split(offered[1])), "all else is as it was typed"


def test_an_ict_must_be_given(roots: dict[str, Path], tmp_path: Path) -> None:
    recipe = "low_data_msmarco"
    done = run_command(f"experiment={recipe}", f"data.root={roots[recipe]}", f"output_root={tmp_path}")
    assert done.code == 1
    names(done.err, "stages.ict_tuned.backbone.name", "./ict", "no such folder")
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_msmarco_names_what_is_missing_of_the_optional_files_too(roots: dict[str, Path], tmp_path: Path) -> None:
    marco = write_marco(tmp_path / "marco", TEXT)
    (marco / "msmarco-docs.tsv").unlink()
    (marco / "qrels.train.tsv").unlink()
    recipe = ["experiment=cocondenser_msmarco", f"data.root={marco}", f"output_root={tmp_path / 'out'}"]
    done = run_command(*recipe, "data.triples=triples.tsv")
    assert done.err.startswith(f"error: data.root={marco}: 3 files are missing: ")
    for name in ("msmarco-docs.tsv", "qrels.train.tsv", "triples.tsv"):
        assert name in done.err


def marco_sample(folder: Path) -> Text:
    """120 passages and 60 real queries of MS MARCO."""

    def objects(name: str) -> list[dict[str, str]]:
        with gzip.open(folder / name, "rt", encoding="utf-8") as stream:
            return [json.loads(line) for line in stream]

    judged = [line.split("\t") for line in (folder / "qrels" / "train-sample.tsv").read_text().splitlines()[1:61]]
    queries = {one["_id"]: one["text"] for one in objects("queries.jsonl.gz")}
    wanted = {passage for _, passage, _ in judged}
    corpus = objects("corpus.jsonl.gz")
    chosen = [one for one in corpus if one["_id"] in wanted]
    chosen += [one for one in corpus if one["_id"] not in wanted][: 120 - len(chosen)]
    passages = [(one["_id"], "", " ".join(one["text"].split()), one["_id"]) for one in chosen]
    return Text(passages, [(query, queries[query], passage) for query, passage, _ in judged])


def test_msmarco_runs_to_its_table_on_its_native_files(shared: Path, tmp_path: Path) -> None:
    marco = write_marco(tmp_path / "marco", marco_sample(shared / "data" / "msmarco"))
    recipe = ["experiment=cocondenser_msmarco", f"data.root={marco}", f"output_root={tmp_path / 'out'}", "logger=csv"]
    done = run_command(*recipe, *MODEL, *SCRATCH, "data=msmarco").sound()
    found = metrics_of(done.folder)
    assert list(found) == MARCO_ROWS
    assert found["BM25"]["MRR@10"] > 0.3
    metrics = ["MRR@10", "Recall@50", "Recall@100", "Recall@1000", "NDCG@10"]
    assert all(list(values) == metrics for values in found.values())
    assert all(values["Recall@1000"] == 1.0 for name, values in found.items() if name != "BM25"), "all are ranked"


@pytest.mark.slow
def test_msmarco_in_gzip_with_web_documents_and_the_official_triples(tmp_path: Path) -> None:
    from condensery.text.collection import Collection

    marco = write_marco(tmp_path / "marco", TEXT, gz=True)
    triples = marco / "qidpidtriples.train.full.2.tsv.gz"
    done = run_command(
        "experiment=cocondenser_msmarco",
        f"data.root={marco}",
        f"data.triples={triples.name}",
        f"stages.triples={{stage: read_negatives, file: {triples}}}",
        "stages.round1.negatives=[bm25_negatives,triples]",
        f"output_root={tmp_path / 'out'}",
        "logger=csv",
        *MODEL,
        *SCRATCH,
    ).sound()
    assert list(metrics_of(done.folder)) == MARCO_ROWS
    documents = Collection(done.folder / "stages" / "corpus").documents
    assert documents is not None
    assert len(documents) == 24
    assert (done.folder / "stages" / "tokens" / "documents").is_dir()
    lines = (done.folder / "stages" / "triples" / "negatives.jsonl").read_text().splitlines()
    assert len(lines) > len(splits_of(TEXT)["train"]) * 0.8


def test_squad_runs_to_its_table(roots: dict[str, Path], tmp_path: Path) -> None:
    recipe = ["experiment=cocondenser_squad", f"data.root={roots['cocondenser_squad']}", f"output_root={tmp_path}"]
    done = run_command(*recipe, *MODEL, *FEW, "logger=csv").sound()
    assert list(metrics_of(done.folder)) == ["BM25", *SMALL_ROWS]


@pytest.mark.slow
def test_fewer_queries_train_from_the_same_checkpoints(roots: dict[str, Path], tmp_path: Path) -> None:
    given = ["data=squad", f"data.root={roots['cocondenser_squad']}", f"output_root={tmp_path}", "logger=csv"]
    sizes = ["++stage.finetune={train_queries: 6},{train_queries: null}", "seed=1"]
    done = run_command("-m", "experiment=ablation/low_data", *given, *sizes, *MODEL, *FEW).sound()
    assert done.computed.count("cocondenser") == 1
    assert done.computed.count("cocondenser_tuned") == 2
    rows, untuned = ["warm start", "MLM", "Condenser", "coCondenser"], ["warm start, as it is", "coCondenser, as it is"]
    swept = [f"train_queries={size} · {row}" for size in ("6", "null") for row in rows]
    assert sorted(metrics_of(done.folder)) == sorted(["BM25", *untuned, *swept])
    points = list(csv.DictReader((done.folder / "figures" / "score.csv").open()))
    across = [(row, "") for row in ("BM25", *untuned)]  # see no query
    assert [(point["line"], point["x"]) for point in points] == [
        *across,
        *((row, x) for row in rows for x in ("6", "24")),
    ]


@pytest.mark.slow
def test_the_speed_of_pretraining_is_read_off_a_sweep(roots: dict[str, Path], tmp_path: Path) -> None:
    given = ["data=squad", f"data.root={roots['cocondenser_squad']}", f"output_root={tmp_path}", "logger=csv", "seed=1"]
    given += [one for one in FEW if "pretrain_cocondenser" not in one]
    lengths = "++stage.pretrain_cocondenser={steps: 2, token_budget: null},{steps: 4, token_budget: null}"
    done = run_command("-m", "experiment=ablation/pretraining_speed", *given, lengths, *MODEL).sound()
    rows = ("coCondenser", "query-as-context coCondenser")
    for name in ("steps", "cpu_seconds"):
        points = list(csv.DictReader((done.folder / "figures" / f"{name}.csv").open()))
        found = [(one["line"], float(one["x"])) for one in points if one["line"] in rows]
        assert [line for line, _ in found] == [row for row in rows for _ in range(2)]
        assert all(x > 0 for _, x in found)
        assert name != "steps" or [x for _, x in found] == [2, 4, 2, 4]
    assert "reaches coCondenser's score" in done.out


@pytest.mark.slow
def test_the_parts_of_the_warm_start_run_to_their_table(roots: dict[str, Path], tmp_path: Path) -> None:
    recipe = "ablation/warm_start_squad"
    given = [f"data.root={roots[recipe]}", f"output_root={tmp_path}", "logger=csv", *MODEL, *FEW]
    done = run_command(f"experiment={recipe}", *given).sound()
    assert list(metrics_of(done.folder)) == ["BM25", "warm start", "coCondenser", *WARM_ROWS]
    assert "differs from random weights" in (done.folder / "table.md").read_text()
    parts = ("noise", "embeddings", "near_identity", "small_positions", "warm")
    for end in ("", "_tuned"):
        assert len({_weights(done.folder, f"{part}{end}") for part in parts}) == len(parts), "each part does something"


@pytest.mark.slow
def test_rounds_and_pools_of_hard_negatives_run_to_their_table(roots: dict[str, Path], tmp_path: Path) -> None:
    given = ["data=squad", f"data.root={roots['cocondenser_squad']}", f"output_root={tmp_path}", "logger=csv"]
    few = [*FEW, "stages.half_way.steps=2", "stages.refreshed.steps=2"]
    done = run_command("experiment=ablation/hard_negatives", *given, *few, *MODEL).sound()
    assert len(metrics_of(done.folder)) == 14
    for chain in (
        ("round1", "mined", "half_way", "mined_again", "refreshed"),
        ("round1", "mined", "round2", "mined_round2", "round3"),
    ):
        order = [done.computed.index(name) for name in chain]
        assert order == sorted(order), "each round mines with the retriever of the last"


@pytest.mark.slow
def test_each_pretraining_has_a_second_round_with_negatives_of_its_own(roots: dict[str, Path], tmp_path: Path) -> None:
    given = ["data=squad", f"data.root={roots['cocondenser_squad']}", f"output_root={tmp_path}", "logger=csv"]
    done = run_command("experiment=ablation/second_round", *given, *FEW, *MODEL).sound()
    assert list(metrics_of(done.folder)) == [
        *("BM25", "warm start", "MLM", "Condenser", "coCondenser"),
        *(f"{name} + hard negatives" for name in ("warm start", "MLM", "Condenser", "coCondenser")),
        "coCondenser + hard negatives + BM25",
    ]
    stages = done.folder / "stages"

    def inputs(stage: str) -> dict[str, list[str]]:
        read: dict[str, list[str]] = json.loads((stages / stage / "manifest.json").read_text())["inputs"]
        return {name: [Path(artifact).name for artifact in artifacts] for name, artifacts in read.items()}

    for model, prefix in (("warm", "warm_"), ("mlm", "mlm_"), ("condenser", "condenser_"), ("cocondenser", "")):
        second = inputs(f"{prefix}round2")
        assert second["init"] == [(stages / model).resolve().name], "begins again with the pre-trained weights"
        assert second["negatives"] == [(stages / f"{prefix}mined").resolve().name]
        (index,) = inputs(f"{prefix}mined")["retriever"]
        assert index == (stages / f"{prefix}round1.index").resolve().name, "what its own first round finds"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [ON_SENTENCES[0], pytest.param(ON_SENTENCES[1], marks=pytest.mark.slow)])
def test_sentence_tasks_run_to_their_table(recipe: str, roots: dict[str, Path], tmp_path: Path) -> None:
    given = [f"data.root={roots[recipe]}", *sentences_of(recipe, roots), f"output_root={tmp_path}", "logger=csv"]
    whole = [f"stages.cocondenser.{key}" for key in ("steps=2", "epochs=null")]
    whole += ["stages.condenser_tuned.backbone.name=null"]
    expected = costs(run_command(f"experiment={recipe}", *given, *MODEL, *whole, "dry_run=plan").sound().out)
    done = run_command(f"experiment={recipe}", *given, *MODEL, *whole).sound()
    measured = json.loads((done.folder / "stages" / "bert_tuned" / "manifest.json").read_text())["metrics"]
    assert float(expected["bert_tuned"][0]) == pytest.approx(measured["steps"], rel=0.3)
    assert amount(expected["bert_tuned"][1]) == pytest.approx(measured["train/tokens"], rel=0.4)
    metric = "Spearman" if recipe == "condenser_stsb" else "Accuracy"
    found = metrics_of(done.folder)
    assert list(found) == ["random init", "BERT", "Condenser", "coCondenser"]
    assert all(list(values) == [metric] for values in found.values())
    assert "differs from BERT" in (done.folder / "table.md").read_text()
    for table in ("sentence_tasks", f"low_data_{recipe.removeprefix('condenser_')}"):
        run_command(f"table={table}", f"output_root={tmp_path}").sound()
        lines = (tmp_path / "tables" / table / "table.csv").read_text().splitlines()
        for row in found:  # trained on all examples
            assert sum(f",{row}," in line and "1 seed" in line for line in lines) == 1, (row, lines)


@pytest.mark.slow
def test_a_sweep_over_the_size_of_a_sentence_task_is_one_table(roots: dict[str, Path], tmp_path: Path) -> None:
    recipe = "ablation/wiki_sections"
    given = [f"data.root={roots[recipe]}", f"output_root={tmp_path}", "logger=csv", "seed=1"]
    sizes = "++stage.finetune_sentences.examples=8,null"
    done = run_command("-m", f"experiment={recipe}", *given, sizes, *MODEL, *FEW).sound()
    assert done.computed.count("cocondenser") == 1
    assert done.computed.count("sentences") == 1
    names = ["random init", "warm start", "MLM", "Condenser", "coCondenser"]
    rows = [f"examples={size} · {row}" for size in (8, "null") for row in names]
    assert sorted(metrics_of(done.folder)) == sorted(rows)


def test_stsb_and_its_missing_files(roots: dict[str, Path], tmp_path: Path) -> None:
    root = roots["condenser_stsb"]
    done = run_command(
        "experiment=condenser_stsb", f"data.root={root}", f"output_root={tmp_path}", f"stage.read_sts.root={tmp_path}"
    )
    assert done.err.startswith(f"error: {tmp_path}/train.csv: no such file")
    assert done.err.count("\n") == 1


def test_local_text_becomes_a_checkpoint_that_loads_and_a_fusion_that_answers(
    roots: dict[str, Path], tmp_path: Path
) -> None:
    from transformers import AutoModel, AutoTokenizer

    recipe = ["experiment=cocondenser_local", f"data.root={roots['cocondenser_local']}", f"output_root={tmp_path}"]
    done = run_command(*recipe, *MODEL, *FEW, *LOCAL, "logger=csv", f"ask={TEXT.questions[0][1]}").sound()
    assert done.err == ""
    checkpoint = done.folder / "stages" / "cocondenser"
    model, tokenizer = AutoModel.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    assert model(**tokenizer("some text", return_tensors="pt")).last_hidden_state.shape[-1] == 32
    assert not (done.folder / "table.md").exists()
    assert "found by fused" in done.out
    about = json.loads((done.folder / "stages" / "fused" / "index.json").read_text())
    assert about["weights"][0] > about["weights"][1] > 0, "BM25 counts more, the encoder too"


@pytest.mark.slow
def test_local_text_with_queries_runs_to_its_table(roots: dict[str, Path], tmp_path: Path) -> None:
    root = roots["cocondenser_local_queries"]
    recipe = ["experiment=cocondenser_local_queries", f"data.root={root}", f"output_root={tmp_path}", "logger=csv"]
    done = run_command(*recipe, *MODEL, *FEW, *LOCAL).sound()
    rows = ["BM25", "coCondenser, no queries", "coCondenser", "coCondenser + hard negatives"]
    fused = ["BM25 + coCondenser, no queries", "BM25 + coCondenser + hard negatives"]
    assert list(metrics_of(done.folder)) == [*rows[:2], fused[0], *rows[2:], fused[1]]
    stages = done.folder / "stages"
    chosen = [json.loads((stages / name / "index.json").read_text())["chosen"] for name in ("fused", "fused_tuned")]
    assert chosen[0] is None, "no judgement enters the rows without queries"
    assert chosen[1]["split"] == "dev"


def test_wikipedia_goes_on_from_a_checkpoint_in_a_folder(roots: dict[str, Path], tmp_path: Path) -> None:
    root = roots["condenser_wikipedia"]
    first = run_command(
        "experiment=cocondenser_local", "data=documents", f"data.root={root}", f"output_root={tmp_path / 'first'}",
        "logger=csv", *MODEL, *FEW, *LOCAL,
    ).sound()  # fmt: skip
    checkpoint = (first.folder / "stages" / "cocondenser").resolve()
    done = run_command(
        "experiment=condenser_wikipedia",
        f"data.root={root}",
        f"backbone.name={checkpoint}",
        f"backbone.tokenizer={checkpoint}",
        f"output_root={tmp_path / 'out'}",
        "trainer=cpu",
        "trainer.precision=fp32",
        "logger=csv",
    ).sound()
    assert done.computed == ["corpus", "tokenizer", "tokens", "condenser"]
    assert (done.folder / "stages" / "condenser" / "condenser_head.safetensors").is_file()


@pytest.mark.slow
def test_attention_is_measured_on_sections_of_another_collection(roots: dict[str, Path], tmp_path: Path) -> None:
    recipe = "attention_entropy_sections"
    given = [f"data.root={roots[recipe]}", *sentences_of(recipe, roots), f"output_root={tmp_path}", "logger=csv"]
    given += [f"stages.{name}=null" for name in ("ict", "ict_tuned", "condenser", "condenser_tuned")]
    given += ["stages.entropy.encoders=[backbone,bert_tuned]", "table.rows={BM25: null, ICT: null, Condenser: null}"]
    given += ["~figures.entropy.models.ICT", "~figures.entropy.models.Condenser"]
    given += ["stage.finetune.query_length=32", "stage.finetune.passage_length=32", "stage.attention_entropy.length=64"]
    done = run_command(f"experiment={recipe}", *given, *MODEL, *FEW).sound()
    sections = json.loads((done.folder / "stages" / "wikipedia" / "manifest.json").read_text())["metrics"]["passages"]
    articles = [
        json.loads(line) for line in (roots["condenser_wiki_sections"] / "documents.jsonl").read_text().splitlines()
    ]
    assert sections == sum(len(set(one["headings"])) for one in articles)
    about = json.loads((done.folder / "stages" / "entropy" / "entropy.json").read_text())
    assert 0 < about["texts"] <= sections
    assert (done.folder / "figures" / "entropy.png").is_file()


@pytest.mark.slow
def test_adaptive_batches_are_validated_on_candidates_and_drawn(roots: dict[str, Path], tmp_path: Path) -> None:
    given = [f"data.root={roots['abs_msmarco']}", f"output_root={tmp_path}", "logger=csv", *MODEL, *FEW]
    given += ["stage.finetune.train_queries=null", "stage.finetune.validate_every=1", "figures.scheduling=null"]
    given += [f"{group}.{name}=null" for name in ("sequential", "abs_bm25", "abs_beam") for group in ("stages",)]
    given += [f"table.rows.{row}=null" for row in ("sequential", "ABS-BM25", "ABS-BeamSearch")]
    done = run_command("experiment=abs_msmarco", *given).sound()
    rows = list(csv.DictReader((done.folder / "figures" / "with_and_without.csv").open()))
    panels = {(row["panel"], row["line"]) for row in rows}
    assert panels == {
        (panel, line)
        for panel in ("training loss (nats)", "validation MRR@100 (%)")
        for line in ("without ABS", "with ABS")
    }
    logged = json.loads((done.folder / "stages" / "random" / "manifest.json").read_text())["metrics"]
    assert 0 < logged["val/mrr@10"] <= logged["val/mrr@100"] <= 1
    last = [float(row["mean"]) for row in rows if "MRR@100" in row["panel"] and row["line"] == "without ABS"][-1]
    assert last == pytest.approx(100 * logged["val/mrr@100"], rel=1e-4)
    again = run_command("experiment=abs_msmarco", *given, "stage.finetune.validation_candidates=null").sound()
    assert not {"random", "abs_encoder"} & set(again.computed), "what is only looked at changes no artifact"
    stop = "trainer.callbacks.stop={name: EarlyStopping, monitor: val/mrr@10, mode: max}"
    plans = [
        run_command("experiment=abs_msmarco", *given, stop, *more, "dry_run=plan").sound().out
        for more in ([], ["stage.finetune.validation_candidates=null"])
    ]
    first, second = (re.findall(r" random .* ([0-9a-f]{16}) ", plan) for plan in plans)
    assert first != second, "here it decides when training ends"


BATCHING = ["BM25", "sequential", "random", "ABS-BM25", "ABS-Encode", "ABS-BeamSearch"]


@pytest.mark.slow
def test_adaptive_batches_on_msmarco_run_to_their_table(roots: dict[str, Path], tmp_path: Path) -> None:
    root = roots["abs_msmarco"]
    given = [f"data.root={root}", f"output_root={tmp_path}", "logger=csv", *MODEL]
    given += ["stage.finetune.epochs=2", "stage.finetune.train_queries=null"]
    done = run_command("experiment=abs_msmarco", *given).sound()
    assert list(metrics_of(done.folder)) == BATCHING
    weights = {name: _weights(done.folder, name) for name in ("random", "sequential", "abs_bm25", "abs_encoder")}
    assert len(set(weights.values())) == 4, "the batches differ"
    assert not list(done.folder.glob("stages/abs_*/schedule")), "what was needed meanwhile is gone"
    sample = [f"stage.evaluate.{key}" for key in ("candidates=bm25", "candidates_number=9", "candidates_depth=40")]
    again = run_command("experiment=abs_msmarco", *given, *sample).sound()
    assert {name.partition(".")[2] for name in again.computed} == {"evaluation"}
    whole, sampled = metrics_of(done.folder), metrics_of(again.folder)
    assert all(sampled[row]["MRR@100"] > whole[row]["MRR@100"] for row in BATCHING[1:]), "ten are fewer than all"
    assert all(values["Recall@100"] == 1.0 for values in sampled.values())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stage.finetune.batching=hard", "stage.finetune.batching: must be 'random', 'sequential' or 'adaptive'"),
        ("stage.finetune.adaptive.beam=0", "stage.finetune.adaptive.beam: must be >= 1, got 0"),
        ("+stages.round1.adaptive.width=2", "stages.round1.adaptive.width: unknown key"),
        (
            "steps=10",
            "steps: unknown key; it is a key of stages, so name the kind of stage, such as stage.finetune.steps",
        ),
        ("layer=1", "layer: unknown key"),
        (
            "stage.evaluate.candidates=bm52",
            "stage.evaluate.candidates: no stage is named 'bm52' (did you mean 'bm25'?)",
        ),
    ],
)
def test_a_wrong_way_of_batching_is_named(override: str, message: str, tmp_path: Path) -> None:
    done = run_command("experiment=quickstart", override, "dry_run=plan", f"output_root={tmp_path}")
    assert done.err.startswith(f"error: {message}"), done.err
    assert done.err.count("\n") == 1


def _weights(run: Path, stage: str) -> bytes:
    return (run / "stages" / stage / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_the_ablation_of_batches_ends_in_one_table(roots: dict[str, Path], tmp_path: Path) -> None:
    given = ["data=squad", f"data.root={roots['cocondenser_squad']}", f"output_root={tmp_path}", "logger=csv"]
    few = ["stage.pretrain_cocondenser.steps=2", "seed=1,2"]
    done = run_command("-m", "experiment=ablation/batch_scheduling", *given, *MODEL, *few).sound()
    rows = json.loads((done.folder / "results.json").read_text())
    assert {row["row"] for row in rows} == set(BATCHING)
    assert "± is the standard deviation over 2 seeds." in (done.folder / "table.md").read_text()


def two_rounds(*names: str) -> list[str]:
    return ["BM25", *(name + end for end in ("", " + hard negatives") for name in names)]


@pytest.fixture(scope="module")
def marco(roots: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """MS MARCO in native files, a small model, and a T5 with its words in the folder ``t5`` beside the outputs."""
    folder = tmp_path_factory.mktemp("marco")
    given = [f"data.root={roots['bm25_msmarco']}", f"output_root={folder / 'out'}", "logger=csv", *MODEL]
    done = run_command("experiment=bm25_msmarco", *given, "backbone.max_positions=160").sound()
    assert list(metrics_of(done.folder)) == ["BM25"]
    save_small_t5(folder / "t5", (done.folder / "stages" / "tokenizer").resolve())
    few = [f"stage.pretrain_{kind}.steps=2" for kind in ("cocondenser", "cotmae")]
    few += ["stage.finetune.steps=2", "stage.finetune.epochs=null", "stage.pretrain_retromae.epochs=1"]
    writing = [f"stage.generate_queries.model={folder / 't5'}", "stage.generate_queries.max_tokens=8"]
    return [*given, "backbone.max_positions=160", *few, *writing]


@pytest.mark.slow
def test_query_as_context_on_msmarco_runs_to_its_table(marco: list[str]) -> None:
    from condensery.tokens.artifacts import Queries

    marco = [*marco, "stages.cocondenser.backbone.name=null"]
    done = run_command("experiment=query_as_context_msmarco", *marco).sound()
    rows = two_rounds("coCondenser", "query-as-context")
    assert list(metrics_of(done.folder)) == rows
    assert Queries((done.folder / "stages" / "queries").resolve()).counts.max() == 5
    again = run_command("experiment=query_as_context_msmarco", *marco, "stages.query_as_context.candidates=1").sound()
    assert "queries" not in again.computed, "fewer candidates are drawn from the same generation"
    assert {"query_as_context", "queries_round2"} <= set(again.computed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "rows"),
    [
        ("query_as_context_cotmae_msmarco", [*two_rounds("CoT-MAE"), *two_rounds("query-as-context")[1:]]),
        ("retromae_msmarco", two_rounds("RetroMAE")),
    ],
)
def test_auto_encoders_on_msmarco_run_to_their_tables(recipe: str, rows: list[str], marco: list[str]) -> None:
    assert list(metrics_of(run_command(f"experiment={recipe}", *marco).sound().folder)) == rows


@pytest.mark.slow
def test_a_condenser_goes_on_with_msmarco(marco: list[str], roots: dict[str, Path], tmp_path: Path) -> None:
    first = run_command(
        "experiment=cocondenser_local", "data=documents", f"data.root={roots['condenser_wikipedia']}",
        f"output_root={tmp_path}", "logger=csv", *MODEL, *FEW, *LOCAL,
    ).sound()  # fmt: skip
    start = (first.folder / "stages" / "cocondenser").resolve()
    given = [one for one in marco if not one.startswith("backbone")]
    models = [f"{key}={start}" for key in ("backbone.name", "backbone.tokenizer", "stages.continued.backbone.name")]
    done = run_command("experiment=condenser_ct_msmarco", *given, *models, "stages.continued.epochs=1").sound()
    assert list(metrics_of(done.folder)) == ["BM25", "BERT", "Condenser", "Condenser, continued"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["cocondenser_nq", pytest.param("cocondenser_triviaqa", marks=pytest.mark.slow)])
def test_open_domain_questions_run_to_their_table(recipe: str, roots: dict[str, Path], tmp_path: Path) -> None:
    given = [f"data.root={roots[recipe]}", f"output_root={tmp_path}", "logger=csv", *MODEL]
    short = [f"stage.finetune.{key}=64" for key in ("query_length", "passage_length")] + ["stage.finetune.epochs=3"]
    done = run_command(f"experiment={recipe}", *given, *short, *SCRATCH).sound()
    found = metrics_of(done.folder)
    assert list(found) == [row.replace("BERT", "DPR") for row in MARCO_ROWS]
    for values in found.values():
        assert list(values) == ["Hit@5", "Hit@20", "Hit@100"]
        assert values["Hit@5"] <= values["Hit@20"] <= values["Hit@100"]
    assert found["BM25"]["Hit@5"] > 0.5, "the words of the questions come from their passages"
    assert (done.folder / "stages" / "bert_round1" / "query_encoder").is_dir()
    assert "No score differs from DPR" in (done.folder / "table.md").read_text()
    stages = done.folder / "stages"
    mined = json.loads((stages / "mined" / "negatives.json").read_text())
    assert mined["made_by"] == "/".join((stages / "round1").resolve().parts[-2:])
    given_negatives = (stages / "bm25_negatives" / "negatives.jsonl").read_text().splitlines()
    assert len(given_negatives) == len(splits_of(TEXT)["train"])


def test_a_split_without_judgements_or_answers_is_told_at_once(roots: dict[str, Path], tmp_path: Path) -> None:
    recipe = ["experiment=cocondenser_nq", f"data.root={roots['cocondenser_nq']}", f"output_root={tmp_path}"]
    for given, said in (
        (
            ["table.metrics=[MRR@10,Hit@5]"],
            "MRR@10 needs judgements; the split test of the collection nq has only answers",
        ),
        (
            ["stages.round1.split=test"],
            "stages.round1.split: test, but this split of the collection nq has only answers",
        ),
        (["data.splits.test=null"], "Hit@5 needs answers; the split test of the collection nq has none"),
    ):
        done = run_command(*recipe, *given)
        assert said in done.err
        assert done.err.count("\n") == 1
    marco = ["experiment=bm25_msmarco", f"data.root={roots['bm25_msmarco']}", f"output_root={tmp_path}"]
    for given, said in (
        (["table.split=dl19"], "dl19, but the collection msmarco has no such split; set data.splits.dl19"),
        (
            ["stages.x={stage: read_negatives}"],
            "stage.read_negatives.file: needs a file of negatives; the files of the collection msmarco",
        ),
        (["stages.bm25_negatives.without_answers=true"], "the split train of msmarco has no answers"),
    ):
        assert said in run_command(*marco, *given).err
    beir = ["experiment=cocondenser_beir", f"data.root={roots['cocondenser_beir']}", f"output_root={tmp_path}"]
    done = run_command(*beir, "backbone.tokenizer=some/hub", "backbone.name=./nowhere")
    names(done.err, "stage.retriever.folder", "./nowhere", "no such folder")
    assert not list(tmp_path.iterdir()), "nothing was begun"


@pytest.mark.slow
def test_msmarco_documents_run_to_a_table_of_both_query_sets(roots: dict[str, Path], tmp_path: Path) -> None:
    recipe = "cocondenser_msmarco_document"
    given = [f"data.root={roots[recipe]}", f"output_root={tmp_path}", "logger=csv", *MODEL]
    done = run_command("-m", f"experiment={recipe}", *given, *SCRATCH, "stage.finetune.passage_length=64").sound()
    rows = json.loads((done.folder / "results.json").read_text())
    assert {row["row"] for row in rows} == set(MARCO_ROWS)
    assert {row["split"] for row in rows} == {"test", "dl19"}
    assert done.computed.count("round2") == 1, "both splits share the training"
    header = (done.folder / "table.md").read_text().splitlines()[2]
    assert "msmarco-documents test MRR@100" in header
    assert "msmarco-documents dl19 NDCG@10" in header
    assert "average" not in header


@pytest.mark.slow
def test_a_retriever_is_measured_on_a_list_of_beir_folders(roots: dict[str, Path], tmp_path: Path) -> None:
    first = roots["cocondenser_beir"]
    trained = run_command(
        "experiment=cocondenser_local", "data=squad", f"data.root={first}", f"output_root={tmp_path / 'trained'}",
        "logger=csv", "stages.round1={stage: finetune, init: cocondenser}", *MODEL, *FEW, *LOCAL,
    ).sound()  # fmt: skip
    checkpoint = (trained.folder / "stages" / "round1").resolve()
    text = some_text(documents=12, seed=6)
    named = [(f"{int(passage) + 1}", words, passage) for _, words, passage in text.questions]  # also a passage's id
    second = write_beir(tmp_path / "arguana", Text(text.passages, named))
    for root in (first, second):
        (root / "qrels" / "train.tsv").unlink()
    given = [f"output_root={tmp_path / 'out'}", "logger=csv", "trainer=cpu", "trainer.precision=fp32"]
    recipe = ["experiment=cocondenser_beir", f"backbone.name={checkpoint}", *given]
    done = run_command("-m", *recipe, f"data.root={first},{second}").sound()
    rows = json.loads((done.folder / "results.json").read_text())
    assert [(row["row"], row["collection"]) for row in rows] == [
        (name, collection) for collection in ("scifact", "arguana") for name in ("BM25", "coCondenser")
    ]
    assert done.computed.count("retriever") == 1
    runs = {
        row["artifact"]: gzip.decompress(
            (tmp_path / "out" / "artifacts" / row["artifact"] / "run.trec.gz").read_bytes()
        )
        for row in rows
    }
    ranked = [line.split() for run in runs.values() for line in run.decode().splitlines()]
    assert all(query != passage for query, _, passage, *_ in ranked), "BEIR ignores identical ids"
    assert len(ranked[-1][-1].rpartition("/")[2]) == 16, "runs name their retriever"
    taken = next((tmp_path / "out" / "artifacts" / "retriever").glob("*/model.safetensors"))
    assert taken.read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    lines = (done.folder / "table.md").read_text().splitlines()
    assert "| average test NDCG@10 " in lines[2]
    shown = [float(re.sub(r"[*†]", "", cell)) for cell in lines[4].split("|")[2:-1]]
    mean = sum(row["metrics"]["NDCG@10"] for row in rows if row["row"] == "BM25") / 2
    assert shown[4] == pytest.approx(100 * mean, abs=0.06)


def test_tevatron_lines_run_to_a_table(tmp_path: Path) -> None:
    root = write_tevatron(tmp_path / "tevatron", TEXT)
    given = ["experiment=cocondenser_squad", "data=tevatron", f"data.root={root}", "data.splits.test=test.jsonl"]
    given += ["stages.given={stage: read_negatives}", f"output_root={tmp_path / 'out'}", "logger=csv"]
    given += [f"stages.{name}.negatives=[given]" for name in ("warm_tuned", "round1")]
    given += ["stages.round2.negatives=[given,mined]"]
    left_out = ("mlm", "condenser", "cocondenser", "mlm_tuned", "condenser_tuned", "fused")
    given += [f"stages.{name}=null" for name in left_out]
    given += ["~table.rows", "+table.rows={BM25: bm25, tuned: round1, twice: round2}", "table.baseline=tuned"]
    given += ["stages.round1.init=backbone", "stages.round2.init=round1"]
    done = run_command(*given, *MODEL, *FEW).sound()
    assert list(metrics_of(done.folder)) == ["BM25", "tuned", "twice"]
    assert not {*left_out} & {path.name for path in (done.folder / "stages").iterdir()}


@pytest.mark.slow
def test_ict_on_wikipedia_gives_a_checkpoint(roots: dict[str, Path], tmp_path: Path) -> None:
    root = roots["ict_wikipedia"]
    done = run_command(
        "experiment=ict_wikipedia", f"data.root={root}", f"output_root={tmp_path}", "logger=csv", *MODEL
    ).sound()
    assert (done.folder / "stages" / "ict" / "model.safetensors").is_file()


HALVES = ("condenser_half", "condenser_ct", "cocondenser_second")  # with a budget of their own


@pytest.mark.slow
def test_all_objectives_and_seeds_end_in_one_table(roots: dict[str, Path], tmp_path: Path) -> None:
    given = ["data=squad", f"data.root={roots['cocondenser_squad']}", f"output_root={tmp_path}", "logger=csv"]
    pretraining = [f"stage.{kind}" for kind in TRAINING if kind.startswith("pretrain")]
    few = [f"{name}.token_budget=20000" for name in (*pretraining, *(f"stages.{name}" for name in HALVES))]
    few += ["stage.pretrain_cocondenser.batch_size=24", "stage.finetune.steps=3", "seed=1,2"]
    done = run_command("-m", "experiment=ablation/pretraining", *given, *MODEL, *few).sound()
    for manifest in tmp_path.glob("artifacts/pretrain_*/*/manifest.json"):
        metrics = json.loads(manifest.read_text())["metrics"]
        assert metrics["train/tokens"] == pytest.approx(20000, rel=0.1), manifest
    rows = json.loads((done.folder / "results.json").read_text())
    seeds: dict[str, set[int]] = {}
    for row in rows:
        seeds.setdefault(row["row"], set()).add(row["seed"])
    assert len(seeds) == 15
    assert all(found == {1, 2} for name, found in seeds.items() if name != "BM25")
    assert "± is the standard deviation over 2 seeds." in (done.folder / "table.md").read_text()


@pytest.mark.slow
def test_rocketqa_on_msmarco_runs_to_its_table(marco: list[str], roots: dict[str, Path], tmp_path: Path) -> None:
    root = write_marco(tmp_path / "marco", TEXT)
    with open(root / "queries.train.tsv", "a") as stream:  # queries that nobody judged, as the official file has them
        stream.writelines(
            f"x{at}\twhat about {words.split()[0]}\n" for at, (_, _, words, _) in enumerate(TEXT.passages)
        )
    small = ["stage.finetune.batch_size=8", "stages.cross_batch.batch_size=8", "stages.cross_batch.epochs=null"]
    sure = [
        "stage.denoise.below=1",
        "stage.pseudo_label.positive=0.01",
        "stage.pseudo_label.negative=0",
        "stage.train_cross_encoder.length=100",
    ]
    done = run_command("experiment=rocketqa_msmarco", *marco, f"data.root={root}", *small, *sure, *CROSS).sound()
    assert list(metrics_of(done.folder)) == ["BM25", *ROCKETQA]
    labels = (done.folder / "stages" / "augmented" / "labels.jsonl").read_text().splitlines()
    assert len(labels) == len(TEXT.passages), "the queries that nobody judged, and no others"
    assert all('{"query_id": "x' in line for line in labels)


ROCKETQA_NQ = [
    "stage.finetune.batch_size=8", "stage.finetune.epochs=1", "stage.finetune.query_length=32",
    "stage.finetune.passage_length=64", "stage.denoise.below=1", "stage.pseudo_label.positive=0.01",
    "stage.pseudo_label.negative=0", "stage.train_cross_encoder.length=100", *CROSS,
]  # fmt: skip


@pytest.mark.slow
def test_rocketqa_on_native_questions_labels_those_without_a_positive(tmp_path: Path) -> None:
    root = write_dpr(tmp_path / "nq", TEXT)
    file = root / "biencoder-nq-train.json"
    entries = json.loads(file.read_text())
    added = [
        {"question": f"what about {words.split()[0]}", "answers": [words.split()[0]], "positive_ctxs": []}
        for _, _, words, _ in TEXT.passages
    ]
    file.write_text(json.dumps([*entries, *added], indent=4))
    recipe = ["experiment=rocketqa_nq", f"data.root={root}", f"output_root={tmp_path / 'out'}", "logger=csv", *MODEL]
    done = run_command(*recipe, *ROCKETQA_NQ).sound()
    assert list(metrics_of(done.folder)) == ["BM25", *ROCKETQA]
    labels = (done.folder / "stages" / "augmented" / "labels.jsonl").read_text().splitlines()
    assert [json.loads(line)["query_id"] for line in labels] == [
        f"train-{len(entries) + at}" for at in range(len(added))
    ]


@pytest.mark.slow
def test_rocketqa_on_questions_that_all_have_a_positive_ends_before_it_trains(
    roots: dict[str, Path], tmp_path: Path
) -> None:
    given = [f"data.root={roots['rocketqa_nq']}", f"output_root={tmp_path}", "logger=csv", *MODEL, *ROCKETQA_NQ]
    for state in ("read", "reused"):
        done = run_command("experiment=rocketqa_nq", *given)
        assert done.computed == ["corpus"] * (state == "read")
        assert done.code == 1
        assert done.err.count("\n") == 1
        names(done.err, "stages.augmented.corpus", "every query of the collection nq is judged", "leave out")
    planned = run_command("experiment=rocketqa_nq", *given, "dry_run=plan")
    assert planned.err == done.err
    shown = done.err.partition("leave out the stages and rows that need it: ")[2]
    assert f"#   {shown}" in (CONF / "experiment" / "rocketqa_nq.yaml").read_text()
    without = run_command("experiment=rocketqa_nq", *given, *shlex.split(shown)).sound()
    assert list(metrics_of(without.folder)) == ["BM25", *ROCKETQA[:-1]]


@pytest.mark.slow
def test_reranking_on_msmarco_runs_to_its_table(marco: list[str]) -> None:
    done = run_command(
        "experiment=rerank_msmarco", *marco, *SCRATCH, "stages.cocondenser.epochs=null", "stage.rerank.depth=20", *CROSS
    ).sound()
    rows = ["BM25 + cross-encoder", "coCondenser + cross-encoder", "coCondenser + ensemble"]
    assert list(metrics_of(done.folder)) == [*MARCO_ROWS, *rows]


@pytest.mark.slow
def test_the_eight_rows_of_the_comparison_are_filled_beside_the_published_ones(
    roots: dict[str, Path], tmp_path: Path
) -> None:
    given = ["data=squad", f"data.root={roots['cocondenser_squad']}", f"output_root={tmp_path}", "logger=csv", *MODEL]
    sweep = ["-m", "experiment=ablation/rocketqa_comparison", *given, "data.unlabelled_queries=10", *FEW, "seed=1,2"]
    done = run_command(*sweep).sound()
    others = ["Condenser", "Condenser + hard negatives", "coCondenser", "coCondenser + hard negatives"]
    names = ["BM25", *ROCKETQA, *others]
    assert list(metrics_of(done.folder)) == names
    lines = (done.folder / "table.csv").read_text().splitlines()
    assert len(lines) == 1 + 9 + 8
    assert "±" in lines[0]
    assert all("2 seeds" in line for line in lines[10:])
    again = run_command(*sweep).sound()
    assert again.computed == []
    assert (again.folder / "table.csv").read_text().splitlines() == lines
    alone = run_command("table=rocketqa_comparison", f"output_root={tmp_path}").sound()
    assert alone.folder == tmp_path / "tables" / "rocketqa_comparison"
    assert (alone.folder / "table.csv").read_text().splitlines() == lines
