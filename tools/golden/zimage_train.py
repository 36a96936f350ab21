#!/usr/bin/env python3
"""Fixtures of training runs: 20 steps of AdamW on a low-rank adapter of a tiny Z-Image transformer, and on
all of its weights, by PyTorch, diffusers and PEFT. The C++ test trains on the same data.

    VENV/bin/pip install torch diffusers transformers peft safetensors
    VENV/bin/python tools/golden/zimage_train.py tests/data/zimage
"""
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import torch
from diffusers import ZImageTransformer2DModel
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import save_file

from procedural import fill, uniform
from zimage_transformer import CASES

STEPS, RANK, ALPHA = 20, 4, 6.0
ADAMW = dict(lr=5e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.02)
ADAMW_FULL = dict(lr=5e-4, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.02)
TARGETS = ["to_q", "to_k", "to_v", "to_out.0", "w1", "w2", "w3"]


def gaussian_like(name, shape):
    return torch.from_numpy(uniform(name, shape)) * 3**0.5


def batch(case, config, step):
    """Clean latents, noise, sigmas and captions of a step: one of four pictures in each row."""
    height, width = case["size"]
    rows = len(case["captions"])
    shape = (rows, 16, height, width)
    x, noise = gaussian_like(f"train.x.{step % 4}", shape), gaussian_like(f"train.noise.{step}", shape)
    sigma = torch.from_numpy(uniform(f"train.sigma.{step}", (rows,))) * 0.45 + 0.5
    captions = [gaussian_like(f"train.caption.{step % 4}.{i}", (n, config["cap_feat_dim"]))
                for i, n in enumerate(case["captions"])]
    return x, noise, sigma, captions


def train(model, case, config, trained, adamw):
    """Losses of all steps, and the gradients of the first."""
    optimizer = torch.optim.AdamW(trained.values(), **adamw)
    losses, gradients = [], {}
    for step in range(STEPS):
        x, noise, sigma, captions = batch(case, config, step)
        s = sigma[:, None, None, None]
        noisy = (1 - s) * x + s * noise
        # The pipeline negates what the transformer gives, and its time runs from noise to picture.
        sample = model(list(noisy.unsqueeze(2).unbind(0)), 1 - sigma, captions, return_dict=False)[0]
        velocity = -torch.stack(sample).squeeze(2)
        loss = ((velocity - (noise - x)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in trained.items()}
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


def save(path, losses, gradients, trained, keep, description):
    out = {f"grad.{name}": g for name, g in gradients.items()}
    out |= {f"final.{name}": p.detach() for name, p in trained.items()}
    out = {k: v.contiguous().float() for k, v in out.items() if keep(k, v)}
    out["losses"] = torch.tensor(losses)
    save_file(out, path, {"case": json.dumps(description)})
    print(losses, len(trained), "trained tensors", len(out), "kept")


def main(folder):
    case = CASES["ragged"]
    config = dict(in_channels=16, n_kv_heads=case["config"]["n_heads"], axes_lens=[256, 64, 64], **case["config"])
    about = dict(config=config, size=case["size"], captions=case["captions"])

    model = fill(ZImageTransformer2DModel(**config)).requires_grad_(False)
    inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, lora_dropout=0.0), model)
    trained = {n.replace(".default", ""): p for n, p in model.named_parameters() if "lora_" in n}
    with torch.no_grad():
        for name, p in trained.items():
            p.copy_(torch.from_numpy(uniform(f"train.{name}", tuple(p.shape))) * (0.2 if "lora_A" in name else 0.02))
            p.requires_grad_(True)
    losses, gradients = train(model, case, config, trained, ADAMW)
    # What is far from its start says most; small tensors keep the fixture small.
    parts = ("layers.0.attention.to_q.", "layers.1.feed_forward.w2.", "noise_refiner.0.attention.to_out.",
             "context_refiner.0.feed_forward.w1.")
    save(Path(folder) / "train.safetensors", losses, gradients, trained,
         lambda name, _: any(part in name for part in parts), dict(about, rank=RANK, alpha=ALPHA, adamw=ADAMW))

    model = fill(ZImageTransformer2DModel(**config)).requires_grad_(True)
    trained = dict(model.named_parameters())
    losses, gradients = train(model, case, config, trained, ADAMW_FULL)
    parts = ("layers.0.attention.to_k.weight", "layers.1.feed_forward.w3.weight")
    save(Path(folder) / "train_full.safetensors", losses, gradients, trained,
         lambda name, v: name.startswith("grad.") and (v.numel() <= 1024 or any(part in name for part in parts)),
         dict(about, adamw=ADAMW_FULL))


if __name__ == "__main__":
    main(sys.argv[1])
