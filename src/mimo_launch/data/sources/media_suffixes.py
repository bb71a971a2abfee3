"""The suffixes of members of a sample: which are images, clips, videos, targets.

Decides: the suffixes, and Pillow's name of each format of images. Other formats are refused.
Relies on: nothing.
Leaves: contents to `samples.decode_media`.
"""

IMAGE_FORMATS = {
    "jpg": "JPEG",
    "jpeg": "JPEG",
    "png": "PNG",
    "webp": "WEBP",
    "avif": "AVIF",
    "bmp": "BMP",
    "gif": "GIF",
    "tif": "TIFF",
    "tiff": "TIFF",
    "jp2": "JPEG2000",
    "ppm": "PPM",
    "pgm": "PPM",
}
VIDEO_SUFFIXES = frozenset({"mp4", "m4v", "mov", "webm", "mkv", "avi", "mpg", "mpeg"})
# The end of the suffix of a video stored as a zip of images: `frames.zip`, `1.frames.zip`.
FRAMES_SUFFIX = "frames.zip"
AUDIO_SUFFIXES = frozenset({"wav", "flac", "ogg", "oga", "opus", "mp3", "aif", "aiff", "au", "caf"})
# The prefix of the suffixes of targets, which generators learn to make.
TARGET = "target."
# The suffix of codec tokens: a numpy file.
CODES_SUFFIX = "npy"


# The prefix of the suffixes of columns, which a user's loss reads: numpy files.
COLUMN = "column."


def target_of(suffix: str) -> tuple[str, int]:
    """Return the name and number in a target's suffix, such as `target.drawer.1.png`."""
    parts = suffix.split(".")[1:-1]
    number = int(parts.pop()) if parts and parts[-1].isdecimal() else 0
    return ".".join(parts), number
