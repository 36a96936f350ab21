"""Score a model: do the pictures show what the prompts name?

    python evaluate.py --model run/ema.pt --vae run/vae.pt --judge run/judge.pt --out run

Prompts, seeds and the judge are fixed. A picture of two counts only if each emoji is in its own place.
"""
import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
import torch

from captions import COLOURS, article
from classifier import crop, load_classifier, predict
from data import decode_latents, load_classes, load_painter, load_tokenizer, load_vae
from model import Model
from schedule import pick_device
from sprites import held_out
from tokenizer import encode

STEPS = 20
FREE = ["a dog", "a cat on a blue background", "pizza", "a red apple on a yellow background", "a dog next to a pizza",
        "a cat above a car on a green background", "a small rocket in the top left corner", "a big strawberry",
        "rocket on black", "a robot and a ghost on a purple background", "the sun", "a unicorn with a pink background",
        "a blue dog", "a green fish on a red background", "Ice cream cone.", "a picture of a tree on a sky blue background",
        "a tiny ant", "a crown on top of a frog", "a heart", "a guitar to the right of a drum", "burger and fries",
        "a whale under a rainbow", "a castle on a light blue background", "two dogs", "a red car", "an octopus on teal",
        "a spider in the bottom right corner", "coffee next to a donut on a brown background", "a panda", "a giant lemon",
        "moon and star on a dark blue background", "a happy face"]


def named(c):
    name, counts = c.names[0]
    return f"{article(name)} {name}" if counts else name


def ground_of(rng, text):
    """A ground for half of the prompts; white where none is named."""
    colour = rng.choice(list(COLOURS)) if rng.random() < 0.5 else None
    return (f"{text} on {article(colour)} {colour} background", colour) if colour else (text, "white")


def single_prompts(classes, count):
    rng = random.Random("evaluate singles")
    kinds = [k for _ in range(-(-count // len(classes))) for k in rng.sample(range(len(classes)), len(classes))][:count]
    return [(*ground_of(rng, named(classes[k])), k) for k in kinds]


def pair_prompts(classes, count):
    rng, out = random.Random("evaluate pairs"), []
    while len(out) < count:
        a, b = rng.randrange(len(classes)), rng.randrange(len(classes))
        if a == b or not held_out(classes[a].emoji, classes[b].emoji):
            continue
        word, halves = rng.choice([("next to", ("left", "right")), ("above", ("top", "bottom"))])
        out.append((*ground_of(rng, f"{named(classes[a])} {word} {named(classes[b])}"), a, b, halves))
    return out


class Sampler:
    def __init__(self, model, vae, statistics, device):
        self.model, self.vae, self.statistics, self.device = model, vae, statistics, device
        self.tokenizer = load_tokenizer()

    @torch.no_grad()
    def latents(self, prompts, seeds, guidance, shift, steps=STEPS):
        """As the pipeline samples: Euler over shifted sigmas, pos + guidance * (pos - neg)."""
        # One generator a picture, on the CPU, so that a seed means the same noise everywhere.
        x = torch.cat([torch.randn(1, 16, 16, 16, generator=torch.Generator().manual_seed(s)) for s in seeds]).to(self.device)
        ids, counts = (torch.as_tensor(a).to(self.device).long() for a in encode(self.tokenizer, prompts + [""]))
        ids = torch.cat([ids[:-1], ids[-1:].expand(len(prompts), -1)])
        counts = torch.cat([counts[:-1], counts[-1:].expand(len(prompts))])
        sigmas = torch.linspace(1, 1 / steps, steps)
        sigmas = torch.cat([shift * sigmas / (1 + (shift - 1) * sigmas), torch.zeros(1)]).tolist()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            for now, then in zip(sigmas, sigmas[1:]):
                t = torch.full((2 * len(x),), 1 - now, device=self.device)
                positive, negative = self.model(torch.cat([x, x]), t, ids, counts).float().chunk(2)
                x = x + (now - then) * (positive + guidance * (positive - negative))
        return x

    @torch.no_grad()
    def pictures(self, prompts, seeds, guidance, shift, batch=256):
        out = []
        for i in range(0, len(prompts), batch):
            latents = self.latents(prompts[i:i + batch], seeds[i:i + batch], guidance, shift)
            out.append(decode_latents(self.vae, latents, self.statistics).clamp(-1, 1))
        return torch.cat(out)


def ground_right(pictures, colours):
    """Whether the corners have the named colour: nearer to it than to any other of the palette."""
    palette = torch.tensor(list(COLOURS.values()), device=pictures.device).float()
    corners = torch.cat([pictures[:, :, :4, :4].flatten(2), pictures[:, :, :4, -4:].flatten(2),
                         pictures[:, :, -4:, :4].flatten(2), pictures[:, :, -4:, -4:].flatten(2)], 2)
    corner = (corners.median(2).values + 1) * 127.5
    wanted = torch.tensor([list(COLOURS).index(c) for c in colours], device=pictures.device)
    return (torch.cdist(corner, palette).argmin(1) == wanted).float()


def score(sampler, judge, singles, pairs, guidance, shift):
    out, kinds = {}, torch.tensor([s[2] for s in singles], device=sampler.device)
    pictures = sampler.pictures([s[0] for s in singles], list(range(len(singles))), guidance, shift)
    guesses = predict(judge, pictures)
    out["single"] = (guesses == kinds).float().mean().item()
    out["single ground"] = ground_right(pictures, [s[1] for s in singles]).mean().item()
    wrong = [(singles[i][0], guesses[i].item()) for i in (guesses != kinds).nonzero()[:, 0].tolist()]
    if pairs:
        drawn = sampler.pictures([p[0] for p in pairs], list(range(1000, 1000 + len(pairs))), guidance, shift)
        first, second = pair_hits(judge, drawn, pairs)
        out["pair both"], out["pair each"] = (first & second).float().mean().item(), (first.float() + second).mean().item() / 2
        out["pair ground"] = ground_right(drawn, [p[1] for p in pairs]).mean().item()
    return out, pictures, wrong


def pair_hits(judge, pictures, pairs):
    """Whether each emoji is found in its square."""
    hits = []
    for k in (0, 1):
        squares = torch.cat([crop(pictures[i:i + 1], p[4][k]) for i, p in enumerate(pairs)])
        hits.append(predict(judge, squares) == torch.tensor([p[2 + k] for p in pairs], device=pictures.device))
    return hits


def real_pairs(judge, painter, pairs):
    """The judge's own score on drawn pictures of the same pairs."""
    from sprites import to_device
    from captions import pack_scenes
    centre = {"left": (32, 64), "right": (96, 64), "top": (64, 32), "bottom": (64, 96)}
    scenes = [(None, [(p[2 + k], 5, *centre[p[4][k]]) for k in (0, 1)], p[1], None) for p in pairs]
    first, second = pair_hits(judge, painter.draw(to_device(pack_scenes(scenes), painter.device)), pairs)
    return (first & second).float().mean().item()


def sheet(pictures, columns, path):
    from PIL import Image
    pixels = ((pictures.cpu() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    rows = -(-len(pixels) // columns)
    page = np.full((rows * 132, columns * 132, 3), 128, np.uint8)
    for i, picture in enumerate(pixels):
        top, left = i // columns * 132 + 2, i % columns * 132 + 2
        page[top:top + 128, left:left + 128] = picture
    Image.fromarray(page).save(path, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True, help="ema.pt of a run")
    parser.add_argument("--vae", type=Path, required=True)
    parser.add_argument("--judge", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("run"))
    parser.add_argument("--guidance", type=float, nargs="+", default=[1.5, 2.0, 2.5, 3.0, 4.0])
    parser.add_argument("--shift", type=float, nargs="+", default=[1.0, 2.0, 3.0])
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    started, device = time.time(), pick_device()
    classes, painter = load_classes(args.tiny), load_painter(device, args.tiny)
    vae, statistics = load_vae(args.vae, device, args.tiny)
    model = Model(args.tiny).to(device).eval().requires_grad_(False)
    saved = torch.load(args.model, map_location=device, weights_only=True)
    model.load_state_dict({k: v.float() for k, v in saved["model"].items()})
    judge = load_classifier(args.judge, device)
    sampler = Sampler(model, vae, statistics, device)
    singles, pairs = single_prompts(classes, args.count), pair_prompts(classes, args.count // 2)
    report = {"step": saved["step"], "judge on drawn pairs": real_pairs(judge, painter, pairs), "grid": []}
    # The grid is tried on other seeds and prompts than the final score is read from.
    tried = single_prompts(classes, args.count * 2)[args.count:]
    for shift in args.shift:
        for guidance in args.guidance:
            scores, _, _ = score(sampler, judge, tried[:256], pairs[:64], guidance, shift)
            report["grid"].append({"shift": shift, "guidance": guidance} | scores)
            print(report["grid"][-1], f"{time.time() - started:.0f} s", flush=True)
    best = max(report["grid"], key=lambda g: g["single"] + 0.5 * g["pair both"])
    final, pictures, wrong = score(sampler, judge, singles, pairs, best["guidance"], best["shift"])
    report |= {"guidance": best["guidance"], "shift": best["shift"], "scores": final,
               "wrong": [(p, classes[g].names[0][0]) for p, g in wrong]}
    print(json.dumps({k: v for k, v in report.items() if k not in ("grid", "wrong")}), flush=True)
    print("wrong:", "; ".join(f"{p} -> {g}" for p, g in report["wrong"][:40]), flush=True)
    (args.out / "evaluate.json").write_text(json.dumps(report))
    sheet(pictures[:64], 8, args.out / "singles.png")
    drawn = sampler.pictures([p[0] for p in pairs[:64]], list(range(len(pairs[:64]))), best["guidance"], best["shift"])
    sheet(drawn, 8, args.out / "pairs.png")
    (args.out / "prompts.txt").write_text("\n".join(["singles"] + [s[0] for s in singles[:64]] + ["pairs"] + [p[0] for p in pairs[:64]] + ["free"] + FREE))
    sheet(sampler.pictures(FREE, list(range(len(FREE))), best["guidance"], best["shift"]), 8, args.out / "free.png")
