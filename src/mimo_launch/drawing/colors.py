"""The palette of all pictures: a pair of colours for each module.

Decides: the colours. The first ones are distinct for people with any common colour blindness (a
test simulates their vision); forward and backward differ in lightness, not in hue.
Leaves: the colour of each module to the order of the modules.
"""

from colorsys import hls_to_rgb

# Blue, orange, green, violet, yellow, rose. The first five are distinct in simulated vision.
_PAIRS = (
    ("#9ecae9", "#2166a5"),
    ("#f7c267", "#b35a00"),
    ("#7fd0ad", "#00694e"),
    ("#bba3f3", "#442883"),
    ("#f0f0a0", "#4d4a00"),
    ("#f2a0a0", "#8a0f3c"),
)
# The golden angle: each hue after the end of the palette is far from the hues just before it.
_TURN = 0.381966


def colors(number: int) -> tuple[str, str]:
    """Return the colours of module `number` as `#rrggbb`: forward, backward."""
    if number < len(_PAIRS):
        return _PAIRS[number]
    hue = (number * _TURN) % 1.0
    return _hex(hue, 0.78, 0.45), _hex(hue, 0.30, 0.45)


def _hex(hue: float, lightness: float, saturation: float) -> str:
    return "#" + "".join(f"{round(255 * c):02x}" for c in hls_to_rgb(hue, lightness, saturation))
