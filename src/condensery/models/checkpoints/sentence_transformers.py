"""Writes and reads the files from which sentence-transformers builds a retriever."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from string import ascii_letters
from typing import Any, Literal

from condensery.errors import UserError, shown
from condensery.models.vectors import ACTIVATIONS, DenseShape, LayerShape, NormShape, Pooling, VectorSettings
from condensery.system.files import read_json, write_json

MODULES = "modules.json"
ROUTER = "router_config.json"
POOLING = "1_Pooling"
TRANSFORMER = "sentence_bert_config.json"
_TRANSFORMERS = (  # names of the file ``TRANSFORMER``, now and in older versions of the library
    TRANSFORMER,
    *(f"sentence_{kind}_config.json" for kind in ("roberta", "distilbert", "camembert", "xlm-roberta")),
)
ABOUT = "config_sentence_transformers.json"
_LIBRARY = "sentence_transformers."
_ROUTERS = ("Router", "Asym")  # the module's name, and its former name
_FLAG = "pooling_mode_"
_FLAGS: dict[Pooling, str] = {  # this project's name -> the name in the library's config, without ``_FLAG``
    "cls": "cls_token",
    "mean": "mean_tokens",
    "max": "max_tokens",
    "last": "lasttoken",
    "weighted_mean": "weightedmean_tokens",
    "mean_sqrt_len": "mean_sqrt_len_tokens",
}
_POOLINGS: dict[str, Pooling] = {
    "cls": "cls",
    "mean": "mean",
    "max": "max",
    "weightedmean": "weighted_mean",
    **{theirs: ours for ours, theirs in _FLAGS.items()},
}
COUNT = "a whole number of 1 or more"
# arguments of a module ``Transformer``, by their names in newer and older releases, and those that change no vector
_ARGUMENTS = (
    "model_kwargs",
    "model_args",
    "config_kwargs",
    "config_args",
    "processor_kwargs",
    "tokenizer_args",
    "processing_kwargs",
)
_WITHOUT_EFFECT = {"add_pooling_layer", "attn_implementation", "device_map", "dtype", "low_cpu_mem_usage", "padding"}
_WITHOUT_EFFECT |= {"torch_dtype", "truncation", "trust_remote_code", "use_fast", "use_safetensors"}
_COSINE = ("cosine", "cos_sim")
# Names of prompts. The first prompt that is not empty is used, because the library may write an empty "document" prompt.
_QUERY_PROMPTS, _PASSAGE_PROMPTS = ("query",), ("document", "passage", "corpus")


Route = Literal["query", "document"]  # the kind of a text; the module ``Router`` has separate modules for each kind


KINDS: dict[type, str] = {DenseShape: "Dense", NormShape: "LayerNorm", type(None): "Normalize"}  # shape -> module


@dataclass(frozen=True)
class SavedLayer:
    """A saved module ``Dense`` or ``LayerNorm``: the folder of its weights, and its shape.

    Attributes:
        with_encoder: whether the file of its weights also has those of the encoder, as in a checkpoint of ColBERT's own code.
    """

    folder: Path
    shape: LayerShape
    with_encoder: bool = False


@dataclass(frozen=True)
class SavedModules:
    """The modules with which sentence-transformers computes the vectors of a checkpoint.

    Attributes:
        settings: the equivalent settings in this project.
        head: the layers after pooling, in order; None = ``Normalize``. A final ``Normalize`` is included, even if
            ``settings.normalise`` already says that vectors are normalised.
        folder: folder of the encoder and its tokenizer.
    """

    settings: VectorSettings
    head: tuple[SavedLayer | None, ...]
    folder: Path


def write_modules(
    folder: Path,
    size: int,
    max_length: int,
    settings: VectorSettings | None = None,
    head: Sequence[LayerShape | None] = (),
) -> list[Path]:
    """Write the config files from which sentence-transformers builds the encoder, the pooling and the layers after it.

    The prefixes are written as prompts. The similarity function is the inner product, with one exception. For vectors that
    are truncated and then normalised, the function is the cosine, because sentence-transformers truncates after normalising.

    Args:
        folder: folder of the checkpoint.
        size: number of dimensions of a state.
        max_length: maximum input length in tokens.
        settings: the vector settings; None = unchanged CLS states.
        head: the layers after pooling; None in the sequence = a normalisation.

    Returns:
        the folders for the weights of the layers of ``head``.
    """
    settings = settings or VectorSettings()
    layers = [*head, *([None] if settings.normalise else [])]
    behind = [KINDS[type(shape)] for shape in layers]
    paths = [f"{place}_{kind}" for place, kind in enumerate(behind, start=2)]
    kinds = {"": "Transformer", POOLING: "Pooling", **dict(zip(paths, behind, strict=True))}
    prompts = {"query": settings.query_prefix, "document": settings.passage_prefix}
    cut = settings.truncate_dim
    about: dict[str, Any] = {"similarity_fn_name": "cosine" if cut and settings.normalise else "dot"}
    about |= {"prompts": prompts if any(prompts.values()) else {}, **({"truncate_dim": cut} if cut else {})}
    flags: tuple[Pooling, ...] = ("cls", "mean", settings.pooling)
    write_list(folder, {path: f"models.{kind}" for path, kind in kinds.items()})
    write_json(folder / TRANSFORMER, {"max_seq_length": max_length, "do_lower_case": False})
    write_json(folder / ABOUT, about)
    write_json(
        folder / POOLING / "config.json",
        {"word_embedding_dimension": size, **{_FLAG + _FLAGS[one]: one == settings.pooling for one in flags}},
    )
    for path, shape in zip(paths, layers, strict=True):
        write_json(folder / path / "config.json", _described(shape))
    return [folder / path for path in paths[: len(head)]]


def write_router(folder: Path, query: str) -> None:
    """Write the files with which sentence-transformers encodes queries and passages with different encoders.

    Queries go through the modules in the subfolder ``query``, which has its own files. All other texts go through the
    modules of ``folder``. The library's methods ``encode_query`` and ``encode_document`` choose the modules. Queries and
    passages may have different maximum input lengths.
    """
    types: dict[str, str] = {}
    structure: dict[str, list[str]] = {}
    below: dict[Route, str] = {"query": query, "document": "."}
    for route, own in below.items():
        modules = {PurePosixPath(own, one["path"]).as_posix(): one["type"] for one in read_json(folder / own / MODULES)}
        types |= modules
        structure[route] = list(modules)
    parameters = {"default_route": "document", "allow_empty_key": True}
    write_json(folder / ROUTER, {"types": types, "structure": structure, "parameters": parameters})
    write_list(folder, {"": f"models.{_ROUTERS[0]}"})


def write_multi_vector(
    folder: Path,
    sizes: tuple[int, int],
    lengths: tuple[int, int],
    prefixes: tuple[str, str],
    left_out: Sequence[str],
    dense: str,
    attended: bool | None = True,
) -> None:
    """Write the files from which sentence-transformers builds a ``MultiVectorEncoder``, with normalised token vectors.

    Args:
        folder: folder of the checkpoint.
        sizes: dimensions of a state and of a vector.
        lengths: number of tokens to which each query is filled up, and maximum number of tokens of a passage.
        prefixes: the strings put before a query and before a passage.
        left_out: words that get no vector when they occur in a passage.
        dense: folder of the linear layer that maps states to vectors; the layer has no bias.
        attended: whether the tokens of a query attend to the [MASK] tokens that fill it up; None = queries are not filled up,
            and the first of ``lengths`` is their maximum.
    """
    modules = {
        "": "base.modules.transformer.Transformer",
        dense: "base.modules.dense.Dense",
        "2_Normalize": "base.modules.normalize.Normalize",
        "3_Mask": "multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
    }
    write_list(folder, modules)
    tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    write_json(folder / dense / "config.json", {**_described(DenseShape(*sizes, False, "Identity")), **tokens})
    write_json(folder / "2_Normalize" / "config.json", tokens)
    write_json(folder / "3_Mask" / "config.json", {"skiplist_words": [*left_out]})
    filled = {"strategy": "fixed", "attend": attended, "token": None, "length": lengths[0]}
    own = {"query_length": lengths[0]} if attended is None else {"query_expansion": filled}
    write_json(folder / TRANSFORMER, {"max_seq_length": lengths[1], **own})
    prompts = dict(zip(("query", "document"), prefixes, strict=True))
    write_json(folder / ABOUT, {"model_type": "MultiVectorEncoder", "prompts": prompts, "similarity_fn_name": "maxsim"})


def write_list(folder: Path, modules: Mapping[str, str]) -> None:
    """Write the list of the modules that sentence-transformers builds: folder of a module -> class within that library."""
    named = [{"path": path, "type": f"{_LIBRARY}{kind}"} for path, kind in modules.items()]
    write_json(folder / MODULES, [{"idx": place, "name": str(place), **one} for place, one in enumerate(named)])


def _described(shape: LayerShape | None) -> dict[str, Any]:
    if not isinstance(shape, DenseShape):
        return {} if shape is None else {"dimension": shape.inputs}
    activation = f"{ACTIVATIONS[shape.activation]}.{shape.activation}"
    sizes = {"in_features": shape.inputs, "out_features": shape.outputs}
    return {**sizes, "bias": shape.bias, "activation_function": activation}


def read_modules(folder: Path, route: Route = "document") -> SavedModules:
    """Read how sentence-transformers computes and compares the vectors of a folder, for passages or for queries.

    If sentence-transformers compares the vectors by cosine, this project normalises them, which gives the same ranking.

    Raises:
        UserError: sentence-transformers computes or compares vectors in a way that this project does not support.
    """
    about = read_expected(folder / ABOUT, dict) if (folder / ABOUT).exists() else {}
    query, passage = (_prompt(about, names, folder / ABOUT) for names in (_QUERY_PROMPTS, _PASSAGE_PROMPTS))
    check_default_prompt(about, folder / ABOUT)
    pooling: Pooling | None = None
    head: list[SavedLayer | None] = []
    encoder = folder
    for kind, path in modules_of(folder, route):
        if kind == "Pooling" and pooling is None:
            pooling = _pooling(settings_file(path), prompted=bool(query or passage))
        elif kind == "Normalize" and pooling is not None:
            head.append(None)
        elif kind in ("Dense", "LayerNorm") and pooling is not None:
            head.append(SavedLayer(path, (dense_shape if kind == "Dense" else _norm)(settings_file(path))))
        elif kind == "Transformer" and pooling is None:
            encoder = path
            check_transformer(path)
        elif kind != "Dropout" or pooling is None:  # a module Dropout is ignored, because training has its own dropout
            raise _other(folder / MODULES, f"a module {kind[:40]!r} is not supported at this place")
    cosine, cut = _by_cosine(about, folder / ABOUT), _cut(about, folder / ABOUT)
    # The library truncates vectors after all modules, but this project truncates before ``normalise``. So if vectors
    # are normalised, truncated and compared by inner product, the last normalisation stays a layer of ``head``.
    normalise = cosine or (head[-1:] == [None] and cut is None)
    return SavedModules(VectorSettings(pooling or "cls", normalise, query, passage, cut), tuple(head), encoder)


def settings_file(module: Path) -> Path:
    """Return the file of the settings of a module that ``modules.json`` names."""
    file = module / "config.json"
    if not file.is_file():
        raise UserError(f"{file}: no such file, but {MODULES} names {module.name}; copy or download it again")
    return file


def routed(folder: Path) -> bool:
    """Return whether sentence-transformers encodes queries and passages with different modules.

    Raises:
        UserError: the files are not in the form that sentence-transformers writes, or they use route mappings, which are
            not supported.
    """
    return (folder / MODULES).exists() and modules_of(folder, "query") != modules_of(folder, "document")


def modules_of(folder: Path, route: Route) -> list[tuple[str, Path]]:
    """Return the class name and folder of each module, in order. The modules of ``route`` replace a ``Router``."""
    found = []
    for module in read_expected(folder / MODULES, list):
        kind = _kind(module)
        path = folder / str(module.get("path", "")) if isinstance(module, dict) else folder
        found += _routed(path, route) if kind in _ROUTERS else [(kind, path)]
    return found


def layers_after_pooling(folder: Path, settings: VectorSettings) -> list[str]:
    """Return the class names of the modules after the pooling, without the last normalisation if ``settings`` name it.

    A folder without sentence-transformers' files has none.
    """
    if not (folder / MODULES).exists():
        return []
    kinds = [kind for kind, _ in modules_of(folder, "document")][2:]
    return kinds[:-1] if settings.normalise and kinds[-1:] == ["Normalize"] else kinds


def _routed(folder: Path, route: Route) -> list[tuple[str, Path]]:
    file = next((one for one in (folder / ROUTER, folder / "config.json") if one.exists()), folder / ROUTER)
    about = read_expected(file, dict)
    types, structure, parameters = (about.get(name) or {} for name in ("types", "structure", "parameters"))
    if not all(isinstance(one, dict) for one in (types, structure, parameters)):
        raise UserError(f"{file}: not in the form that sentence-transformers writes; copy or download it again")
    if parameters.get("route_mappings"):
        raise UserError(f"{file}: route_mappings are not supported, only the routes query and document")
    names = structure.get(route)
    if not isinstance(names, list) or not all(isinstance(name, str) and name in types for name in names):
        raise UserError(f"{file}: structure must list the modules of the route {route!r}, and types the class of each")
    return [(_kind({"type": types[name]}), folder / name) for name in names]


def layer_weights(saved: SavedLayer) -> Path:
    """Return the file with the weights of a module: safetensors, or tensors pickled by torch.

    Raises ``UserError`` if there is no such file.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (saved.folder / name).is_file():
            return saved.folder / name
    what = f"no weights of this {KINDS[type(saved.shape)]} module"
    raise UserError(f"{saved.folder}: {what}; copy model.safetensors or pytorch_model.bin into it")


def longest_input(folder: Path) -> int | None:
    """Return the length, in tokens, to which sentence-transformers truncates inputs; None if the files do not name it."""
    for file, key in ((encoder_file(folder), "max_seq_length"), (folder / "tokenizer_config.json", "model_max_length")):
        length = read_expected(file, dict).get(key) if file.exists() else None
        if type(length) is int and 2 < length < 1 << 20:  # a tokenizer without limit has a huge number here
            return length
    return None


def encoder_file(folder: Path) -> Path:
    """Return the file of the settings of a module ``Transformer``; the file may be missing."""
    return next((folder / name for name in _TRANSFORMERS if (folder / name).exists()), folder / TRANSFORMER)


def check_transformer(folder: Path) -> None:
    """Raise ``UserError`` if the files of a module ``Transformer`` order something that is not done here.

    These are arguments for the model, its config or its tokenizer that change vectors, and texts that lose their beginning
    instead of their end. ``_check_case`` says what else.
    """
    file, words = encoder_file(folder), folder / "tokenizer_config.json"
    about, of_words = (read_expected(one, dict) if one.exists() else {} for one in (file, words))
    given = [(name, about[name]) for name in _ARGUMENTS if isinstance(about.get(name), dict)]
    given += [(f"{name}.{key}", one) for name, ones in given for key, one in ones.items() if isinstance(one, dict)]
    for name, ones in given:
        for key in (key for key, one in ones.items() if key not in _WITHOUT_EFFECT and not isinstance(one, dict)):
            raise UserError(
                f"{file}: {name}.{key} is {shown(str(ones[key]))!r}, which is not read here; remove the key, or save the"
                " model with a config.json and tokenizer files that need no such argument"
            )
    if of_words.get("truncation_side", "right") != "right":
        raise UserError(f"{words}: truncation_side is 'left', but here long texts lose their end; set it to right")
    _check_case(folder)


def _check_case(folder: Path) -> None:
    """Raise ``UserError`` if sentence-transformers lowercases texts but the tokenizer of the folder does not."""
    from condensery.tokens.tokenizer import load_tokenizer  # a dry run needs no tokenizer

    file, fast, letters = encoder_file(folder), folder / "tokenizer.json", " ".join(ascii_letters)
    if not file.exists() or not read_expected(file, dict).get("do_lower_case"):
        return
    tokenizer = load_tokenizer(folder)
    if tokenizer.tokenize(letters) != tokenizer.tokenize(letters.lower()):
        raise UserError(
            f"{file}: do_lower_case is true, but {fast if fast.exists() else folder} keeps capitals; load the model with"
            " sentence-transformers and save it again, to get a tokenizer that lowercases texts"
        )


def _kind(module: Any) -> str:
    """Return the class name of a module of the library, or the full type of any other module."""
    if not isinstance(module, dict):
        return "a bare value"
    kind = str(module.get("type", ""))
    return kind.rpartition(".")[2] if kind.startswith(_LIBRARY) else kind


def _pooling(file: Path, prompted: bool) -> Pooling:
    about = read_expected(file, dict)
    by = {name.removeprefix(_FLAG) for name, on in about.items() if name.startswith(_FLAG) and on is True}
    if "pooling_mode" in about:  # as newer releases write it
        mode = about["pooling_mode"]
        by = set(map(str, mode)) if isinstance(mode, list) else {str(mode)}
    pooling = _POOLINGS.get(next(iter(by or {"mean"}))) if len(by) <= 1 else None  # mean is the library's default
    if pooling is None:
        raise _other(file, f"the pooling is {', '.join(sorted(by))[:60]}")
    if pooling != "last" and prompted and about.get("include_prompt") is False:
        raise _other(file, "include_prompt is false, but here the tokens of the prompt are pooled too")
    return pooling


def dense_shape(file: Path, names: str = "sentence_embedding") -> DenseShape:
    """Read the shape of a module ``Dense`` from its config file.

    Raises ``UserError`` if it maps other vectors than ``names``, such as token_embeddings, or is not supported.
    """
    about = read_expected(file, dict)
    inputs, outputs = (about.get(key) for key in ("in_features", "out_features"))
    for key, value in (("in_features", inputs), ("out_features", outputs)):
        must_be(COUNT, type(value) is int and value >= 1, f"{file}: {key}", value)
    bias, named = about.get("bias", True), about.get("activation_function", "torch.nn.modules.activation.Tanh")
    must_be("true or false", isinstance(bias, bool), f"{file}: bias", bias)
    place, _, activation = str(named or "torch.nn.modules.linear.Identity").rpartition(".")
    if activation not in ACTIVATIONS or place not in ("torch.nn", ACTIVATIONS[activation]):
        raise _other(file, f"activation_function is {shown(str(named))!r}, not one of {', '.join(ACTIVATIONS)}")
    for key in ("module_input_name", "module_output_name"):
        if about.get(key) not in (None, names):
            raise _other(file, f"{key} is {shown(str(about[key]))!r}")
    if about.get("use_residual"):
        raise _other(file, "use_residual is true, but residual connections are not supported")
    return DenseShape(inputs, outputs, bias, activation)


def _norm(file: Path) -> NormShape:
    size = read_expected(file, dict).get("dimension")
    must_be(COUNT, type(size) is int and size >= 1, f"{file}: dimension", size)
    return NormShape(size, size)


def _by_cosine(about: dict[str, Any], file: Path) -> bool:
    similarity = about.get("similarity_fn_name")
    if similarity not in (None, "dot", "dot_score", *_COSINE):
        raise _other(file, f"similarity_fn_name is {str(similarity)[:40]!r}")
    return similarity in _COSINE


def _cut(about: dict[str, Any], file: Path) -> int | None:
    cut = about.get("truncate_dim")
    must_be(COUNT, cut is None or (type(cut) is int and cut >= 1), f"{file}: truncate_dim", cut)
    return cut


def _prompt(about: dict[str, Any], names: tuple[str, ...], file: Path) -> str:
    """Return the prompt for queries or for passages: the first prompt among ``names`` that is not empty."""
    prompts = about.get("prompts") or {}
    must_be("an object with a text for each name", isinstance(prompts, dict), f"{file}: prompts", prompts)
    prompt = next((prompts[name] for name in names if prompts.get(name)), "")
    must_be("a text", isinstance(prompt, str), f"{file}: a prompt", prompt)
    return prompt


def check_default_prompt(about: dict[str, Any], file: Path) -> None:
    """Raise ``UserError`` if ``default_prompt_name`` names no prompt, as the library does. It always has two prompts."""
    default, known = about.get("default_prompt_name"), ["query", "document", *(about.get("prompts") or {})]
    must_be(f"null or one of {', '.join(known)}", default in [None, *known], f"{file}: default_prompt_name", default)


def must_be(needed: str, right: bool, what: str, value: Any) -> None:
    """Raise ``UserError`` unless ``right``. The message names file and key (``what``), the value, and the valid values."""
    if not right:
        raise UserError(f"{what} is {str(value)[:40]!r}; it must be {needed}")


def read_expected(file: Path, kind: type) -> Any:
    content = read_json(file)
    if not isinstance(content, kind):
        raise UserError(f"{file}: not in the form that sentence-transformers writes; copy or download it again")
    return content


def _other(file: Path, what: str) -> UserError:
    return UserError(
        f"{file}: {what}; supported are the poolings {', '.join(_FLAGS)}, then modules Dense, LayerNorm and Normalize in any"
        " order, and a comparison of vectors by inner product or cosine"
    )
