#!/usr/bin/env python3
"""Fixtures of tiny Z-Image transformers: what diffusers computes, block by block, and gradients.

    VENV/bin/pip install torch diffusers transformers safetensors
    VENV/bin/python tools/golden/zimage_transformer.py tests/data/zimage
"""
import json
import os
import sys
from pathlib import Path

# Some virtual machines advertise AMX and then trap on it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import torch
from diffusers import ZImageTransformer2DModel
from safetensors.torch import save_file

from procedural import fill, uniform

# Differently shaped on purpose: unequal captions in a batch, H != W, token counts that are and are
# not multiples of 32, aligned dimensions for the low-precision kernels.
CASES = {
    "ragged": dict(config=dict(dim=96, n_heads=3, axes_dims=[16, 8, 8], n_layers=2, n_refiner_layers=1,
                               cap_feat_dim=32), size=(8, 12), captions=[7, 40], t=[0.25, 0.8]),
    "square": dict(config=dict(dim=192, n_heads=2, axes_dims=[32, 32, 32], n_layers=1, n_refiner_layers=2,
                               cap_feat_dim=48), size=(16, 16), captions=[33], t=[0.5]),
    "aligned": dict(config=dict(dim=384, n_heads=3, axes_dims=[32, 48, 48], n_layers=1, n_refiner_layers=1,
                                cap_feat_dim=64), size=(4, 10), captions=[64], t=[0.9]),
}


def run(name, case):
    config = dict(in_channels=16, n_kv_heads=case["config"]["n_heads"], axes_lens=[256, 64, 64], **case["config"])
    model = fill(ZImageTransformer2DModel(**config))
    height, width = case["size"]
    batch = len(case["captions"])
    # Gaussian-like inputs of unit variance.
    latents = torch.from_numpy(uniform(f"{name}.latents", (batch, 16, height, width))) * 3**0.5
    captions = [torch.from_numpy(uniform(f"{name}.caption.{i}", (n, config["cap_feat_dim"]))) * 3**0.5
                for i, n in enumerate(case["captions"])]
    target = torch.from_numpy(uniform(f"{name}.target", (batch, 16, height, width))) * 3**0.5
    latents.requires_grad_(True)
    for caption in captions:
        caption.requires_grad_(True)

    out = {}

    def record(key):
        return lambda module, args, result: out.__setitem__(key, result.detach().clone())

    for kind in ("noise_refiner", "context_refiner", "layers"):
        for i, block in enumerate(getattr(model, kind)):
            block.register_forward_hook(record(f"{kind}.{i}"))
    model.t_embedder.register_forward_hook(record("t_embedder"))

    sample = model(list(latents.unsqueeze(2).unbind(0)), torch.tensor(case["t"]), captions, return_dict=False)[0]
    sample = torch.stack(sample).squeeze(2)
    out["sample"] = sample.detach()
    loss = ((sample - target) ** 2).mean()
    loss.backward()
    out["loss"] = loss.detach().reshape(1)
    out["grad.latents"] = latents.grad
    for i, caption in enumerate(captions):
        out[f"grad.caption.{i}"] = caption.grad
    # Gradients of weights: small ones whole, large ones multiplied from both sides by vectors.
    for key, parameter in model.named_parameters():
        g = parameter.grad
        if g is None:
            continue
        if g.numel() <= 2048:
            out[f"grad.{key}"] = g.reshape(-1)
        else:
            left = torch.from_numpy(uniform(f"left.{g.shape[0]}", (g.shape[0],)))
            right = torch.from_numpy(uniform(f"right.{g.shape[1]}", (g.shape[1],)))
            out[f"grad_left.{key}"] = left @ g
            out[f"grad_right.{key}"] = g @ right
    # What diffusers itself loses in bf16: the yardstick for ours.
    for block in model.modules():
        block._forward_hooks.clear()
    half = model.to(torch.bfloat16)
    with torch.no_grad():
        rough = half(list(latents.detach().bfloat16().unsqueeze(2).unbind(0)), torch.tensor(case["t"]),
                     [c.detach().bfloat16() for c in captions], return_dict=False)[0]
    rough = torch.stack(rough).squeeze(2).float()
    bf16_error = ((rough - out["sample"]).norm() / out["sample"].norm()).item()
    description = json.dumps(dict(bf16_error=bf16_error, name=name, config=config, size=case["size"], captions=case["captions"], t=case["t"]))
    return {k: v.contiguous().to(torch.float32) for k, v in out.items()}, {"case": description}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    for name, case in CASES.items():
        tensors, metadata = run(name, case)
        save_file(tensors, folder / f"transformer_{name}.safetensors", metadata)
        print(name, len(tensors), "tensors")
