"""The sound of videos in shards: what is heard, its tokens, cuts, statistics, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("av")

from tests.support.sounding_videos import (
    AROUND,
    SEQ,
    data_of,
    noise,
    proved,
    silent_shard,
    sounding_shard,
    token,
)
from tests.support.specs import box, spec
from tests.support.videos import encoded, frames, with_sound, zipped
from tests.unit.test_record_facts import assert_one_by_one

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import BadSample
from mimo_launch.data.sample_statistics import read_statistics, statistics_text
from mimo_launch.data.samples.decode_video import decode_sound, sound_length
from mimo_launch.data.torch_media import log_mel
from mimo_launch.processors.files import TokenizerError
from mimo_launch.spec.spec import Spec

ONE = (box(0), box(0), box(0))


def one_rank(shards: Path, kind: str = "qwen2_5_omni", **more: Any) -> Spec:
    return proved(kind, shards, ONE).replace(**more)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(("kind", "hertz"), [("mov", 16_000), ("mov", 44_100), ("mp4", 48_000)])
def test_all_of_the_sound_of_a_file_is_heard(kind: str, hertz: int, channels: int) -> None:
    sound = noise(0.7, 4, channels, hertz)
    data = with_sound(frames(3, 16, 16), 4, sound, hertz, kind)
    number, rate = sound_length(kind, data) or (0, 0)
    found, same = decode_sound(kind, data, seconds=9)
    assert (rate, same, len(found)) == (hertz, hertz, number)
    # A codec may add silence to fill its last block.
    assert 0 <= number - sound.shape[1] <= (0 if kind == "mov" else 2048)
    if kind == "mov":
        assert np.abs(found - sound.mean(axis=0)).max() < 1e-4
    assert len(decode_sound(kind, data, seconds=0.25)[0]) == hertz // 4


def test_files_without_sound_have_none() -> None:
    shown = frames(4, 16, 16)
    assert sound_length("mp4", encoded(shown, 4)) is None
    assert sound_length("frames.zip", zipped(shown)) is None
    with pytest.raises(BadSample, match="cannot be read as the sound of a video: it has no sound"):
        decode_sound("mp4", encoded(shown, 4), seconds=1)
    damaged = with_sound(shown, 4, noise(1, 1))[:3000]
    with pytest.raises(BadSample, match="the sound of a video"):
        sound_length("mov", damaged)


def test_a_video_with_sound_is_told_apart_from_one_without(tmp_path: Path) -> None:
    """Only the former has tokens around its rows, and rows of sound among those of frames."""
    silent_shard(tmp_path)
    data = build_dataset(one_rank(tmp_path))
    tokens, _ = data.text("train", 0)
    shown, heard, first, last = (
        token(tmp_path, text) for text in ("<|image_pad|>", "<|audio_pad|>", *AROUND)
    )
    begin, end = (token(tmp_path, f"<|vision_{each}|>") for each in ("start", "end"))
    spans = data.describe("train", 0).spans
    (clip,) = spans["audio"]
    frames_of = spans["vision"]
    videos = [at for at, each in enumerate(frames_of) if each.later is None]
    assert len(videos) == 2
    silent, loud = frames_of[: videos[1]], frames_of[videos[1] :]
    assert tokens[silent[0].position - 1] == begin
    assert tokens[silent[-1].end] == end
    place = loud[0].position
    assert tokens[place - 2 : place].tolist() == [begin, first]
    stop = max(loud[-1].end, clip.end)
    assert tokens[stop : stop + 2].tolist() == [last, end]
    # Of chunks of two seconds, which are 8 places.
    assert len(clip.parts) > 2
    for at, rows in clip.parts:
        assert (tokens[at : at + rows] == heard).all()
    assert (tokens == heard).sum() == clip.rows == sum(rows for _, rows in clip.parts)
    assert (tokens == shown).sum() == sum(each.rows for each in frames_of)


def test_the_ears_get_the_sound_as_if_it_were_a_clip(tmp_path: Path) -> None:
    sounding_shard(tmp_path)
    data = build_dataset(one_rank(tmp_path))
    names = [data.name("train", each).split()[1] for each in range(4)]
    for name, seconds, seeds in (("long", [2.7], [(1, 1)]), ("two", [1.3, 1.1], [(2, 1), (3, 2)])):
        clips = data.images("train", names.index(name), "audio")
        for clip, lasts, (seed, channels) in zip(clips, seconds, seeds, strict=True):
            mels = log_mel(noise(lasts, seed, channels).mean(axis=0), 16_000, clip.shape[0])
            assert clip.shape == mels.shape == (mels.shape[0], round(100 * lasts))
            # Stored with 16 bits.
            assert np.abs(clip - mels).max() < 0.02


def test_a_cut_leaves_out_a_video_with_all_of_its_sound(tmp_path: Path) -> None:
    sounding_shard(tmp_path)
    whole = one_rank(tmp_path)
    data = build_dataset(whole)
    names = [data.name("train", each).split()[1] for each in range(4)]
    number = names.index("long")
    spans = data.describe("train", number).spans
    picture, first, *_ = spans["vision"]
    (clip,) = spans["audio"]
    # After the first and in the second part, and in the last one.
    for seq in (clip.parts[0][0] + 1, clip.parts[1][0] + 1, clip.end - 1):
        cut = whole.replace(
            batch=whole.batch.replace(seq=seq),
            data=whole.data.replace(packing=False, too_long="truncate"),
        )
        found = build_dataset(cut).describe("train", number)
        assert found.num_tokens == first.position
        assert found.spans == {"vision": (picture,)}


def test_statistics_of_videos_with_sound_are_read_as_they_were(tmp_path: Path) -> None:
    sounding_shard(tmp_path)
    asked = one_rank(tmp_path)
    data = build_dataset(asked)
    (tmp_path / "stats.json").write_text(statistics_text(asked, data))
    found, number = read_statistics(asked, tmp_path / "stats.json")
    assert number == 4
    assert [each.spans for each in found] == [data.describe("train", n).spans for n in range(4)]
    assert_one_by_one(data)


def test_a_tokenizer_must_name_the_tokens_around_sound(tmp_path: Path) -> None:
    sounding_shard(tmp_path)
    settings = tmp_path / "tokenizer" / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace("audio_bos_token", "other_token"))
    with pytest.raises(TokenizerError, match=r"names no audio_bos_token: .* delete `sound`"):
        build_dataset(one_rank(tmp_path))


def modules(**changed: Any) -> dict[str, Any]:
    """Return modules that see and hear; `changed` are other ones."""
    time = {"time": "nominal_seconds", "per_second": 25}
    tower = {"kind": "vit", "patch": 2, "channels": 3, "temporal_patch": 2, "video": time}
    return {
        "vision": box(0, model=tower),
        "audio": box(0, model={"kind": "audio"}),
        "language": box(0, model={"vocab": 400, "mrope": [1, 2, 1], "head_dim": 8}),
        **changed,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "template", "why", "remedy"),
    [
        ({"audio": None}, "chat", "`language` reads no encoder of clips", "`kind: audio`"),
        (
            {"ears": box(0, model={"kind": "audio"})},
            "chat", "`audio` and `ears` would all hear it", "let `language` read one encoder",
        ),
        ({}, "caption", "captions have no place for them", "write `template: chat`"),
        (
            {
                "vision": box(0, model={
                    "kind": "vit", "patch": 2, "channels": 3, "temporal_patch": 2,
                    "video": {"time": "patches"},
                }),
            },
            "chat", "with `time: patches` of `vision` no processor says", "time: nominal_seconds",
        ),
        (
            {
                "resampler": box(
                    0, model={"kind": "connector", "queries": 4}, reads=["vision"]
                ),
            },
            "chat", "`resampler` makes others of these", "let `language` alone read `vision`",
        ),
    ],
)  # fmt: skip
def test_sound_that_cannot_be_heard_is_refused(
    changed: dict[str, Any], template: str, why: str, remedy: str, tmp_path: Path
) -> None:
    sounding_shard(tmp_path)
    given = {name: each for name, each in modules(**changed).items() if each is not None}
    asked = spec(given, mbs=2, seq=SEQ, data=data_of(tmp_path, template=template))
    found = [each for each in check(asked) if each.path == ("data", "video", "sound")]
    assert [each.code for each in found] == ["videos-not-read"]
    assert why in found[0].why
    assert remedy in found[0].help
    assert found[0].help.endswith("or write `sound: false`")
