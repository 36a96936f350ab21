#!/usr/bin/env python3
"""Fixtures of training runs of tiny FLUX.1 and Stable Diffusion 3 transformers: 20 steps of AdamW on a low-rank
adapter, and on all weights, by PyTorch, diffusers and PEFT. The C++ test trains on the same data.

    VENV/bin/pip install torch diffusers transformers peft safetensors
    VENV/bin/python tools/golden/denoiser_train.py tests/data
"""
import json
import sys
from pathlib import Path

from denoiser import gradients, inputs_of, unit  # first: it says which instructions torch may use

import torch
from diffusers import FluxTransformer2DModel, SD3Transformer2DModel
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import save_file

import flux1_transformer
import sd3_transformer
from procedural import fill, uniform, weight

STEPS, RANK, ALPHA = 20, 4, 6.0
ADAMW = dict(lr=2e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.02)
ADAMW_FULL = dict(lr=2e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.02)


def flux1():
    case = flux1_transformer.CASES["small"]
    # While it is trained the network is told of no guidance.
    return dict(case, guidance=[1.0] * 2), fill(FluxTransformer2DModel(**case["config"])), flux1_transformer.velocity


def sd3():
    case = sd3_transformer.CASES["small"]
    model = fill(SD3Transformer2DModel(**case["config"]))
    table = model.pos_embed.pos_embed
    table.copy_(torch.from_numpy(weight("pos_embed.pos_embed", tuple(table.shape))))
    return case, model, sd3_transformer.velocity


def train(model, case, velocity, trained, adamw, first_gradients):
    """Losses of all steps, and the gradients of the first."""
    optimizer = torch.optim.AdamW(trained.values(), **adamw)
    losses, first = [], {}
    for step in range(STEPS):
        x, text, pooled = inputs_of(f"train.{step % 4}", case)
        noise = unit(f"train.noise.{step}", tuple(x.shape))
        sigma = torch.from_numpy(uniform(f"train.sigma.{step}", (x.shape[0],))) * 0.45 + 0.5
        s = sigma[:, None, None, None]
        sample = velocity(model, dict(case, sigmas=sigma.tolist()), (1 - s) * x + s * noise, text, pooled)
        loss = ((sample - (noise - x)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            first = first_gradients()
        optimizer.step()
        losses.append(loss.item())
    return losses, first


def save(path, losses, tensors, description):
    tensors = {k: v.detach().clone().contiguous().float() for k, v in tensors.items()}
    save_file(dict(tensors, losses=torch.tensor(losses)), path, {"case": json.dumps(description)})
    print(path, losses[0], losses[-1], len(tensors), "tensors")


def main(folder, name, make):
    case, model, velocity = make()
    model.requires_grad_(False)
    about = dict(config=json.loads(model.to_json_string()), size=case["size"], text=case["text"], rows=len(case["sigmas"]))
    targets = [n for n, m in model.named_modules() if "transformer_blocks" in n and isinstance(m, torch.nn.Linear)]
    inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, lora_dropout=0.0), model)
    trained = {n.replace(".default", ""): p for n, p in model.named_parameters() if "lora_" in n}
    with torch.no_grad():
        for key, p in trained.items():
            p.copy_(torch.from_numpy(uniform(f"train.{key}", tuple(p.shape))) * (0.2 if "lora_A" in key else 0.02))
            p.requires_grad_(True)
    losses, first = train(model, case, velocity, trained, ADAMW,
                          lambda: {f"grad.{n}": p.grad.clone() for n, p in trained.items()})
    save(folder / name / "train.safetensors", losses, first,
         dict(about, rank=RANK, alpha=ALPHA, adamw=ADAMW, targets=len(targets)))

    case, model, velocity = make()
    model.requires_grad_(True)
    trained = dict(model.named_parameters())
    losses, first = train(model, case, velocity, trained, ADAMW_FULL, lambda: gradients(model))
    save(folder / name / "train_full.safetensors", losses, first, dict(about, adamw=ADAMW_FULL, targets=len(trained)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), "flux1", flux1)
    main(Path(sys.argv[1]), "sd3", sd3)
