"""A timeline in the trace event format, which ui.perfetto.dev and chrome://tracing open.

Decides: which ranks a trace shows; that each rank is a process with one track for compute and more
for transfers; arrows from sends to their receives; that a model unit is drawn as a millisecond.
Relies on: `spans`; the format is described at
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
Leaves: the file to the caller.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import role_text
from mimo_launch.drawing.spans import (
    MOST_RANKS,
    Span,
    Timeline,
    Unit,
    alike,
    describe,
    role_of_spans,
)
from mimo_launch.schedule.actions import Action, Kind

MICROSECONDS = {Unit.MODEL: 1e3, Unit.ESTIMATED: 1e6, Unit.SECONDS: 1e6}
# Viewers bind an arrow to the slice that is open where it ends, so no transfer may have length 0.
SLICE_OF_TRANSFER = 1.0
COMPUTE_TRACK = 0
# A span takes about 250 bytes.
MAX_SPANS = 200_000

TraceEvent = dict[str, Any]
_Edge = tuple[str, int | None, bool, int]


def ranks_shown(timeline: Timeline, most_spans: int = MAX_SPANS) -> tuple[int, ...]:
    """Return the ranks that a trace shows by default: one of each kind, and at least one.

    The list stops at `most_spans` spans, so that the file stays small enough for viewers (50 MB).
    """
    rows, shown, spans = timeline.by_rank(), list[int](), 0
    for ranks in alike(timeline)[:MOST_RANKS]:
        spans += len(rows[ranks[0]])
        if spans > most_spans and shown:
            break
        shown.append(ranks[0])
    return tuple(shown)


def render_trace(timeline: Timeline, *, name: str, ranks: Sequence[int] | None = None) -> str:
    """Return a trace of `ranks` and of the transfers between them, as JSON."""
    shown = ranks_shown(timeline) if ranks is None else ranks
    rows, scale = timeline.by_rank(), MICROSECONDS[timeline.unit]
    events: list[TraceEvent] = []
    tracks: dict[Span, int] = {}
    for each in shown:
        tracks |= _tracks(rows[each], scale)
        used = {tracks[span] for span in rows[each]}
        role = role_text(role_of_spans(rows[each]))
        base: TraceEvent = {"ph": "M", "pid": each}
        events.append({**base, "name": "process_name", "args": {"name": f"rank {each}: {role}"}})
        events.append({**base, "name": "process_sort_index", "args": {"sort_index": each}})
        for track in sorted(used):
            label = "compute" if track == COMPUTE_TRACK else f"transfers {track}"
            args = {"name": label}
            events.append({**base, "tid": track, "name": "thread_name", "args": args})
    spans = [span for each in shown for span in rows[each]]
    drawn = _DrawnSpans(spans, tracks, scale)
    # An arrow must follow the slices that it joins; the stable sort ensures this at equal times.
    timed = (*drawn.slices(), *drawn.arrows())
    events.extend(sorted(timed, key=lambda event: float(event["ts"])))
    other = {"name": name, "unit": timeline.unit.value, "makespan": timeline.makespan}
    if len(shown) < timeline.num_ranks:
        other["ranks"] = f"{len(shown)} of {timeline.num_ranks}"
    lines = ",\n".join(json.dumps(event) for event in events)
    head = f'"displayTimeUnit": "ms", "otherData": {json.dumps(other)}'
    return f'{{{head}, "traceEvents": [\n{lines}\n]}}\n'


def _tracks(spans: Iterable[Span], scale: float) -> dict[Span, int]:
    """Return a track for each span; a transfer gets the first track with no open span."""
    free: list[float] = []
    tracks = {}
    for span in spans:
        if span.is_compute:
            tracks[span] = COMPUTE_TRACK
            continue
        start = span.start * scale
        lane = next((n for n, until in enumerate(free) if until <= start), len(free))
        free[lane : lane + 1] = [_end(span, scale)]
        tracks[span] = COMPUTE_TRACK + 1 + lane
    return tracks


def _end(span: Span, scale: float) -> float:
    return span.stop * scale + (0.0 if span.is_compute else SLICE_OF_TRANSFER)


@frozen
class _DrawnSpans:
    """Spans with their tracks; a unit of their time is `scale` microseconds."""

    spans: list[Span]
    tracks: dict[Span, int]
    scale: float

    def slices(self) -> Iterator[TraceEvent]:
        """Yield a slice for each span."""
        for span in self.spans:
            action, start = span.action, span.start * self.scale
            category = "compute" if span.is_compute else "transfer"
            if action.kind is Kind.FORWARD:
                category += ",forward"
            elif action.kind is Kind.BACKWARD:
                category += ",backward"
            yield {
                "name": str(action) if span.is_compute else describe(action),
                "cat": category,
                "ph": "X",
                "pid": span.rank,
                "tid": self.tracks[span],
                "ts": start,
                "dur": _end(span, self.scale) - start,
                "args": {
                    "module": action.module,
                    "stage": action.stage,
                    "kind": action.kind.value,
                    "index": action.index,
                    **({"to": list(span.peers)} if span.peers else {}),
                },
            }

    def arrows(self) -> Iterator[TraceEvent]:
        """Yield both ends of the arrow of each transfer between two ranks.

        The n-th send of a channel matches its n-th receive, within a step and over several.
        """
        receives: defaultdict[tuple[int, _Edge], list[Span]] = defaultdict(list)
        for span in self.spans:
            if span.action.kind in (Kind.RECV_F, Kind.RECV_B):
                receives[span.rank, edge_of(span.action)].append(span)
        sent: defaultdict[tuple[int, int, _Edge], int] = defaultdict(int)
        number = 0
        for span in self.spans:
            edge = edge_of(span.action)
            for peer in span.peers:
                turn = sent[span.rank, peer, edge]
                sent[span.rank, peer, edge] += 1
                if turn >= len(receives[peer, edge]):
                    continue
                receive = receives[peer, edge][turn]
                number += 1
                # Both ends lie inside their slices: after the sender starts, and before the
                # receiver ends.
                leave = span.start * self.scale
                base = {"cat": "transfer", "name": span.action.module, "id": number}
                yield {**base, "ph": "s", "pid": span.rank, "tid": self.tracks[span], "ts": leave}
                arrive = min(max(leave, receive.start * self.scale), _end(receive, self.scale))
                end = {"pid": receive.rank, "tid": self.tracks[receive], "ts": arrive}
                yield {**base, "ph": "f", "bp": "e", **end}


def edge_of(action: Action) -> _Edge:
    """Return the key that both ends of a transfer share; between stages, it has the upper stage."""
    lower = action.kind in (Kind.RECV_F, Kind.SEND_B)
    stage = None if action.stage is None else action.stage - lower
    return action.module, stage, action.kind in (Kind.SEND_F, Kind.RECV_F), action.index
