"""Scenes in bulk: written by several processes, drawn and encoded on the accelerator, kept as a bank of latents.

    python data.py --vae run/vae.pt --count 655360 --out bank.pt
"""
import argparse
import multiprocessing
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from captions import Author, pack_scenes
from schedule import pick_device
from sprites import Painter, read_classes, to_device
from tokenizer import TOKENS, encode

PACK = Path(__file__).with_name("pack")
CHUNK = 8192


def load_painter(device, tiny=False):
    pack = np.load(PACK / "sprites.npz")
    sprites = pack["sprites"]
    # A pack older than the list of classes would teach every name the wrong picture.
    if pack["emoji"].tolist() != [c.emoji for c in read_classes()]:
        raise ValueError("pack/sprites.npz does not belong to classes.txt: make it again with sprites.py")
    return Painter(sprites[:64] if tiny else sprites, device)


def load_classes(tiny=False):
    return read_classes()[:64] if tiny else read_classes()


def load_tokenizer():
    return Tokenizer.from_file(str(PACK / "tokenizer.json"))


def write_chunk(args):
    """One chunk of scenes as arrays, with the token ids of their captions."""
    seed, count, tiny, words = args
    author = Author(load_classes(tiny), seed)
    scenes = [author.scene() for _ in range(count)]
    out = pack_scenes(scenes)
    if words:
        ids, counts = encode(load_tokenizer(), [s[0] for s in scenes])
        fits = counts <= TOKENS  # a caption that does not fit gives way to a neighbour
        use = np.where(fits, np.arange(count), np.flatnonzero(fits)[0])
        out = {k: v[use] for k, v in out.items()} | {"ids": ids[use], "counts": counts[use]}
    return out


def chunks(count, seed, tiny=False, words=True, workers=12):
    """Chunks in order, made ahead by other processes. These start afresh: forking beside a device can hang."""
    size = min(CHUNK, count)
    jobs = [(f"{seed}-{i}", size, tiny, words) for i in range(count // size)]
    if len(jobs) == 1:
        yield write_chunk(jobs[0])
        return
    with multiprocessing.get_context("spawn").Pool(min(workers, len(jobs))) as pool:
        yield from pool.imap(write_chunk, jobs)


def encode_pictures(vae, pictures):
    with torch.autocast(pictures.device.type, torch.bfloat16, enabled=pictures.is_cuda):
        return vae.encode(pictures.contiguous(memory_format=torch.channels_last)).float()


def decode_latents(vae, latents, statistics):
    shift, scale = statistics
    with torch.autocast(latents.device.type, torch.bfloat16, enabled=latents.is_cuda):
        return vae.decode(latents / scale + shift).float()


def load_vae(path, device, tiny=False):
    """The autoencoder in evaluation mode and its (shift, scale)."""
    from vae import Autoencoder
    saved = torch.load(path, map_location=device, weights_only=True)
    vae = Autoencoder(tiny).to(device).eval().requires_grad_(False)
    vae.load_state_dict({k: v.float() for k, v in saved["model"].items()})
    return vae.to(memory_format=torch.channels_last), (saved["shift"], saved["scale"])


@torch.no_grad()
def build_bank(count, seed, painter, vae, statistics, tiny=False):
    """Latents [N, 16, 16, 16], token ids [N, TOKENS] and their counts [N], on the painter's device."""
    shift, scale = statistics
    half = painter.device.type == "cuda"
    vae = vae.bfloat16() if half else vae
    latents, ids, counts = [], [], []
    for chunk in chunks(count, seed, tiny):
        scene = to_device(chunk, painter.device)
        ids.append(scene["ids"])
        counts.append(scene["counts"])
        for i in range(0, len(chunk["kind"]), 1024):
            pictures = painter.draw({k: v[i:i + 1024] for k, v in scene.items()}).to(torch.bfloat16 if half else torch.float32)
            z = vae.encode(pictures.contiguous(memory_format=torch.channels_last)).float()
            latents.append(((z - shift) * scale).to(pictures.dtype).contiguous())
    return {"latents": torch.cat(latents), "ids": torch.cat(ids), "counts": torch.cat(counts)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--vae", type=Path, required=True)
    parser.add_argument("--count", type=int, default=80 * CHUNK)
    parser.add_argument("--seed", default="train")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    start, device = time.time(), pick_device()
    vae, statistics = load_vae(args.vae, device, args.tiny)
    bank = build_bank(args.count, args.seed, load_painter(device, args.tiny), vae, statistics, args.tiny)
    built = time.time()
    torch.save({k: v.cpu() for k, v in bank.items()}, args.out.with_suffix(".part"))
    args.out.with_suffix(".part").rename(args.out)
    print(f"{len(bank['ids'])} scenes drawn and encoded in {built - start:.0f} s, saved in {time.time() - built:.0f} s; "
          f"spread {bank['latents'].float().std().item():.3f}", flush=True)
