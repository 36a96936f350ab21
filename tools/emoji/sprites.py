"""The emoji as pictures: read from the font, packed once, and composed into scenes on any device.

    python sprites.py NotoColorEmoji.ttf pack/sprites.npz

Noto Color Emoji (SIL Open Font License 1.1) keeps each emoji as a PNG of 136x128 in its CBDT table.
"""
import io
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

SIDE = 128    # pixels of a picture
BOX = 136     # pixels of a packed sprite
# The sizes a sprite is drawn at. A fixed set lets every size be resampled once, with antialiasing, and
# pasted at whole pixels: drawing is then a gather, and edges are as crisp as they can be.
SIZES = (36, 40, 44, 48, 52, 56, 60, 64, 72, 80, 88, 96, 104, 112, 120, 128)


@dataclass(frozen=True)
class EmojiClass:
    emoji: str
    names: tuple  # (name, takes an article), the main one first


def read_classes(path=Path(__file__).with_name("classes.txt")):
    classes, seen = [], {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        emoji, rest = line.split(" ", 1)
        names = tuple((n.strip().lstrip("~"), not n.strip().startswith("~")) for n in rest.split(","))
        for name, _ in names:
            if name in seen:
                raise ValueError(f"{name} is both {seen[name]} and {emoji}")
            seen[name] = emoji
        classes.append(EmojiClass(emoji, names))
    return classes


def held_out(a, b):
    """Whether the pair of emoji never occurs in training, in either order: one pair in sixteen."""
    return zlib.crc32("".join(sorted((a, b))).encode()) % 16 == 0


def read_font(path, classes):
    """uint8 [N, BOX, BOX, 4], straight alpha."""
    from fontTools.ttLib import TTFont
    from PIL import Image
    font = TTFont(path)
    cmap, bitmaps = font.getBestCmap(), font["CBDT"].strikeData[0]
    out = np.zeros((len(classes), BOX, BOX, 4), np.uint8)
    for i, c in enumerate(classes):
        glyph = cmap.get(ord(c.emoji))
        if glyph not in bitmaps:
            raise ValueError(f"{c.emoji} {c.names[0][0]}: not in the font")
        picture = Image.open(io.BytesIO(bitmaps[glyph].imageData)).convert("RGBA")
        left, top = (BOX - picture.width) // 2, (BOX - picture.height) // 2
        out[i, top:top + picture.height, left:left + picture.width] = np.asarray(picture)
    return out


class Painter:
    """Sprites at all sizes on one device, and the drawing of scenes with them."""

    def __init__(self, sprites, device):
        rgba = torch.from_numpy(sprites).to(device).permute(0, 3, 1, 2).float() / 255
        rgba[:, :3] *= rgba[:, 3:]  # premultiplied, so that resampling does not bleed hidden colours
        self.table = torch.zeros(len(SIZES), len(rgba), 4, SIDE, SIDE, dtype=torch.uint8, device=device)
        for i, size in enumerate(SIZES):
            small = F.interpolate(rgba, size=(size, size), mode="bicubic", antialias=True, align_corners=False)
            small = torch.minimum(small.clamp(0, 1), small[:, 3:].clamp(0, 1))
            self.table[i, :, :, :size, :size] = (small * 255).round().to(torch.uint8)
        self.sizes = torch.tensor(SIZES, device=device)
        self.device = device

    def sprite(self, kind, size, x, y):
        """Premultiplied RGBA [B, 4, SIDE, SIDE] of sprites whose centres are at (x, y); kind < 0 draws nothing."""
        side = self.sizes[size]
        line = torch.arange(SIDE, device=self.device)
        row = line[None] - (y - side // 2)[:, None]
        column = line[None] - (x - side // 2)[:, None]
        inside = ((row >= 0) & (row < side[:, None]))[:, :, None] & ((column >= 0) & (column < side[:, None]))[:, None]
        inside = inside & (kind >= 0)[:, None, None]
        row, column = row.clamp(0, SIDE - 1), column.clamp(0, SIDE - 1)
        flat = ((size * self.table.shape[1] + kind.clamp(min=0)) * 4)[:, None] + torch.arange(4, device=self.device)
        pixels = self.table.view(-1, SIDE, SIDE)[flat[:, :, None, None], row[:, None, :, None], column[:, None, None, :]]
        return pixels.float() / 255 * inside[:, None]

    def draw(self, scene):
        """Pictures [B, 3, SIDE, SIDE] in -1 .. 1 of a dict of tensors: kind, size, x, y [B, 2], ground and tint [B, 3]."""
        picture = (scene["ground"].float() / 255)[:, :, None, None].expand(-1, -1, SIDE, SIDE)
        for k in range(scene["kind"].shape[1]):
            rgba = self.sprite(*(scene[n][:, k].long() for n in ("kind", "size", "x", "y")))
            colour, alpha = rgba[:, :3], rgba[:, 3:]
            colour = torch.where((scene["tint"][:, 0] < 0)[:, None, None, None], colour, tinted(colour, alpha, scene["tint"]))
            picture = colour + picture * (1 - alpha)
        return picture * 2 - 1


def tinted(colour, alpha, tint):
    """The sprite in shades of one colour: its lightness runs from black over the colour to white."""
    weights = torch.tensor([0.299, 0.587, 0.114], device=colour.device)[None, :, None, None]
    light = ((colour / alpha.clamp(min=1e-3)) * weights).sum(1, keepdim=True).clamp(0, 1)
    tint = (tint.float() / 255)[:, :, None, None]
    # The colour sits at two thirds of the scale, since most emoji are light.
    low, high = light / 0.66, (light - 0.66) / 0.34
    return torch.where(light < 0.66, tint * low, tint + (1 - tint) * high) * alpha


def to_device(scene, device):
    return {k: torch.as_tensor(v).to(device, non_blocking=True) for k, v in scene.items()}


if __name__ == "__main__":
    classes = read_classes()
    np.savez_compressed(sys.argv[2], sprites=read_font(sys.argv[1], classes), emoji=[c.emoji for c in classes])
    print(len(classes), "classes")
