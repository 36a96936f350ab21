#!/usr/bin/env python3
"""Fixtures of pictures: small files of every kind that is read, and what Pillow makes of them.

    VENV/bin/python tools/golden/pictures.py tests/data/pictures

Needs: pillow numpy safetensors
"""
import pathlib
import sys

import numpy as np
from PIL import Image, ImageOps
from safetensors.numpy import save_file

out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
rng = np.random.default_rng(7)
height, width = 20, 28
ramp = np.linspace(0, 255, width)[None, :, None] * np.array([1, 0.5, 0.2])
rows = np.linspace(0, 200, height)[:, None, None] * np.array([0, 0.4, 1])
base = np.clip(ramp + rows + rng.normal(0, 6, (height, width, 3)), 0, 255).astype(np.uint8)
expected = {}


def shown(picture: Image.Image) -> np.ndarray:
    picture = ImageOps.exif_transpose(picture)
    if "A" in picture.getbands() or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    return np.asarray(picture.convert("RGB"))


def add(name: str, picture: Image.Image, **how) -> None:
    picture.save(out / name, **how)
    with Image.open(out / name) as again:
        expected[name] = shown(again)


rgb = Image.fromarray(base)
add("plain.png", rgb)
add("grey.png", rgb.convert("L"))
add("palette.png", rgb.quantize(16))
alpha = np.dstack([base, np.linspace(0, 255, width)[None, :].repeat(height, 0).astype(np.uint8)])
add("alpha.png", Image.fromarray(alpha, "RGBA"))
add("plain.webp", rgb, lossless=True)
add("alpha.webp", Image.fromarray(alpha, "RGBA"), lossless=True, exact=True)
for orientation in range(1, 9):
    exif = Image.Exif()
    exif[0x0112] = orientation
    add(f"turned{orientation}.jpg", rgb, quality=95, subsampling=0, exif=exif)
    if orientation == 6:
        add("turned6.png", rgb, exif=exif)
        add("turned6.webp", rgb, lossless=True, exif=exif)
add("grey.jpg", rgb.convert("L"), quality=95)
# Cropped to the middle and resized, as trainers do it.
for name, (w, h) in {"smaller": (12, 8), "larger": (64, 48), "tall": (8, 24), "same": (28, 20)}.items():
    part_w, part_h = min(width, height * w / h), min(height, width * h / w)
    left, top = (width - part_w) / 2, (height - part_h) / 2
    box = (left, top, left + part_w, top + part_h)
    expected[f"resize.{name}"] = np.asarray(rgb.resize((w, h), Image.Resampling.LANCZOS, box=box))
save_file({k: np.ascontiguousarray(v) for k, v in expected.items()}, out / "expected.safetensors")
