"""Checks of the library that provides a module's layers.

Decides: what Transformer Engine is asked for and cannot do; what is known of it without importing
it.
Relies on: its sources (2.20): 16-bit attention kernels, heads in steps of 8 numbers up to 256, and
a ring that cuts each document into chunks of its own.
Leaves: whether it works on a host to the workers, who import it.
"""

from collections.abc import Iterator

from mimo_launch.checks.packages import is_installed
from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related, YamlPath
from mimo_launch.layout.encoder_placement import LANGUAGE
from mimo_launch.spec.model import (
    AudioModel,
    CustomModel,
    DecoderModel,
    HybridModel,
    LanguageModel,
    Spec,
    SyntheticData,
    VitModel,
)

ENGINE = "transformer_engine"
# The bounds of an extra in pyproject.toml, which a test compares.
REQUIREMENT = "transformer-engine[pytorch]>=2.20"
HEAD_STEP, LARGEST_HEAD = 8, 256


def backend_can(spec: Spec, name: str) -> Findings:
    """The backend computes in this type, with these heads, on this grid."""
    module = spec.modules[name]
    if module.backend != ENGINE:
        return
    precision = spec.train.precision
    if precision != "bf16":
        yield _cannot(
            name,
            f"compute in {precision}",
            "its attention kernels take 16-bit numbers",
            "write `precision: bf16` under `train`",
            Related(path=("train", "precision"), label=precision),
        )
    model = module.model
    if isinstance(model, CustomModel | HybridModel):
        yield _without_its_layers(name, model)
        return
    yield from _in_blocks(name, model)
    if module.grid.cp > 1 and name == LANGUAGE and (key := _packs(spec)):
        yield _cannot(
            name,
            f"attend to packed documents with cp {module.grid.cp}",
            "its ring cuts every document into chunks, and here whole sequences are cut",
            f"write `cp: 1`, or no `{key}`",
            Related(path=("data", key), label="packs documents"),
        )


def _without_its_layers(name: str, model: CustomModel | HybridModel) -> Diagnostic:
    """Return what is said of models whose layers it does not have at all."""
    path = ("modules", name, "model", "kind")
    if isinstance(model, CustomModel):
        return _cannot(
            name,
            "provide the layers of a class of your own",
            "it stands for this program's blocks only",
            "delete the line",
            Related(path=path, label="your class"),
        )
    return _cannot(
        name,
        "provide the layers of a hybrid model",
        "it has no Mamba layers, and its attention is used in this program's blocks only",
        "keep the layers of torch, whose Mamba uses the kernels of mamba-ssm where installed",
        Related(path=path, label="hybrid"),
    )


def _in_blocks(name: str, model: VitModel | AudioModel | DecoderModel) -> Findings:
    """Yield what the blocks of a model have, and its blocks do not."""
    path = ("modules", name, "model")
    if isinstance(model, VitModel) and model.class_token:
        yield _cannot(
            name,
            "attend to class tokens",
            "its kernels take the tokens of an image one after another, and class tokens stand "
            "behind the patches of all images",
            "delete `class_token`",
            Related(path=(*path, "class_token"), label="a class token"),
        )
    if isinstance(model, LanguageModel) and model.moe is not None:
        yield _cannot(
            name,
            "provide experts",
            "it stands for the dense block only",
            "keep the layers of torch for this module",
            Related(path=(*path, "moe"), label="experts"),
        )
    size = model.head_size if isinstance(model, LanguageModel) else model.hidden // model.heads
    if size % HEAD_STEP or size > LARGEST_HEAD:
        given = "head_dim" if isinstance(model, LanguageModel) and model.head_dim else "heads"
        yield _cannot(
            name,
            f"attend with heads {size} wide",
            f"its kernels take heads of {HEAD_STEP}, {2 * HEAD_STEP}, ... {LARGEST_HEAD} numbers",
            "choose heads of such a width",
            Related(path=(*path, given), label=f"{size} wide"),
        )
    if isinstance(model, AudioModel):
        yield _cannot(
            name,
            "leave out the biases of keys alone",
            "its fused projection has one bias for queries, keys and values, and Whisper's keys "
            "have none",
            "keep the layers of torch for this module",
            Related(path=(*path, "kind"), label="an audio encoder"),
        )


def _packs(spec: Spec) -> str:
    """Return the key that puts several documents into a sample, or nothing."""
    data = spec.data
    if isinstance(data, SyntheticData) and data.max_documents > 1:
        return "max_documents"
    return "packing" if data.packing else ""


def backends_are_here(spec: Spec) -> Iterator[Diagnostic]:
    """Every backend is installed on the host that is to use it."""
    for name, module in spec.modules.items():
        if module.backend == ENGINE and not is_installed(ENGINE):
            yield Diagnostic(
                code="missing-package",
                headline="`transformer-engine` is not installed",
                path=_path(name),
                why=f"`{name}` takes its layers from it",
                help=f"pip install '{REQUIREMENT}', or use torch's layers with "
                + torchs_layers(spec, name),
            )


def torchs_layers(spec: Spec, name: str) -> str:
    """Return the options of the command line with which a module has torch's layers."""
    eight_bits = "" if spec.modules[name].fp8 is None else f" --set modules.{name}.fp8=null"
    return f"--set modules.{name}.backend=torch{eight_bits}"


def _path(name: str) -> YamlPath:
    return ("modules", name, "backend")


def _cannot(name: str, what: str, why: str, help_: str, related: Related) -> Diagnostic:
    return Diagnostic(
        code="backend-cannot",
        headline=f"`{name}`: {ENGINE} cannot {what}",
        path=_path(name),
        why=why,
        help=f"{help_}, or `backend: torch`",
        related=(related,),
    )
