"""The data of a step on a layout: views for replicas and groups or microbatches; who reads data.

Decides: which samples of a step each replica works on, each computed once; which ranks need texts,
documents, answers and pixels.
Relies on: `shares` for who encodes a sample, `replica_views` for a replica's facts about samples.
Leaves: pairing the two ends of a bridge to `bridge_routing`, reading to `train.prefetch`, tensors
to `runtime`.

Pixels are read only on the first stage of an encoder; later stages know the sizes of images from
the StepData. Which patches a cp rank holds depends on which samples are readable, so every cp rank
reads all pixels of its replica.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.balance import even_share, even_shares, replicas_that_share
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.replica_views import EncoderView, LanguageView, pieces_of
from mimo_launch.layout.row_owners import Piece, Run
from mimo_launch.layout.samples import Bridge
from mimo_launch.layout.shares import Share, Shares, shared_out
from mimo_launch.layout.stages import Stage
from mimo_launch.layout.step_data import StepData
from mimo_launch.spec.base import LANGUAGE, Axis

if TYPE_CHECKING:
    from mimo_launch.layout.step_data import Int64s


@frozen
class Imbalance:
    """The imbalance of encoder replicas in a step: most rows of one over the mean of all.

    `before` is for the even cut, `after` for balanced samples; 1.0 without images.
    """

    before: float
    after: float

    @classmethod
    def of(cls, even: "Int64s", after: int) -> "Imbalance":
        """Return it from the rows of each replica by the even cut, and the most after balancing."""
        if not (total := int(even.sum())):
            return cls(1.0, 1.0)
        mean = total / len(even)
        return cls(int(even.max()) / mean, after / mean)


@frozen(eq=False, slots=False)
class StepViews:
    """The data of one step on a layout: a view for each replica and group, made on demand.

    # Invariant: a pure function of (Layout, StepData as indexed), so all ranks get the same views.
    """

    layout: Layout
    data: StepData
    _encoders: dict[tuple[str, int, int], EncoderView] = field(default_factory=dict, init=False)

    def encoder(self, name: str, replica: int, group: int) -> EncoderView:
        """Return the samples that one encoder replica encodes for one group, as a view."""
        key = (name, replica, group)
        if key not in self._encoders:
            share = self._share(self.layout[name], replica, group)
            self._encoders[key] = EncoderView(
                self.layout[name], self.data, replica, share.samples, share.split
            )
        return self._encoders[key]

    def language(self, replica: int, microbatch: int) -> LanguageView:
        """Return one microbatch of one language replica."""
        samples = self.layout.samples.language(replica, microbatch)
        return LanguageView(self.layout, self.data, replica, samples)

    def source_pieces(self, bridge: Bridge, replica: int, forward: int) -> dict[int, list[Piece]]:
        """Return, per sample, the rows that ranks own in a forward of a bridge's source."""
        if self.layout[bridge.source].is_language:
            last = len(self.layout.language.stages) - 1
            return self.language(replica, forward).pieces(bridge.target, last)
        return self.encoder(bridge.source, replica, forward).pieces

    def target_pieces(self, bridge: Bridge, replica: int, forward: int) -> dict[int, list[Piece]]:
        """Return, per sample, the rows that ranks own in the input of a bridge's target."""
        target = self.layout[bridge.target]
        if target.is_language:
            return self.language(replica, forward).pieces(bridge.source)
        view = self.encoder(bridge.target, replica, forward)
        return pieces_of(target, replica, 0, lambda cp: view.cuts(bridge.source, cp))

    def places(
        self, bridge: Bridge, module: str, replica: int, forward: int, cp: int
    ) -> tuple[list[Run], list[list[Run]]]:
        """Return the places of a bridge's rows in a forward of one of its ends, on a cp rank.

        First the runs of all rows in the token list of the cp rank, then the runs that each tp rank
        owns.
        """
        other = bridge.target if module == bridge.source else bridge.source
        view: LanguageView | EncoderView = (
            self.language(replica, forward)
            if module == LANGUAGE
            else self.encoder(module, replica, forward)
        )
        return view.runs(other, cp), view.cuts(other, cp)

    def samples_of(self, module: ModuleLayout, rank: int) -> tuple[int, ...]:
        """Return the samples of a rank's replica of a module, in the order of the step."""
        replica, forwards = module.grid.index(Axis.DP, rank), range(self.layout.num_groups(module))
        found = (self.samples_at(module, replica, forward) for forward in forwards)
        return tuple(sorted(sample for samples in found for sample in samples))

    def split_of(self, module: ModuleLayout, rank: int) -> dict[int, frozenset[int]]:
        """Return the places of the images that a rank's replica encodes of split samples."""
        replica, forwards = module.grid.index(Axis.DP, rank), range(self.layout.num_groups(module))
        found: dict[int, frozenset[int]] = {}
        for forward in forwards:
            found |= self.split_at(module, replica, forward)
        return found

    def split_at(
        self, module: ModuleLayout, replica: int, forward: int
    ) -> dict[int, frozenset[int]]:
        """Return the same for one forward of a replica."""
        if module.is_language:
            return {}
        view = self.encoder(module.name, replica, forward)
        return {sample: view.places(sample) for sample in view.split}

    def samples_at(self, module: ModuleLayout, replica: int, forward: int) -> Sequence[int]:
        """Return the samples of one forward of a replica, in the order in which it runs them."""
        if module.is_language:
            return self.language(replica, forward).samples
        return self.encoder(module.name, replica, forward).samples

    def even_loads(self, module: ModuleLayout) -> "Int64s":
        """Return the rows of each replica of an encoder in the step by the even cut, as indexed."""
        groups = range(self.layout.num_groups(module))
        shares = (even_shares(self.layout, module, group) for group in groups)
        rows = self.data.rows_of_samples(module.name)
        loads: Int64s = sum(rows[samples].sum(axis=1) for samples in shares)
        return loads

    def load(self, module: ModuleLayout, replica: int) -> int:
        """Return the rows of one replica of an encoder in the whole step, as indexed."""
        groups = range(self.layout.num_groups(module))
        return sum(self._share(module, replica, group).rows for group in groups)

    def imbalance(self, module: ModuleLayout) -> Imbalance:
        """Return the imbalance of an encoder over the whole step, as indexed.

        All replicas are dealt their samples. A rank of a run deals out those of its own island, and
        the ranks exchange their loads: see `train.prefetch`.
        """
        replicas = range(module.grid.size(Axis.DP))
        most = max(self.load(module, replica) for replica in replicas)
        return Imbalance.of(self.even_loads(module), most)

    def _share(self, module: ModuleLayout, replica: int, group: int) -> Share:
        inside = replicas_that_share(self.layout, module)
        if inside == 1:
            samples = even_share(self.layout, module, replica, group)
            return Share(samples, sum(self.data.rows(module.name, samples)))
        island, place = divmod(replica, inside)
        how = self.layout.samples, module.group_size, module.in_phases, module.grid.size(Axis.DP)
        key, known = (module.name, island, inside, *how), self.data.shares
        if key not in known:
            known[key] = shared_out(self.layout, self.data, module, island)
        shares: tuple[Shares, ...] = known[key]
        return shares[group][place]


@frozen
class Reads:
    """Positions in the step of the samples that one rank reads, by the part that it reads.

    Of samples in `split` it reads only images of some places, as indexed.
    """

    texts: tuple[int, ...]
    documents: tuple[int, ...]
    answers: tuple[int, ...]
    images: dict[str, tuple[int, ...]]
    columns: tuple[int, ...] = ()
    split: dict[str, dict[int, frozenset[int]]] = field(default_factory=dict)


def reads_of(views: StepViews, rank: int, *, decode: bool) -> Reads:
    """Return what `rank` reads of a step; with `decode`, also what it needs to score answers."""
    layout = views.layout
    texts: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    documents: tuple[int, ...] = ()
    answers: tuple[int, ...] = ()
    readers = [
        module for module in layout.modules if rank in module.grid and needs_arrays(module, rank)
    ]
    images = {module.name: views.samples_of(module, rank) for module in readers}
    split = {module.name: views.split_of(module, rank) for module in readers}
    language = layout.language
    if rank in language.grid:
        documents = views.samples_of(language, rank)
        # Tokens go into the first stage, labels into the last; labels also say where prompts end.
        ends = any(stage.is_first or stage.is_last for stage in language.stages_of(rank))
        if decode or ends or language.whole_prompts:
            texts = documents
        if any(stage.is_last for stage in language.stages_of(rank)):
            columns = documents
        if decode and is_scorer(language, rank):
            answers = documents
    return Reads(texts, documents, answers, images, columns, split)


def needs_arrays(module: ModuleLayout, rank: int) -> bool:
    """Return whether a rank reads images.

    The first stage does, and the last stage of a generator or of an encoder that keeps rows. Other
    stages know the sizes of images from the StepData.
    """
    return takes_arrays(module, module.stages_of(rank))


def takes_arrays(module: ModuleLayout, held: Iterable[Stage]) -> bool:
    """Return whether a rank that holds these stages of a module reads images."""
    return module.reads_arrays and any(
        stage.is_first or (stage.is_last and (module.computes_loss or module.keeps_rows))
        for stage in held
    )


def is_scorer(language: ModuleLayout, rank: int) -> bool:
    """Return whether `rank` is the rank of its replica that scores the answers."""
    return not any(language.grid.index(axis, rank) for axis in (Axis.TP, Axis.CP, Axis.PP))
