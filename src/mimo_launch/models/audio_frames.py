"""Log-mel clips as patches, cut on the host: each token comes with the frames that it sees.

Decides: that a token needs no neighbours. Whisper's convolutions (kernel 3, then kernel 3 with
stride 2) let token j see frames 2j - 2 to 2j + 2 of its clip. A patch is those five, zeros where
the clip ends, so any cut of the tokens over ranks is right, without an exchange. The cost: 2.5 x
the bytes of a clip on their way to the device, and the first convolution computed 3 times a token,
not 2: less than 0.1 % of the operations of Whisper large-v3.
Relies on: `image_patches` for what a patch is.
Leaves: the convolutions to `audio_encoder`.
"""

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.models.image_patches import Patches
from mimo_launch.spec.encoders import FRAMES_PER_TOKEN

VALUES_PER_BAND = 5
_BEFORE, _BEHIND = 2, 1


def cut_clip(array: np.ndarray, *, dtype: torch.dtype, pinned: bool) -> Patches:
    """Cut a log-mel clip, `array` [mels, frames], into tokens of `dtype` on the host.

    Values are [frames / 2, mels * 5], a band's five frames together; positions [frames / 2, 1] are
    places in the clip.
    """
    source = torch.from_numpy(array if array.flags.writeable else array.copy())
    padded = F.pad(source, (_BEFORE, _BEHIND))
    windows = padded.unfold(1, VALUES_PER_BAND, FRAMES_PER_TOKEN).transpose(0, 1)
    values = torch.empty(windows.shape, dtype=dtype, pin_memory=pinned).copy_(windows)
    return Patches(values.flatten(1), _places(len(values), pinned))


@lru_cache(maxsize=256)
def _places(tokens: int, pinned: bool) -> Tensor:
    """Return the place of every token of a clip."""
    found = torch.arange(tokens)[:, None]
    return found.pin_memory() if pinned else found
