"""Draws what trains in a spec: low-rank updates of some maps, or some layers. Imports no torch."""

from hypothesis import strategies as st

from mimo_launch.checks.adapters import targets_of
from mimo_launch.checks.quantized_base import base_has_place, cuts_lie_between_blocks
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.adapters import AdapterSpec
from mimo_launch.spec.conformer import ConformerModel
from mimo_launch.spec.module import FrozenLayers, ModuleSpec
from mimo_launch.spec.quantized_base import QuantizedBase
from mimo_launch.spec.spec import AudioModel, LanguageModel, Spec, VitModel

# Small widths have blocks of two inputs.
FEW = QuantizedBase(kind="int8", block=2)


@st.composite
def partly_trained(draw: st.DrawFn, made: Spec) -> Spec:
    """Give some modules of a spec adapters, or frozen layers; they are as valid as before."""
    drawn = {name: draw(_part_of(module)) for name, module in made.modules.items()}
    found = made.replace(modules=drawn)
    for name, module in drawn.items():
        kept = found.replace(modules={**found.modules, name: module.replace(quantize_base=FEW)})
        fits = not [*base_has_place(kept, name), *cuts_lie_between_blocks(kept, name)]
        found = kept if fits and draw(st.booleans()) else found
    return found


@st.composite
def _part_of(draw: st.DrawFn, module: ModuleSpec) -> ModuleSpec:
    if module.adapter is not None:
        return module
    what = draw(st.sampled_from(["all", "adapter", "all", "layers"]))
    layers = module.model.layers
    if what == "layers" and module.frozen is False:
        first = draw(st.integers(0, layers - 1))
        last = draw(st.integers(first, layers - 1))
        return module.replace(frozen=FrozenLayers(layers=f"{first}-{last}"))
    targets = tuple(dict.fromkeys(targets_of(kind_of(module.model), layers)))
    if what != "adapter" or not targets or isinstance(module.model, ConformerModel):
        return module
    chosen = tuple(sorted(draw(st.sets(st.sampled_from(targets), min_size=1))))
    drops = isinstance(module.model, LanguageModel | VitModel | AudioModel)
    drops = drops and "experts" not in chosen
    adapter = AdapterSpec(
        rank=draw(st.integers(1, 3)),
        alpha=draw(st.sampled_from([None, 5.0])),
        rslora=draw(st.booleans()),
        dropout=draw(st.sampled_from([0.0, 0.0, 0.5])) if drops else 0.0,
        targets=chosen,
    )
    kept = module.frozen if module.frozen == "except_projector" else False
    if kept is False and draw(st.integers(0, 3)) == 0:
        spared = draw(st.integers(0, layers - 1))
        bare = set(targets_of(kind_of(module.model), layers, frozen=range(spared, spared + 1)))
        kept = FrozenLayers(layers=str(spared)) if bare >= set(chosen) else False
    return module.replace(adapter=adapter, frozen=kept)


def parts_trained(made: Spec) -> set[str]:
    """Name what of modules trains."""
    found = set()
    for name, module in made.modules.items():
        role = "language" if name == "language" else "another module"
        found |= {f"adapter of {role}"} if module.adapter else set()
        found |= {"adapter with dropout"} if module.adapter and module.adapter.dropout else set()
        found |= {f"frozen layers of {role}"} if module.frozen_layers else set()
        found |= {"base in few bits"} if module.quantize_base else set()
        found |= {"shards over a part of dp"} if module.shard_over else set()
    return found
