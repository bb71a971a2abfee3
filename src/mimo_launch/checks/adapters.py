"""Checks of adapters and dropout: what can have them, and which maps the targets name.

Decides: that every target must name a map that the module has, where an adapter may start, and
which modules drop numbers.
Relies on: `kinds` for the maps of each layer, `hugging_face` for folders of peft.
Leaves: values that are wrong by themselves to `spec`.
"""

from collections.abc import Iterator
from pathlib import Path

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity, YamlPath
from mimo_launch.hugging_face.adapter_config import read_adapter_config
from mimo_launch.hugging_face.folder import FilesError, is_hugging_face
from mimo_launch.kinds.adapters import EXPERTS, is_adapter
from mimo_launch.kinds.kind import ModelKind, layer_shape
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.weights import Adapter
from mimo_launch.spec.adapters import AdapterSpec, adapter_in
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.conformer import ConformerModel
from mimo_launch.spec.load import saved_spec
from mimo_launch.spec.near_words import did_you_mean
from mimo_launch.spec.spec import AudioModel, LanguageModel, Spec, VitModel
from mimo_launch.spec.wording import flow

# The words of other programs for all maps of a layer.
_ALL = ("all-linear", "all", "linear")


def adapter_has_place(spec: Spec, name: str) -> Findings:
    """An adapter is beside layers of torch, which train nothing else."""
    module = spec.modules[name]
    if module.adapter is None:
        return
    path = ("modules", name)
    if kind_of(module.model).is_custom:
        yield _cannot(
            name,
            "the layers of your own class have no place for one",
            "delete `adapter`, and freeze weights in the class with `requires_grad_(False)`",
        )
    if module.backend != "torch":
        yield _cannot(
            name,
            "layers of Transformer Engine have no place for one",
            "write `backend: torch`",
            Related((*path, "backend"), f"backend: {module.backend}"),
        )
    if module.frozen is True or len(module.frozen_layers) == module.model.layers:
        yield Diagnostic(
            code="adapter-frozen",
            headline=f"`{name}` is frozen and has an adapter",
            path=(*path, "frozen"),
            why="an adapter trains, and the weights of a module with an adapter are frozen anyway",
            help="write `frozen: false`; `frozen: {layers: 0-11}` keeps it out of these layers",
            related=(Related((*path, "adapter"), "adapter"),),
        )


def dropout_has_place(spec: Spec, name: str) -> Findings:
    """Language, and encoders of images and clips drop numbers; only language those of attention."""
    module = spec.modules[name]
    if not module.drops:
        return
    of_adapter = module.adapter is not None and module.adapter.dropout > 0
    key = "dropout" if module.dropout else "attention_dropout"
    path = (*(("adapter", "dropout") if of_adapter and not module.dropout else (key,)),)
    drops_nothing = isinstance(module.model, ConformerModel)
    if drops_nothing or not isinstance(module.model, LanguageModel | VitModel | AudioModel):
        kind = module.model.kind
        yield Diagnostic(
            code="dropout-cannot",
            headline=f"`{name}` cannot drop numbers",
            path=("modules", name, *path),
            why=f"the blocks of a `{kind}` drop nothing"
            if drops_nothing
            else f"the tokens of a model of kind {kind} have no numbers that are the same on every "
            "layout",
            help=f"delete `{path[-1]}`",
        )
    elif module.backend != "torch":
        yield Diagnostic(
            code="dropout-cannot",
            headline=f"`{name}` cannot drop numbers",
            path=("modules", name, *path),
            why="layers of Transformer Engine draw other numbers on every rank",
            help=f"write `backend: torch`, or delete `{path[-1]}`",
            related=(Related(("modules", name, "backend"), f"backend: {module.backend}"),),
        )
    elif module.adapter is not None and of_adapter and EXPERTS in module.adapter.targets:
        yield Diagnostic(
            code="dropout-cannot",
            headline=f"updates of the experts of `{name}` cannot drop inputs",
            path=("modules", name, "adapter", "dropout"),
            why="experts get tokens in an order of their own, without their numbers; peft has no "
            "such dropout either",
            help="delete `dropout` of `adapter`, or leave `experts` out of `targets`",
        )
    elif module.attention_dropout and name != LANGUAGE:
        yield Diagnostic(
            code="dropout-cannot",
            headline=f"`{name}` cannot drop weights of attention",
            path=("modules", name, "attention_dropout"),
            why="attention inside images never holds its weights",
            help=f"write `dropout: {module.attention_dropout}` for what layers add, or delete it",
        )


def targets_are_maps(spec: Spec, name: str) -> Findings:
    """Every target of an adapter names a map, or a part of a layer that holds maps."""
    module = spec.modules[name]
    if module.adapter is None or len(module.frozen_layers) == module.model.layers:
        return
    kind = kind_of(module.model)
    known = tuple(dict.fromkeys(targets_of(kind, module.model.layers, module.frozen_layers)))
    wrong = [each for each in module.adapter.targets if each not in known]
    if not wrong:
        return
    meant = {each: _meant(each, known) for each in module.adapter.targets}
    wrong = [each for each in wrong if not meant[each]] or wrong
    if "targets" not in module.adapter.model_fields_set:
        meant = {each: (each,) if each in known else known[:1] for each in meant}
    apart = " outside its frozen layers" if module.frozen_layers else ""
    offer = list(dict.fromkeys(each for names in meant.values() for each in names))
    yield Diagnostic(
        code="adapter-target-unknown",
        headline=f"no layer of `{name}` has a map `{wrong[0]}`",
        path=("modules", name, "adapter", "targets", module.adapter.targets.index(wrong[0])),
        why=f"the maps of `{name}`{apart} are {', '.join(f'`{each}`' for each in known)}"
        if known
        else f"the layers of `{name}` have no maps",
        help=f"write `targets: {flow(offer)}`"
        if all(meant.values())
        else did_you_mean(wrong[0], known) or "delete the target, or name one of these",
    )


def start_is_an_adapter(spec: Spec, name: str) -> Findings:
    """`adapter.init_from` is a folder of peft beside a Hugging Face folder, of the same rank."""
    module = spec.modules[name]
    if module.adapter is None or module.adapter.init_from is None:
        return
    path, folder = ("modules", name, "adapter", "init_from"), Path(module.adapter.init_from)
    if module.init_from is None or not is_hugging_face(Path(module.init_from)):
        yield _bad_start(
            path,
            f"the adapter of `{name}` starts without the weights that it is for",
            "its names are those of a Hugging Face folder",
            f"write `init_from` of `{name}`, with the folder that the adapter was trained on",
        )
        return
    try:
        config = read_adapter_config(folder)
    except FilesError as error:
        why = "peft writes both, and so does `mimo-launch export --adapter`"
        yield _bad_start(path, str(error), why, "name another folder, or delete the line")
        return
    for setting in config.refusals():
        headline = f"{folder} has an adapter with `{setting}`"
        why, help_ = "its update would be another one", "merge it into the weights with peft"
        yield _bad_start(path, headline, why, help_)
    patterns = config.settings.get("rank_pattern") or config.settings.get("target_parameters")
    if not patterns and config.rank != module.adapter.rank:
        yield _bad_start(
            path,
            f"the adapter in {folder} has rank {config.rank}, and `rank` is {module.adapter.rank}",
            "a matrix of another rank has another shape",
            f"write `rank: {config.rank}`",
        )


def start_keeps_its_adapter(spec: Spec, name: str) -> Findings:
    """A run in `init_from` that trained an adapter goes on with one of its rank."""
    module = spec.modules[name]
    found = None if module.init_from is None else saved_spec(Path(module.init_from))
    try:
        there = None if found is None else adapter_in(found, name)
    except (LookupError, ValueError, TypeError, AttributeError):
        return  # The checkpoint is from another release; `checkpoint` compares tensors.
    if there is None or (module.adapter is not None and module.adapter.rank == there.rank):
        return
    here = "has none" if module.adapter is None else f"has rank {module.adapter.rank}"
    yield Diagnostic(
        code="adapter-start-unlike",
        headline=f"{module.init_from} has an adapter of rank {there.rank} for `{name}`, "
        f"which {here} here",
        path=("modules", name) if module.adapter is None else ("modules", name, "adapter", "rank"),
        severity=Severity.WARNING if module.init_partial else Severity.ERROR,
        why="the weights there were trained with that adapter, and would start without it",
        help=f"write `rank: {there.rank}`"
        + ", or `init_partial: true` to start another adapter" * (not module.init_partial)
        if module.adapter
        else f"write `adapter: {{rank: {there.rank}, targets: {flow(there.targets)}}}` in "
        f"`{name}`, or start from the folder that `mimo-launch export` writes",
    )


def _bad_start(path: YamlPath, headline: str, why: str, help_: str) -> Diagnostic:
    return Diagnostic(
        code="adapter-start-unlike", headline=headline, path=path, why=why, help=help_
    )


def _cannot(name: str, why: str, help_: str, *related: Related) -> Diagnostic:
    return Diagnostic(
        code="adapter-cannot",
        headline=f"`{name}` cannot have an adapter",
        path=("modules", name, "adapter"),
        why=why,
        help=help_,
        related=related,
    )


def targets_of(kind: ModelKind, layers: int, frozen: range = range(0)) -> Iterator[str]:
    """Yield the parts of layers with maps, and the maps, as targets name them; none of `frozen`."""
    shapes = (layer_shape(kind, number) for number in range(layers) if number not in frozen)
    for shape in dict.fromkeys(shapes):
        words = (word for held in shape.weights() for each in held for word in each.name.split("."))
        every = Adapter(1, 1.0, frozenset(words))
        for held in shape.weights(adapter=every):
            for each in held:
                if each.experts and is_adapter(each.name):
                    yield EXPERTS
                elif is_adapter(each.name):
                    yield from each.name.split(".")[:-2]


def _meant(target: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the targets that a word of another program means."""
    if target in _ALL:
        return tuple(each for each in AdapterSpec.model_fields["targets"].default if each in known)
    plain = target.rpartition(".")[2].removesuffix("_proj")
    return (plain,) if plain in known else ()
