"""Scenes as people keep pictures to train on: PNG files, and a line of captions.jsonl for each.

    python scenes.py --count 16384 --out run/scenes
    halftone train --model models/emoji --data run/scenes --mode full -o run/tuned.safetensors
"""
import argparse
import json
from multiprocessing.pool import ThreadPool
from pathlib import Path

import torch
from PIL import Image

from captions import Author, pack_scenes
from data import load_classes, load_painter
from schedule import pick_device
from sprites import to_device


@torch.no_grad()
def main(args):
    args.out.mkdir(parents=True, exist_ok=True)
    device = pick_device()
    painter, author = load_painter(device), Author(load_classes(), args.seed)
    with open(args.out / "captions.jsonl", "w") as captions, ThreadPool(12) as pool:
        for start in range(0, args.count, 1024):
            scenes = [author.scene() for _ in range(min(1024, args.count - start))]
            drawn = painter.draw(to_device(pack_scenes(scenes), device))
            pixels = ((drawn + 1) * 127.5).round().clamp(0, 255).byte().permute(0, 2, 3, 1).cpu().numpy()
            names = [f"{start + i:06}.png" for i in range(len(scenes))]
            pool.starmap(lambda name, picture: Image.fromarray(picture).save(args.out / name, compress_level=1),
                         zip(names, pixels))
            for name, scene in zip(names, scenes):
                captions.write(json.dumps({"file_name": name, "text": scene[0]}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=16384)
    parser.add_argument("--seed", default="further")
    parser.add_argument("--out", type=Path, required=True)
    main(parser.parse_args())
