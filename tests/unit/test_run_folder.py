"""Which runs go on in their folder, and what happens to the others."""

from dataclasses import asdict
from pathlib import Path
from shutil import copytree, disk_usage
from typing import NoReturn

import pytest

from mimo_launch.checkpoint import index
from mimo_launch.checkpoint.folder import (
    CHECKPOINTS,
    DAMAGED,
    FORMAT,
    PARTIAL,
    REPLACED,
    Base,
    DamagedCheckpoint,
    all_checkpoints,
    complete,
    delete_old,
    folder_name,
    is_complete,
    read_marker,
    set_aside,
)
from mimo_launch.checkpoint.index import NoCheckpoint, open_checkpoint
from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.launcher.host_resources import lacks_room, num_added
from mimo_launch.launcher.run_folder import (
    NothingToResume,
    RunFolder,
    newest_checkpoint,
    open_run_folder,
)
from mimo_launch.runtime.progress import Best
from mimo_launch.spec.load import MARKER
from mimo_launch.spec.spec import Spec

SPEC = Path(__file__).parents[1] / "fixtures" / "tiny_train.yaml"


def tiny(*settings: str) -> Spec:
    spec = load_and_check(SPEC, settings).spec
    assert spec is not None
    return spec


def opened(root: Path, spec: Spec, *, resume: bool | None = None) -> RunFolder:
    """Open a run folder and let go of it."""
    folder = open_run_folder(root, spec, "{}", resume=resume)
    folder.lock.close()
    return folder


def add_checkpoint(
    run: Path, step: int, *, whole: bool = True, bad: tuple[str, ...] = (), best: Best | None = None
) -> Path:
    """Make the folder of a checkpoint without tensors, after steps of 8 samples."""
    folder = run / CHECKPOINTS / folder_name(step)
    unfinished = folder.with_name(folder.name + PARTIAL)
    unfinished.mkdir(parents=True)
    (unfinished / "part").write_text("four")
    counts = {"step": step, "samples": 8 * step}
    content = {"format": FORMAT, "counts": counts, "updates": {}, "plan": "", "spec": {}}
    files = {"part": [4 if whole else 5, 0]}
    content["best"] = best and asdict(best)
    complete(unfinished, folder, content | {"torch": "", "files": files, "not_finite": bad})
    return folder


def test_a_step_that_is_saved_again_replaces_what_is_left_of_it(tmp_path: Path) -> None:
    """A checkpoint that lost its marker is passed over, and keeps its name until then."""
    folder = add_checkpoint(tmp_path, 3)
    (folder / "part").rename(folder / "other")
    (folder / MARKER).unlink()
    assert add_checkpoint(tmp_path, 3) == folder
    assert {path.name for path in folder.iterdir()} == {"part", MARKER}
    assert all_checkpoints(tmp_path) == [folder]


def test_a_run_with_a_complete_checkpoint_goes_on(tmp_path: Path) -> None:
    """A damaged one is passed over; the spec that changed is kept beside the new one."""
    first = opened(tmp_path, tiny())
    add_checkpoint(first.path, 2)
    add_checkpoint(first.path, 4, whole=False)
    again = opened(tmp_path, tiny("train.steps=9"))
    assert again.path == first.path
    assert again.moved is None
    assert again.saved is not None
    assert again.saved.step == 2
    # A run that goes on, and fails before it has its state, leaves what was said of the last one.
    assert "steps: 4" in (again.path / "spec.yaml").read_text()
    again.write()
    names = {path.name for path in again.path.iterdir()}
    assert names == {"checkpoints", "plan.json", "spec.yaml", "spec.1.yaml"}
    assert "steps: 9" in (again.path / "spec.yaml").read_text()
    assert "steps: 4" in (again.path / "spec.1.yaml").read_text()


@pytest.mark.parametrize("resume", [None, False])
def test_a_run_that_does_not_go_on_is_moved_aside(tmp_path: Path, resume: bool | None) -> None:
    first = opened(tmp_path, tiny())
    if resume is False:
        add_checkpoint(first.path, 2)
    again = opened(tmp_path, tiny(), resume=resume)
    assert again.saved is None
    assert again.moved == tmp_path / "tiny.1"
    assert (again.moved / "spec.yaml").exists()


@pytest.mark.parametrize(
    ("section", "there", "step", "number"),
    [
        ("null", 0, 0, 1),
        ("{every: 5, keep: 2}", 0, 0, 2),  # After 5 and 10; never a rows one.
        ("{every: 4, keep: 2}", 0, 0, 3),  # After 4, 8 and 10; then that of 4 goes.
        ("{every: 4, keep: 1}", 0, 0, 2),
        ("{every: 1, keep: 3}", 0, 0, 4),
        ("{every: 1, keep: 3}", 2, 2, 2),  # Two of the four are there.
        ("{every: 1, keep: 1}", 3, 3, 1),  # They go after the first save.
        ("{every: 4, keep: 2}", 1, 8, 1),
    ],
)
def test_a_run_needs_room_for_as_many_checkpoints_as_it_adds(
    section: str, there: int, step: int, number: int
) -> None:
    spec = tiny("train.steps=10", f"checkpoint={section}")
    assert num_added(spec, there, step) == number


def test_a_run_that_saves_nothing_needs_no_room(tmp_path: Path) -> None:
    large = [f"modules.language.model.{e}" for e in ("vocab_multiple=2000000000", "hidden=16384")]
    assert lacks_room(tmp_path / "no" / "folder", tiny(*large), None) is None
    lack = lacks_room(tmp_path / "no" / "folder", tiny(*large, "checkpoint=null"), None)
    assert lack is not None
    assert "has no room for a checkpoint: it needs 786 TB, and its file system has " in lack


@pytest.mark.parametrize(
    ("fifths", "help_"),
    [(2, "one, `--set checkpoint.keep=1`, or `--set checkpoint"), (3, "one, or `--set checkpoint")],
)
def test_fewer_checkpoints_are_advised_where_they_fit(
    fifths: int, help_: str, tmp_path: Path
) -> None:
    """Each takes two fifths of what is free: there is room for two, not for three; or three."""
    rows = disk_usage(tmp_path).free // (12 * 2 * 1024) * fifths // 5
    sizes = [f"modules.language.model.{e}" for e in (f"vocab_multiple={rows}", "hidden=1024")]
    lack = lacks_room(tmp_path, tiny(*sizes, "checkpoint={every: 1}"), None)
    assert lack is not None
    assert f"`--runs DIR` on a larger {help_}" in lack


def test_a_run_that_must_go_on_needs_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NothingToResume, match="no complete checkpoint"):
        open_run_folder(tmp_path, tiny(), "{}", resume=True)
    assert not any(tmp_path.iterdir())
    opened(tmp_path, tiny())
    # What is left of a killed save is no checkpoint, and no damaged one.
    (tmp_path / "tiny" / CHECKPOINTS / (folder_name(2) + PARTIAL)).mkdir(parents=True)
    assert opened(tmp_path, tiny()).saved is None
    add_checkpoint(tmp_path / "tiny", 3)
    saved = opened(tmp_path, tiny(), resume=True).saved
    assert saved == newest_checkpoint(tmp_path / "tiny")


@pytest.mark.parametrize(("keep", "kept"), [(1, [5, 3]), (2, [5, 4, 3]), (3, [5, 4, 3])])
def test_the_newest_checkpoint_with_finite_weights_is_kept(
    keep: int, kept: list[int], tmp_path: Path
) -> None:
    """Of five, the last two hold a weight that is not finite."""
    for step in range(1, 6):
        add_checkpoint(tmp_path, step, bad=("language.head.weight",) if step > 3 else ())
    delete_old(tmp_path, keep)
    assert [path.name for path in all_checkpoints(tmp_path)] == [folder_name(x) for x in kept]


def test_checkpoints_of_each_so_many_steps_stay_beside_the_newest(tmp_path: Path) -> None:
    for step in range(1, 12):
        add_checkpoint(tmp_path, step)
        delete_old(tmp_path, 2, 4)
    assert [path.name for path in all_checkpoints(tmp_path)] == [
        folder_name(step) for step in (11, 10, 8, 4)
    ]


def test_the_checkpoint_of_the_best_evaluation_stays(tmp_path: Path) -> None:
    """Until a better one is saved; that of step 6, the best of all, never was."""
    stay = {1: [1], 2: [2], 3: [3, 2], 4: [4], 5: [5, 4], 7: [7, 4]}
    for step, best in enumerate((1, 2, 2, 4, 4, 6, 6), 1):
        if step in stay:
            add_checkpoint(tmp_path, step, best=Best(best, 0.5))
            delete_old(tmp_path, 1, keep_best=True)
            assert [path.name for path in all_checkpoints(tmp_path)] == [
                *map(folder_name, stay[step])
            ]


def test_a_deletion_that_is_killed_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        add_checkpoint(tmp_path, step)
    monkeypatch.setattr("mimo_launch.checkpoint.folder.shutil.rmtree", lambda *_, **__: None)
    delete_old(tmp_path, 1)
    whole = [path.name for path in all_checkpoints(tmp_path) if is_complete(path)]
    assert whole == [folder_name(3)]


def test_what_is_left_of_saves_goes_if_it_is_older_and_damaged_ones_stay(tmp_path: Path) -> None:
    for step in (1, 3):
        add_checkpoint(tmp_path, step)
    ends = (PARTIAL, REPLACED, DAMAGED)
    others = [folder_name(step) + end for step in (2, 4) for end in ends]
    for name in others:
        (tmp_path / CHECKPOINTS / name).mkdir()
    delete_old(tmp_path, 1)
    assert sorted(path.name for path in all_checkpoints(tmp_path)) == sorted(
        [folder_name(3), *others[2:]]
    )


@pytest.mark.parametrize("end", ["-good", ".copy", DAMAGED + ".1"])
def test_a_copy_under_another_name_is_no_checkpoint_of_the_run(tmp_path: Path, end: str) -> None:
    first = add_checkpoint(tmp_path, 2)
    copy = copytree(first, first.with_name(first.name + end))
    assert all_checkpoints(tmp_path) == [first]
    newest = add_checkpoint(tmp_path, 3)
    delete_old(tmp_path, 1, 5)
    assert all_checkpoints(tmp_path) == [newest]
    assert is_complete(copy)


@pytest.mark.parametrize("saves", [True, False])
def test_a_command_looks_again_only_if_a_run_has_saved_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, saves: bool
) -> None:
    """Of these none can be read; the first is deleted while it is opened."""
    add_checkpoint(tmp_path, 1)
    looks = []

    def read(folder: Path) -> NoReturn:
        looks.append(folder.name)
        if saves and len(looks) == 1:
            add_checkpoint(tmp_path, 2)
            delete_old(tmp_path, 1)
        raise DamagedCheckpoint("gone")

    monkeypatch.setattr(index, "spec_from_data", lambda data: tiny())
    monkeypatch.setattr(index, "read_index", read)
    with pytest.raises(NoCheckpoint, match="gone"):
        open_checkpoint(tmp_path, None)
    assert looks == [folder_name(step) for step in ((1, 2) if saves else (1,))]


def test_a_file_that_is_new_in_a_folder_of_weights_is_a_change_of_it() -> None:
    """It may hold what another held before."""
    base, more = Base("base", {"a": (1, 2)}, {}), {"b": (3, 4)}
    assert base.changed(base.files) == ""
    for files in ({**base.files, **more}, more, {}, {"a": (1, 3)}):
        assert base.changed(files).startswith("base has changed since it was read: ")
    many = Base("base", dict.fromkeys("abcd", (1, 2)), {})
    for number, named in ((3, "a, b, c"), (4, "a, b, c and others")):
        changed = many.files | dict.fromkeys("abcd"[:number], (1, 3))
        assert many.changed(changed).endswith(f": {named}")


@pytest.mark.parametrize("other", [2, 5])
def test_a_checkpoint_under_the_name_of_another_step_is_damaged(other: int, tmp_path: Path) -> None:
    saved = add_checkpoint(tmp_path, 3)
    assert read_marker(saved).counts["step"] == 3
    with pytest.raises(DamagedCheckpoint, match="is that of step 3"):
        read_marker(saved.rename(saved.with_name(folder_name(other))))


def test_one_that_is_finite_is_kept_beside_those_that_stay(tmp_path: Path) -> None:
    """Of five, the last two hold a weight that is not finite; an older one stays by its step."""
    for step in range(1, 6):
        add_checkpoint(tmp_path, step, bad=("language.head.weight",) if step > 3 else ())
    delete_old(tmp_path, 1, 2)
    assert [path.name for path in all_checkpoints(tmp_path)] == [
        folder_name(step) for step in (5, 4, 3, 2)
    ]


@pytest.mark.parametrize(
    ("saving", "there", "step", "number"),
    [
        ("{every: 10, keep: 2, keep_every: 50}", 0, 0, 5),
        ("{every: 10, keep: 2, keep_every: 50}", 3, 60, 2),
        ("{keep: 2, keep_every: 50}", 0, 0, 2),
        ("{keep: 2, keep_every: 30}", 0, 0, 4),
        ("{every: 50, keep: 2, keep_every: 50}", 0, 0, 2),
        ("{every: 10, keep: 2, keep_best: true}", 0, 0, 4),
        ("{keep: 2, keep_best: true}", 0, 0, 2),
    ],
)
def test_checkpoints_that_stay_need_room(saving: str, there: int, step: int, number: int) -> None:
    assert num_added(tiny("train.steps=100", f"checkpoint={saving}"), there, step) == number


def test_a_step_can_be_saved_and_set_aside_again(tmp_path: Path) -> None:
    """The newer folder takes the place of the older one, under either name."""
    for _ in range(2):
        add_checkpoint(tmp_path, 3)
        found = add_checkpoint(tmp_path, 3)
        assert all_checkpoints(tmp_path)[-1] == found
        set_aside(found)
        assert [path.name for path in all_checkpoints(tmp_path)] == [f"{found.name}.damaged"]
