"""Train the autoencoder on drawn scenes.

    python train_vae.py --minutes 4 --out run
"""
import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F

from data import chunks, decode_latents, encode_pictures, load_painter
from evaluate import sheet
from schedule import Clock, average, pick_device, rate, synchronize
from sprites import to_device
from vae import Autoencoder

# The decoder sees latents with noise of up to this share of their spread: what a sampler makes is never exact.
NOISE = 0.15


def edges(a, b):
    """L1 between neighbouring differences at three scales: a blurred edge costs more than under plain L1."""
    loss = 0.0
    for scale in range(3):
        if scale:
            a, b = F.avg_pool2d(a, 2), F.avg_pool2d(b, 2)
        d = a - b
        loss = loss + (d[..., 1:] - d[..., :-1]).abs().mean() + (d[..., 1:, :] - d[..., :-1, :]).abs().mean()
    return loss


def losses(vae, pictures):
    z = vae.encode(pictures).float()
    mean, spread = z.mean((0, 2, 3)), z.std((0, 2, 3))
    # Noise relative to the spread, so that growing the latents does not help; and every channel near unit size.
    level = torch.rand(len(z), 1, 1, 1, device=z.device) * NOISE
    noisy = z + torch.randn_like(z) * level * spread.detach()[None, :, None, None]
    out = vae.decode(noisy).float()
    size = (mean.pow(2) + (spread - 1).pow(2)).mean()
    error = F.mse_loss(out, pictures)
    return F.l1_loss(out, pictures) + 0.5 * edges(out, pictures) + 0.5 * error + 0.01 * size, error.detach()


def draw_batch(painter, scenes, count):
    at = torch.randint(len(scenes["kind"]), (count,), device=painter.device)
    scene = {k: v[at] for k, v in scenes.items()}
    for axis in ("x", "y"):  # every phase of the 8-pixel grid
        scene[axis] = scene[axis] + torch.randint(-4, 5, (count, 1), device=painter.device)
    other = torch.randint(0, 256, (count, 3), device=painter.device)
    scene["ground"] = torch.where(torch.rand(count, 1, device=painter.device) < 0.25, other, scene["ground"].long())
    return painter.draw(scene).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def psnr(vae, painter, scenes, noise=0.0):
    total = 0.0
    for i in range(0, len(scenes["kind"]), 128):
        pictures = painter.draw({k: v[i:i + 128] for k, v in scenes.items()})
        z = encode_pictures(vae, pictures)
        z = z + noise * z.std((0, 2, 3), keepdim=True) * torch.randn_like(z)
        out = decode_latents(vae, z, (0.0, 1.0)).clamp(-1, 1)
        total += (-10 * torch.log10(((out - pictures) / 2).pow(2).mean((1, 2, 3)).clamp(min=1e-8))).sum().item()
    return total / len(scenes["kind"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--out", type=Path, default=Path("run"))
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    count = 512 if args.tiny else 16 * 8192
    parts = list(chunks(count, "vae", args.tiny, words=False))
    check = next(chunks(128 if args.tiny else 1024, "vae held out", args.tiny, words=False))
    device = pick_device()
    painter = load_painter(device, args.tiny)
    scenes = {k: torch.cat([torch.as_tensor(p[k]) for p in parts]).to(device) for k in parts[0]}
    check = to_device(check, device)
    torch.manual_seed(0)
    vae = Autoencoder(args.tiny).to(device).to(memory_format=torch.channels_last)
    if args.resume:
        vae.load_state_dict({k: v.float() for k, v in torch.load(args.resume, map_location=device)["model"].items()})
    smooth = [p.detach().clone() for p in vae.parameters()]
    optimizer = torch.optim.AdamW(vae.parameters(), lr=args.lr, betas=(0.9, 0.99), weight_decay=1e-3,
                                  fused=device.type == "cuda")
    step_losses = losses if args.tiny else torch.compile(losses)
    history, step, clock, start = [], 0, None, Clock(1)
    every = 10 if args.tiny else 200
    while True:
        progress = clock.progress(step) if clock else 0.0
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate(progress, step, warmup=200, hold=0.2)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss, error = step_losses(vae, draw_batch(painter, scenes, args.batch))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        average(smooth, vae, min(0.999, step / (step + 10)))
        step += 1
        if step == 3:  # compiled by now
            synchronize(device)
            clock = Clock(args.minutes, args.steps)
            print(f"first steps {start.elapsed():.1f} s", flush=True)
        if step % every == 0:
            synchronize(device)
            history.append([step, clock.elapsed(), loss.item(), -10 * math.log10(error.item() / 4)])
            print("step %d  %.0f s  loss %.4f  psnr of the mean error %.2f" % tuple(history[-1]), flush=True)
        if clock and clock.progress(step) >= 1:
            break
    with torch.no_grad():
        for p, s in zip(vae.parameters(), smooth):
            p.copy_(s.bfloat16().float())  # as it will be stored
    vae.eval()
    with torch.no_grad():
        z = torch.cat([encode_pictures(vae, painter.draw({k: v[i:i + 128] for k, v in check.items()}))
                       for i in range(0, len(check["kind"]), 128)])
    # One number each, as the pipeline has it; the spread is the root mean square about the shift.
    shift = round(z.mean().item(), 4)
    scale = round(1 / (z - shift).pow(2).mean().sqrt().item(), 4)
    scores = {"psnr": psnr(vae, painter, check), "psnr with noise 0.1": psnr(vae, painter, check, 0.1),
              "shift": shift, "scale": scale, "channel std": [round(v, 3) for v in z.std((0, 2, 3)).tolist()],
              "steps": step, "seconds": clock.elapsed()}
    print(scores, flush=True)
    shown = painter.draw({k: v[:32] for k, v in check.items()})
    with torch.no_grad():
        again = decode_latents(vae, encode_pictures(vae, shown), (0.0, 1.0)).clamp(-1, 1)
    sheet(torch.stack([shown, again], 1).flatten(0, 1), 16, args.out / "vae.png")  # each beside its reconstruction
    torch.save({"model": {k: v.bfloat16() for k, v in vae.state_dict().items()}, "shift": shift, "scale": scale},
               args.out / "vae.pt")
    (args.out / "vae.json").write_text(json.dumps({"scores": scores, "history": history}))
