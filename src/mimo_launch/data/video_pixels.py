"""Frames of videos in the size of an encoder.

Decides: that frames are resized as 8-bit pixels.
Relies on: torch, whose antialiased filters on 8 bits are those that the video processors of
transformers use; Pillow's differ from them by one in some places.
Leaves: decoding, and all arithmetic behind it, to `webdataset.decode_video`.
"""

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from mimo_launch.hugging_face.image_processor import BICUBIC

Frame = npt.NDArray[np.uint8]


def resized(frame: Frame, height: int, width: int, resample: int) -> Frame:
    """Return a frame [channels, h, w] as [channels, height, width], by one of Pillow's filters."""
    if frame.shape[1:] == (height, width):
        return frame
    # torch warns of pixels that may not be written, such as Pillow's.
    given = torch.from_numpy(np.require(frame, requirements=("C", "W")))[None]
    mode = "bicubic" if resample == BICUBIC else "bilinear"
    made = F.interpolate(given, (height, width), mode=mode, antialias=True, align_corners=False)
    found: Frame = made[0].numpy()
    return found
