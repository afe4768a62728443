"""What a recipe may set, and what may be called."""

from pathlib import Path

import pytest
from hydra._internal.utils import create_config_search_path
from hydra.conf import HydraConf
from hydra.types import RunMode
from omegaconf import OmegaConf

import condensery
from condensery.errors import UserError
from condensery.pipeline import recipe_guard
from condensery.pipeline.config import RootConfig
from condensery.pipeline.recipe_guard import (
    CALLED,
    GROUPS,
    HYDRA,
    MODE,
    SWEEPABLE,
    RecipeLoader,
    check_content,
    may_be_called,
    refuse_foreign_targets,
)
from condensery.recipes import RECIPES


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        ("hydra: {job: {env_set: {GIT_CONFIG_COUNT: 1}}}", "hydra.job.env_set.GIT_CONFIG_COUNT"),
        ("hydra: {job: {env_set: {CONDENSERY_STAGES: os}}}", "hydra.job.env_set.CONDENSERY_STAGES"),
        ("hydra: {job: {env_copy: [HOME]}}", "hydra.job.env_copy"),
        ("hydra: {job: {env_copy: '${x}'}}", "hydra.job.env_copy"),
        ("hydra: {run: {dir: /tmp/x}}", "hydra.run.dir"),
        ("hydra: {sweep: {dir: /tmp/x}}", "hydra.sweep.dir"),
        ("hydra: {output_subdir: ../x}", "hydra.output_subdir"),
        ("hydra: {callbacks: {x: {_target_: os.system}}}", "hydra.callbacks.x._target_"),
        ("hydra: {job_logging: {handlers: {x: {'()': os.system}}}}", "hydra.job_logging.handlers.x.()"),
        ("hydra: {hydra_logging: {handlers: {x: {filename: y}}}}", "hydra.hydra_logging.handlers.x.filename"),
        ("hydra: {launcher: {_target_: x.y}}", "hydra.launcher._target_"),
        ("hydra: {sweeper: {_target_: x.y}}", "hydra.sweeper._target_"),
        ("hydra: {sweeper: '${stages}'}", "hydra.sweeper"),
        ("hydra: {searchpath: [pkg://x]}", "hydra.searchpath"),
        ("hydra: '${stages}'", "hydra"),
        ("hydra: {sweeper: {params: {++hydra.job.env_set.X: 1}}}", "hydra.sweeper.params.++hydra.job.env_set.X"),
        ("hydra: {sweeper: {params: {hydra/launcher: x}}}", "hydra.sweeper.params.hydra/launcher"),
        ("hydra: {sweeper: {params: {'~hydra.callbacks': x}}}", "hydra.sweeper.params.~hydra.callbacks"),
        ("hydra: {sweeper: {params: {' hydra.verbose': x}}}", "hydra.sweeper.params. hydra.verbose"),
        ("hydra: {sweeper: {params: {++launcher.before: '[a]'}}}", "hydra.sweeper.params.++launcher.before"),
        ("hydra: {sweeper: {params: {output_root: /}}}", "hydra.sweeper.params.output_root"),
        ("hydra: {sweeper: {params: {push_to_hub: x}}}", "hydra.sweeper.params.push_to_hub"),
        ("hydra: {sweeper: {params: {seed: '$a'}}}", "hydra.sweeper.params.seed"),
        ("launcher: {kind: torchrun, before: [touch, x]}", "launcher.before"),
        ("launcher: {endpoint: 'host:1'}", "launcher.endpoint"),
        ("launcher: {kind: slurm, setup: [touch x]}", "launcher.setup"),
        ("launcher: {options: {wrap: x}}", "launcher.options.wrap"),
        ("launcher: {partition: x}", "launcher.partition"),
        ("launcher: '${data}'", "launcher"),
        ("output_root: /tmp", "output_root"),
        ("push_to_hub: {round1: me/small}", "push_to_hub"),
    ],
)
def test_what_runs_or_writes_elsewhere_is_for_the_command_line_alone(recipe: str, key: str) -> None:
    with pytest.raises(UserError) as error:
        check_content("x.yaml", OmegaConf.create(recipe))
    assert str(error.value).startswith(f"x.yaml: {key}: ")


@pytest.mark.parametrize(
    "recipe",
    [
        "hydra: {sweeper: {params: {seed: '1,2', ++stage.finetune.steps: '1,2', backbone: 'a,b', experiment: 'a,b'}}}",
        "hydra: {sweeper: {max_batch_size: 2}, mode: MULTIRUN}",
        "launcher: {kind: slurm, nodes: 2, hours: 3, memory: null, partition: null, setup: [], options: {}}",
        "hydra: null",
        "{name: x, stages: {a: {stage: corpus}}, data: '${x}', backbone: null, table: '???'}",
    ],
)
def test_what_is_harmless_may_be_set(recipe: str) -> None:
    check_content("x.yaml", OmegaConf.create(recipe))


def test_a_file_of_conf_launcher_describes_the_machine() -> None:
    check_content("x.yaml", OmegaConf.create("launcher: {setup: [module load cuda]}"), machine=True)
    with pytest.raises(UserError, match=r"hydra\.run"):
        check_content("x.yaml", OmegaConf.create("hydra: {run: {dir: x}}"), machine=True)


@pytest.mark.parametrize("key", GROUPS)
@pytest.mark.parametrize("value", ["[a]", "1", "words"])
def test_what_must_be_a_mapping_is_said_so(key: str, value: str) -> None:
    with pytest.raises(UserError, match=rf"^x\.yaml: {key}: (must be a mapping|a recipe may not)"):
        check_content("x.yaml", OmegaConf.create(f"{key}: {value}"))


def test_the_lists_name_what_there_is() -> None:
    assert {"experiment", *RootConfig.model_fields} - {"output_root", "launcher", "push_to_hub"} == SWEEPABLE
    hydra = OmegaConf.structured(HydraConf)
    assert {one.split(".")[0] for one in HYDRA} <= set(hydra)


@pytest.mark.parametrize(
    "entry",
    [
        "{_target_: os.system, command: touch x}",
        "{_target_: condensery.system.files.Path.write_text}",
        "{_target_: condensery.system.files.shutil.copyfile}",
        "{_target_: condensery.pipeline.sweep.shutil.rmtree}",
        "{_target_: condensery.system.files.write_json}",
        "{_target_: condenserything.x}",
        "{_target_: hydra.utils.call}",
        "{_target_: hydra_plugins.nix.Launcher}",
        "{_target_: hydra._internal.core_plugins.basic_launcher.Path.touch}",
        "{_target_: hydra._internal.core_plugins.bash_completion.BashCompletion}",
        "{_target_: condensery.pipeline.sweep.JoinedTable, a: [{b: {_target_: pathlib.Path.touch}}]}",
        "{a: {_target_: null}}",
    ],
)
def test_what_is_not_on_the_list_is_not_called(entry: str) -> None:
    config = OmegaConf.create(f"hydra: {{callbacks: {{x: {entry}}}}}")
    with pytest.raises(UserError, match=r"^hydra\.callbacks\.x\S*\._target_: \S+ may not be called; allowed are only "):
        refuse_foreign_targets(config.hydra.callbacks.x)


def test_what_is_called_is_ours_or_a_launcher_or_sweeper_of_hydra(project: Path) -> None:
    for name, thing in CALLED.items():
        assert name == f"{thing.__module__}.{thing.__qualname__}"
        assert thing.__module__.startswith(f"{condensery.__name__}.")
    refuse_foreign_targets(OmegaConf.load(project / "conf" / "config.yaml").hydra.callbacks)
    for plugin in ("basic_launcher.BasicLauncher", "basic_sweeper.BasicSweeper"):
        assert may_be_called(f"hydra._internal.core_plugins.{plugin}")


def test_references_that_multiply_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    from omegaconf import Container

    monkeypatch.setattr(Container, "resolve_parse_tree", recipe_guard._counted_reference)
    monkeypatch.setattr(recipe_guard, "_followed", [0])
    doubled = {f"a{i}": f"${{a{i + 1}}}${{a{i + 1}}}" for i in range(40)}
    with pytest.raises(Exception, match="multiply"):
        OmegaConf.to_container(OmegaConf.create({**doubled, "a40": "x"}), resolve=True)
    monkeypatch.setattr(recipe_guard, "_followed", [0])
    long = {f"a{i}": f"${{a{i + 1}}}${{a{i + 1}}}" for i in range(6)}
    with pytest.raises(Exception, match="multiply"):
        OmegaConf.to_container(OmegaConf.create({**long, "a6": "x" * 100_000}), resolve=True)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_a_name_in_defaults_that_no_file_can_have_is_one_line(name: str) -> None:
    with pytest.raises(UserError, match="not a possible name of a file"):
        recipe_guard._Files.__new__(recipe_guard._Files).load_config(name)


def test_the_folder_conf_beside_run_py_is_known(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, outputs = tmp_path / "program", tmp_path / "outputs"
    monkeypatch.setattr(recipe_guard.RecipeLoader, "home", recipe_guard.RecipeLoader.home)
    monkeypatch.setenv("CONDENSERY_HOME", str(outputs))
    recipe_guard.install(home=program)
    recipe_guard.install()
    assert recipe_guard._own(str(project / "conf"))
    assert recipe_guard._own(str(program / "conf"))
    assert not recipe_guard._own(str(outputs / "conf")), "where outputs go, anybody may have put recipes"
    assert not recipe_guard._own(str(tmp_path))


def test_hydra_may_ask_a_third_time_for_a_config_that_it_has_closed() -> None:
    """As it does for hydra.verbose."""
    loader = RecipeLoader(create_config_search_path(str(RECIPES)))
    loader.load_configuration("config", ["seed=3"], RunMode.RUN, validate_sweep_overrides=False)
    second = loader.load_configuration("config", ["seed=3", MODE], RunMode.RUN)
    OmegaConf.set_readonly(second.hydra, True)
    third = loader.load_configuration("config", ["seed=3", MODE], RunMode.RUN)
    assert third.seed == 3
    assert third.hydra.overrides == second.hydra.overrides
