#!/usr/bin/env python3
"""Fixture of a training run: 20 steps of AdamW on a low-rank adapter of a tiny Z-Image transformer, by
PyTorch, diffusers and PEFT. The C++ test trains on the same data.

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


def main(folder):
    case = CASES["ragged"]
    config = dict(in_channels=16, n_kv_heads=case["config"]["n_heads"], axes_lens=[256, 64, 64], **case["config"])
    model = fill(ZImageTransformer2DModel(**config)).requires_grad_(False)
    inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, lora_dropout=0.0), model)
    trained = {n.replace(".default", ""): p for n, p in model.named_parameters() if "lora_" in n}
    with torch.no_grad():
        for name, p in trained.items():
            p.copy_(torch.from_numpy(uniform(f"train.{name}", tuple(p.shape))) * (0.2 if "lora_A" in name else 0.02))
            p.requires_grad_(True)
    optimizer = torch.optim.AdamW(trained.values(), **ADAMW)
    losses, out = [], {}
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
            for name, p in trained.items():
                out[f"grad.{name}"] = p.grad.clone()
        optimizer.step()
        losses.append(loss.item())
    for name, p in trained.items():
        out[f"final.{name}"] = p.detach()
    out["losses"] = torch.tensor(losses)
    description = json.dumps(dict(config=config, size=case["size"], captions=case["captions"], rank=RANK, alpha=ALPHA,
                                  adamw=ADAMW))
    # What is far from its start says most; small tensors keep the fixture small.
    keep = ("losses", "layers.0.attention.to_q.", "layers.1.feed_forward.w2.", "noise_refiner.0.attention.to_out.",
            "context_refiner.0.feed_forward.w1.")
    out = {k: v.contiguous().float() for k, v in out.items() if any(part in k for part in keep)}
    save_file(out, Path(folder) / "train.safetensors", {"case": description})
    print(losses, len(trained), "trained tensors")


if __name__ == "__main__":
    main(sys.argv[1])
