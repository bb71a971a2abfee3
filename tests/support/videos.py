"""Videos made on the spot: frames in a zip, files that PyAV encodes, and samples that show them."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests.support.shards import PARTS, image_bytes, tokenizer_folder, write_shard

Frames = np.ndarray
# As that of Qwen-VL: a video has a token of its own.
TEMPLATE = PARTS.replace(
    "{% elif part.type == 'audio' %}",
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part.type == 'audio' %}",
).replace(
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}",
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
)


def frames(number: int, height: int, width: int, seed: int = 0) -> Frames:
    """Frames of noise, uint8 [number, height, width, 3]."""
    random = np.random.default_rng([seed, number, height, width])
    return random.integers(0, 256, (number, height, width, 3), dtype=np.uint8)


def zipped(given: Frames) -> bytes:
    """Frames as a `.frames.zip`, whose names need their numbers for the right order."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for number, pixels in enumerate(given):
            image = io.BytesIO()
            Image.fromarray(pixels).save(image, format="PNG")
            file.writestr(f"shots/frame-{number}.png", image.getvalue())
        file.writestr("shots/notes.txt", "not a frame")
    return out.getvalue()


def encoded(given: Frames, rate: int, kind: str = "mp4", codec: str = "mpeg4") -> bytes:
    """Frames as a file of a video."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = given.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for pixels in given:
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return out.getvalue()


def with_sound(
    given: Frames, rate: int, sound: np.ndarray, hertz: int = 16_000, kind: str = "mov"
) -> bytes:
    """Frames as a file of a video, whose sound [channels, samples] is stored exactly in a MOV."""
    import av

    out = io.BytesIO()
    with av.open(out, "w", format=kind) as container:
        shown = container.add_stream("mpeg4", rate=rate)
        shown.height, shown.width = given.shape[1:3]
        shown.pix_fmt = "yuv420p"
        layout = {1: "mono", 2: "stereo"}[len(sound)]
        codec = "pcm_s16le" if kind == "mov" else "aac"
        heard = container.add_stream(codec, rate=hertz, layout=layout)
        for pixels in given:
            container.mux(shown.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(shown.encode())
        whole = np.round(sound.T * 32767).astype(np.int16).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(whole, format="s16", layout=layout)
        frame.sample_rate = hertz
        container.mux(heard.encode(frame))
        container.mux(heard.encode())
    return out.getvalue()


def asked(*parts: str, said: str = "It is red.") -> dict[str, Any]:
    """The JSON of a conversation about media: `image`, `video`, `audio`, or text."""
    content = [
        {"type": part} if part in ("image", "video", "audio") else {"type": "text", "text": part}
        for part in parts
    ]
    answer = {"role": "assistant", "content": said}
    return {"messages": [{"role": "user", "content": content}, answer]}


def samples() -> list[tuple[str, dict[str, Any]]]:
    """A sample with a video between two images, one with two videos, one image, one of text."""
    first, second, third = frames(9, 13, 18), frames(6, 20, 9, 1), frames(3, 8, 8, 2)
    return [
        (
            "between",
            {
                "png": image_bytes(12, 17), "1.png": image_bytes(9, 9, 1),
                "frames.zip": zipped(first),
                "json": asked("image", "What?", "video", "And", "image", "?"),
            },
        ),
        (
            "two",
            {
                "frames.zip": zipped(second), "1.frames.zip": zipped(third),
                "json": asked("video", "video", "Which is longer?", said="The first."),
            },
        ),
        ("image", {"png": image_bytes(16, 8, 3), "json": asked("Look: ", "image")}),
        ("text", {"json": asked("How are you?", said="Well. And you?")}),
    ]  # fmt: skip


def video_shard(folder: Path) -> Path:
    """Write these samples, and a tokenizer beside them; return its folder."""
    write_shard(folder / "000.tar", samples())
    specials = ("<|video_pad|>", "<|begin_of_image|>", "<|end_of_image|>")
    return tokenizer_folder(folder / "tokenizer", TEMPLATE, specials=specials)
