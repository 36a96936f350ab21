"""The judge: a small convolutional net that names the emoji in a picture, trained on drawn scenes.

    python classifier.py --minutes 1 --out run

It sees whole pictures with one emoji and, enlarged, the half-size squares that hold one of two.
"""
import argparse
import json
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

from data import load_painter
from schedule import Clock, pick_device, rate, synchronize
from sprites import SIDE, SIZES

# The squares of a picture of two, and where each emoji's centre is: (left, top).
HALVES = {"left": (0, 32), "right": (64, 32), "top": (32, 0), "bottom": (32, 64)}


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
                         nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(block(3, 32), block(32, 64), block(64, 128), block(128, 256), block(256, 384))
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(384 * 4, classes))

    def forward(self, x):
        return self.head(F.adaptive_avg_pool2d(self.body(x), 2).flatten(1))


def crop(pictures, half):
    left, top = HALVES[half]
    square = pictures[:, :, top:top + SIDE // 2, left:left + SIDE // 2]
    return F.interpolate(square, size=(SIDE, SIDE), mode="bilinear", align_corners=False)


def grounds(count, device, generator):
    """Any colour at all, and often white."""
    colours = torch.randint(0, 256, (count, 3), device=device, generator=generator)
    return torch.where(torch.rand(count, 1, device=device, generator=generator) < 0.3, torch.full_like(colours, 255), colours)


def scenes_of(kinds, centres, low, high, jitter, generator):
    """Scenes of kinds [B, n] near the given centres, of sizes low .. high."""
    device, (count, n) = kinds.device, kinds.shape
    allowed = torch.tensor([i for i, s in enumerate(SIZES) if low <= s <= high], device=device)
    pick = torch.randint(len(allowed), (count, n), device=device, generator=generator)
    move = torch.randint(-jitter, jitter + 1, (2, count, n), device=device, generator=generator)
    x, y = (torch.tensor([c[i] for c in centres], device=device) for i in (0, 1))
    return {"kind": kinds, "size": allowed[pick], "x": x + move[0], "y": y + move[1],
            "ground": grounds(count, device, generator), "tint": torch.full((count, 3), -1, device=device)}


def examples(painter, count, classes, generator=None):
    """Half whole pictures with one emoji, a quarter each squares of side by side and of stacked ones; and labels."""
    kinds = torch.randint(classes, (count, 2), device=painter.device, generator=generator)
    half, quarter = count // 2, count // 4
    one = painter.draw(scenes_of(kinds[:half, :1], [(64, 64)], 88, 128, 8, generator))
    flat = painter.draw(scenes_of(kinds[half:half + quarter], [(32, 64), (96, 64)], 48, 64, 5, generator))
    tall = painter.draw(scenes_of(kinds[half + quarter:], [(64, 32), (64, 96)], 48, 64, 5, generator))
    pictures = torch.cat([one, crop(flat, "left"), crop(tall, "bottom")])
    return pictures, torch.cat([kinds[:half, 0], kinds[half:half + quarter, 0], kinds[half + quarter:, 1]])


def roughen(pictures):
    """Small blur and noise, so that the traces of an autoencoder do not matter."""
    soft = F.avg_pool2d(F.pad(pictures, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    mix = torch.rand(len(pictures), 1, 1, 1, device=pictures.device) * (torch.rand(1, device=pictures.device) < 0.5)
    pictures = pictures + (soft - pictures) * mix
    return pictures + torch.randn_like(pictures) * torch.rand(len(pictures), 1, 1, 1, device=pictures.device) * 0.06


@torch.no_grad()
def predict(net, pictures):
    with torch.autocast(pictures.device.type, torch.bfloat16, enabled=pictures.is_cuda):
        return torch.cat([net(p.contiguous(memory_format=torch.channels_last)).argmax(1) for p in pictures.split(256)])


def load_classifier(path, device):
    state = torch.load(path, map_location=device, weights_only=True)
    net = Classifier(len(state["head.1.bias"])).to(device).eval().to(memory_format=torch.channels_last)
    net.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in state.items()})
    return net


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--out", type=Path, default=Path("run"))
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    device = pick_device()
    painter = load_painter(device, args.tiny)
    classes = painter.table.shape[1]
    torch.manual_seed(2)
    net = Classifier(classes).to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.02, fused=device.type == "cuda")
    step, clock = 0, Clock(args.minutes, args.steps)
    while clock.progress(step) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * rate(clock.progress(step), step, warmup=100, hold=0.2)
        pictures, labels = examples(painter, args.batch, classes)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = F.cross_entropy(net(roughen(pictures).contiguous(memory_format=torch.channels_last)).float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        step += 1
        if step % (5 if args.tiny else 200) == 0:
            print(f"step {step}  {clock.elapsed():.0f} s  loss {loss.item():.4f}", flush=True)
    synchronize(device)
    net.eval()
    generator = torch.Generator(device).manual_seed(12345)  # pictures that training has not drawn
    right = {"whole": 0, "square": 0}
    rounds, count = (1, 64) if args.tiny else (16, 512)
    for _ in range(rounds):
        pictures, labels = examples(painter, count, classes, generator)
        hit = predict(net, pictures) == labels
        right["whole"] += hit[:count // 2].sum().item()
        right["square"] += hit[count // 2:].sum().item()
    scores = {k: v / (rounds * count // 2) for k, v in right.items()} | {"steps": step, "seconds": clock.elapsed()}
    print(scores, flush=True)
    torch.save({k: v.bfloat16() if v.is_floating_point() else v for k, v in net.state_dict().items()}, args.out / "judge.pt")
    (args.out / "judge.json").write_text(json.dumps(scores))
