"""Checks of `reads`: the graph of modules that rows pass through.

Decides: which modules may read which, and that each one is read or has a loss.
Relies on: `kinds` for which modules take rows.
Leaves: the role of each kind next to language to `ranks`, placeholders to `vocabulary`, rows that
are added to each other to `joined_rows`.
"""

from collections.abc import Iterable
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter

from mimo_launch.checks.rule import Findings
from mimo_launch.diag.diagnostic import Diagnostic, Related
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.base import LANGUAGE, MissingPartError
from mimo_launch.spec.near_words import close_matches
from mimo_launch.spec.spec import Spec


def reads_modules(spec: Spec, name: str) -> Findings:
    """`reads` names modules of the spec, each once."""
    reads, path = spec.modules[name].reads or (), ("modules", name, "reads")
    others = [each for each in spec.modules if each not in (name, *reads)]
    for unknown in dict.fromkeys(each for each in reads if each not in spec.modules):
        near = close_matches(unknown, others)[:1]
        meant = [*near, *(each for each in dict.fromkeys(reads) if each != unknown)]
        yield Diagnostic(
            code="reads-unknown-module",
            headline=f"`{name}` reads `{_short(unknown)}`, but there is no such module",
            path=(*path, reads.index(unknown)),
            why="`reads` names the modules whose rows this one takes",
            help=(f"write `reads: {module_list(meant)}`" if meant else "delete `reads`")
            + (f", or add a module called `{_short(unknown)}`" if not near else ""),
        )
    again = [each for place, each in enumerate(reads) if each in reads[:place]]
    for twice in dict.fromkeys(again):
        place = reads.index(twice, reads.index(twice) + 1)
        yield Diagnostic(
            code="reads-module-twice",
            headline=f"`{name}` reads `{_short(twice)}` twice",
            path=(*path, place),
            why="the rows of a module come once; there is one linear map for each module read",
            help=f"write `reads: {module_list(dict.fromkeys(reads))}`",
            related=(Related((*path, reads.index(twice)), "the first time"),),
        )


def reads_in_order(spec: Spec) -> Findings:
    """No module gets rows that were made from its own rows."""
    graph: dict[str, list[str]] = {name: [] for name in spec.modules}
    for name, reads in graph.items():
        with suppress(MissingPartError):  # The module is faulty.
            reads += [each for each in spec.modules[name].reads or () if each in graph]
    while any(graph.values()):
        try:
            TopologicalSorter(graph).prepare()
            return
        except CycleError as error:
            # Each sends rows to the next one, the last one to the first.
            circle: list[str] = error.args[1][:-1]
        first = LANGUAGE if LANGUAGE in circle else next(x for x in spec.modules if x in circle)
        start = circle.index(first)
        circle = circle[start:] + circle[:start]
        reader, source = circle[0], circle[-1]
        if reader == LANGUAGE and not kind_of(spec.modules[circle[-1]].model).computes_loss:
            # An encoder that reads language, rather than a generator that language reads.
            reader, source = circle[1 % len(circle)], LANGUAGE
        way = " -> ".join(f"`{each}`" for each in (*circle, circle[0]))
        yield Diagnostic(
            code="reads-in-circle",
            headline=f"`{reader}` reads itself"
            if len(circle) == 1
            else f"rows go in a circle: {way}",
            path=("modules", reader, "reads"),
            why="a module can start when the rows that it reads are there"
            + (
                "; what `language` reads stands in front of it, and what reads it behind it"
                if LANGUAGE in circle and len(circle) > 1
                else ""
            ),
            help=_without(spec, reader, source),
            related=tuple(
                Related(("modules", each, "reads"), f"`{each}` reads `{before}`")
                for before, each in zip(circle, [*circle[1:], circle[0]], strict=True)
                if each != reader
            ),
        )
        graph = {
            name: [each for each in sources if each not in circle]
            for name, sources in graph.items()
            if name not in circle
        }


def _without(spec: Spec, reader: str, source: str) -> str:
    """Return what to write so that `reader` does not read `source`."""
    rest = [each for each in spec.modules[reader].reads or () if each != source]
    if not rest and reader != LANGUAGE and kind_of(spec.modules[reader].model).reading.takes_rows:
        rest = [each for each in _seeing(spec) if each != reader]
    if rest:
        return f"write `reads: {module_list(rest)}` in `{reader}`"
    return f"delete `reads` of `{reader}`"


def _seeing(spec: Spec) -> list[str]:
    """Return the modules that see images or clips; if possible, only those that no other reads."""
    kinds = {name: kind_of(module.model) for name, module in spec.modules.items()}
    seeing = [n for n, kind in kinds.items() if kind.input is not None and not kind.computes_loss]
    taken = {
        each
        for name, module in spec.modules.items()
        for each in module.reads or ()
        if name != LANGUAGE
    }
    return [each for each in seeing if each not in taken] or seeing


def reads_fit_kind(spec: Spec, name: str) -> Findings:
    """A connector reads modules, a generator reads language, other encoders read no module."""
    module = spec.modules[name]
    kind, path = kind_of(module.model), ("modules", name)
    if kind.reads_tokens:
        return
    if module.reads and not kind.reading.takes_rows:
        what = "images" if kind.images is not None else "clips"
        other = ", or write `kind: connector`"
        if LANGUAGE in module.reads:
            loss = f", or write `loss: true` in the model of `{name}` if it is a generator"
            other = loss if kind.is_custom else ""
        yield Diagnostic(
            code="reads-unlike-kind",
            headline=f"`{name}` has `reads`, but `kind: {module.model.kind}` takes no rows",
            path=(*path, "reads"),
            at_key=True,
            why=f"it reads {what} of the data; a connector takes the rows of other modules",
            help="delete `reads`" + other,
            related=(Related((*path, "model", "kind"), f"reads {what}"),),
        )
    for source in dict.fromkeys(each for each in module.reads or () if each in spec.modules):
        if source != LANGUAGE and kind_of(spec.modules[source].model).computes_loss:
            made = spec.modules[source].model.kind
            yield Diagnostic(
                code="reads-unlike-kind",
                headline=f"`{name}` reads `{source}`, and `kind: {made}` makes no rows",
                path=(*path, "reads"),
                why="it stands at an end of the graph, with a loss of its own",
                help=_without(spec, name, source),
                related=(Related(("modules", source, "model", "kind"), "no rows"),),
            )
        elif kind.computes_loss and source != LANGUAGE and source not in spec.generators:
            yield Diagnostic(
                code="reads-unlike-kind",
                headline=f"`{name}` reads `{source}`, and `kind: {module.model.kind}` takes rows "
                f"of `{LANGUAGE}` only",
                path=(*path, "reads"),
                why=f"each of its images belongs to a place in the text; `{LANGUAGE}` can read "
                f"`{source}` and pass on what it makes of it",
                help=f"write `reads: [{LANGUAGE}]` in `{name}`",
            )
    if kind.reading.takes_rows and kind.input is None and not module.reads:
        seeing = _seeing(spec)
        yield Diagnostic(
            code="reads-unlike-kind",
            headline=f"`{name}` reads no module, and `kind: {module.model.kind}` takes only rows",
            path=(*path, "reads") if module.reads is not None else path,
            at_key=True,
            why="it sees no images or clips itself, so without rows it has nothing to work on",
            help=f"write `reads: {module_list(seeing)}` in `{name}`"
            if seeing
            else "add an encoder of images or clips, and name it in `reads`",
        )


def loss_is_behind_language(spec: Spec, name: str) -> Findings:
    """A module with a loss comes after language."""
    kind, path = kind_of(spec.modules[name].model), ("modules", name)
    if kind.reads_tokens or name in spec.generators or not kind.computes_loss:
        return
    written = f"`kind: {kind.model.kind}`"
    given = spec.modules[name].reads
    yield Diagnostic(
        code="wrong-kind-for-role",
        headline=f"{written} of `{name}` computes a loss, but does not read `{LANGUAGE}`",
        path=(*path, "reads") if given else (*path, "model", "kind"),
        why="a module with a loss of its own stands behind `language`, whose rows it takes",
        help=f"write `reads: [{LANGUAGE}]` in `{name}`",
    )


def behind_language_for_one(spec: Spec, name: str) -> Findings:
    """After language, a generator reads one module, and a connector serves one generator.

    Such a connector reads no encoder that comes before language.
    """
    module, path = spec.modules[name], ("modules", name)
    kind = kind_of(module.model)
    if kind.reads_tokens or name not in spec.generators:
        return
    reads = spec.sources_of(name)
    if kind.computes_loss:
        if len(reads) > 1:
            yield Diagnostic(
                code="reads-unlike-kind",
                headline=f"`{name}` reads {len(reads)} modules, and `kind: {module.model.kind}` "
                "takes rows of one",
                path=(*path, "reads"),
                why="a connector can read several, and make rows of theirs",
                help=f"write `reads: [{next((x for x in reads if x != LANGUAGE), LANGUAGE)}]` in "
                f"`{name}`",
            )
        return
    served = _served(spec, name)
    shown = [each for each in reads if each in spec.encoders]
    # A module that reads an encoder after language is after language, too, but not at fault.
    if not served and LANGUAGE in reads:
        yield Diagnostic(
            code="wrong-kind-for-role",
            headline=f"`{name}` reads `{LANGUAGE}`, and `kind: {module.model.kind}` computes no "
            "loss",
            path=(*path, "reads"),
            why="what stands behind `language` has a loss, or a generator reads it; encoders "
            "stand in front of it",
            help=_without(spec, name, LANGUAGE),
            related=(Related((*path, "model", "kind"), "an encoder"),),
        )
    elif len(served) > 1:
        yield Diagnostic(
            code="wrong-kind-for-role",
            headline=f"`{name}` stands in front of " + " and ".join(f"`{each}`" for each in served),
            path=path,
            at_key=True,
            why=f"behind `{LANGUAGE}` each row belongs to an image that one generator makes",
            help=f"add a connector for `{served[1]}`, or write `reads: [{LANGUAGE}]` in it",
        )
    elif served and shown:
        yield Diagnostic(
            code="wrong-kind-for-role",
            headline=f"`{name}` stands behind `{LANGUAGE}` and reads `{shown[0]}`, which stands in "
            "front of it",
            path=(*path, "reads"),
            why="its rows belong to what a generator makes, not to an image that is shown; "
            f"`{LANGUAGE}` can read `{shown[0]}` and pass on what it makes of it",
            help=f"write `reads: {module_list(each for each in reads if each not in shown)}` in "
            f"`{name}`",
        )


def _served(spec: Spec, name: str) -> list[str]:
    """Return the modules with a loss that read a module, directly or through other modules."""
    found, left = dict[str, None](), [name]
    while left:
        one = left.pop()
        readers = [n for n, m in spec.modules.items() if one in (m.reads or ()) and n not in found]
        found |= dict.fromkeys(readers)
        left += readers
    return [each for each in found if kind_of(spec.modules[each].model).computes_loss]


def rows_have_reader(spec: Spec, name: str) -> Findings:
    """Some module reads the rows of each encoder."""
    if LANGUAGE not in spec.modules or name == LANGUAGE:
        return
    if kind_of(spec.modules[name].model).computes_loss:
        return
    if any(name in spec.sources_of(each) for each in spec.modules):
        return
    language = spec.sources_of(LANGUAGE)
    if name in spec.generators:
        # An encoder that reads language itself gets another finding: the wrong kind for its role.
        first = [n for n in spec.generators if LANGUAGE in spec.sources_of(n)]
        if all(kind_of(spec.modules[n].model).computes_loss or _served(spec, n) for n in first):
            yield Diagnostic(
                code="module-without-reader",
                headline=f"no module reads `{name}`",
                path=("modules", name),
                at_key=True,
                why=f"it would compute for nothing: behind `{LANGUAGE}`, a generator reads it",
                help=f"write `reads: [{name}]` in a generator, or delete `{name}`",
            )
        return
    yield Diagnostic(
        code="module-without-reader",
        headline=f"no module reads `{name}`",
        path=("modules", name),
        at_key=True,
        why=f"it would compute for nothing: `{LANGUAGE}` reads only what its `reads` names",
        help=f"write `reads: {module_list([*language, name])}` in `{LANGUAGE}`, or delete `{name}`",
        related=(Related(("modules", LANGUAGE, "reads"), "without it"),),
    )


def module_list(names: Iterable[str]) -> str:
    """Return names of modules as `reads` lists them."""
    return f"[{', '.join(names)}]"


def _short(name: str) -> str:
    return name if len(name) <= 40 else name[:37] + "..."
