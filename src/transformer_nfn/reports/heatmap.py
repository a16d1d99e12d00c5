"""Numbers as colours: a picture of a pixel for each, which the page enlarges."""

import struct
import zlib
from base64 import b64encode
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from transformer_nfn.escaping import for_page

#: Dark blue to yellow, as matplotlib's viridis: told apart in grey, and by colour-blind people.
_COLOURS = np.array(
    [(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)], dtype=float
)
#: What is not a number.
_NONE = (190, 190, 190)
#: Sides of a cell and of a whole picture, in pixels of the page.
_CELL, _SMALL, _MOST = 24, 180, 520


class HeatMap(NamedTuple):
    """A matrix as a picture.

    Attributes:
        numbers: Row by row; NaN is grey.
        low: The number that is darkest.
        high: The number that is brightest.
        title: What stands above it.
    """

    numbers: Float[np.ndarray, "rows columns"]
    low: float
    high: float
    title: str

    def html(self) -> str:
        """As a piece of a page."""
        rows, columns = self.numbers.shape
        longest = max(rows, columns, 1)
        side = min(_CELL * longest, _SMALL) if longest < 40 else min(6 * longest, _MOST)
        width, height = (max(1, round(side * count / longest)) for count in (columns, rows))
        scaled = (self.numbers - self.low) / (self.high - self.low)
        data = b64encode(_png(_coloured(scaled))).decode()
        title = for_page(self.title)
        return (
            f'<figure class="map"><figcaption>{title}</figcaption><img alt="{title}" '
            f'width="{width}" height="{height}" src="data:image/png;base64,{data}"></figure>'
        )


def legend(low: str, high: str) -> str:
    """What the darkest and the brightest colour mean."""
    data = b64encode(_png(_coloured(np.linspace(0.0, 1.0, 64)[None]))).decode()
    return (
        f'<p class="legend">{for_page(low)} <img alt="" width="160" height="12" '
        f'src="data:image/png;base64,{data}"> {for_page(high)}</p>'
    )


def _coloured(scaled: Float[np.ndarray, "r c"]) -> UInt8[np.ndarray, "r c 3"]:
    place = np.nan_to_num(np.clip(scaled, 0.0, 1.0)) * (len(_COLOURS) - 1)
    below = np.minimum(place.astype(int), len(_COLOURS) - 2)
    share = (place - below)[..., None]
    colours = (1 - share) * _COLOURS[below] + share * _COLOURS[below + 1]
    colours[np.isnan(scaled)] = _NONE
    found: np.ndarray = colours.round().astype(np.uint8)
    return found


def _png(pixels: UInt8[np.ndarray, "r c 3"]) -> bytes:
    """A picture file, of the plainest kind there is."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
