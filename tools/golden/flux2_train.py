#!/usr/bin/env python3
"""Fixtures of training runs: 20 steps of AdamW on a low-rank adapter of a tiny FLUX.2 transformer, and on all of
its weights, by PyTorch, diffusers and PEFT. The C++ test trains on the same data.

    VENV/bin/pip install torch diffusers transformers peft safetensors
    VENV/bin/python tools/golden/flux2_train.py tests/data/flux2
"""
import json
import sys
from pathlib import Path

from flux2_transformer import CASES, gradients, inputs_of, unit, velocity  # first: which instructions torch may use

import torch
from diffusers import Flux2Transformer2DModel
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import save_file

from procedural import fill, uniform

STEPS, RANK, ALPHA = 20, 4, 6.0
ADAMW = dict(lr=2e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.02)
ADAMW_FULL = dict(lr=2e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.02)


def train(model, case, trained, adamw, first_gradients):
    """Losses of all steps, and the gradients of the first."""
    optimizer = torch.optim.AdamW(trained.values(), **adamw)
    losses, first = [], {}
    for step in range(STEPS):
        x, texts, references = inputs_of(f"train.{step % 4}", case)
        noise = unit(f"train.noise.{step}", tuple(x.shape))
        sigma = torch.from_numpy(uniform(f"train.sigma.{step}", (x.shape[0],))) * 0.45 + 0.5
        s = sigma[:, None, None, None]
        sample = velocity(model, dict(case, sigmas=sigma.tolist()), (1 - s) * x + s * noise, texts, references)
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
    print(losses, len(tensors), "tensors")


def main(folder):
    case = CASES["small"]
    model = fill(Flux2Transformer2DModel(**case["config"])).requires_grad_(False)
    about = dict(config=json.loads(model.to_json_string()), size=case["size"], text=case["text"], rows=len(case["sigmas"]))
    targets = [n for n, m in model.named_modules() if "transformer_blocks" in n and isinstance(m, torch.nn.Linear)]
    inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, lora_dropout=0.0), model)
    trained = {n.replace(".default", ""): p for n, p in model.named_parameters() if "lora_" in n}
    with torch.no_grad():
        for name, p in trained.items():
            p.copy_(torch.from_numpy(uniform(f"train.{name}", tuple(p.shape))) * (0.2 if "lora_A" in name else 0.02))
            p.requires_grad_(True)
    losses, first = train(model, case, trained, ADAMW,
                          lambda: {f"grad.{n}": p.grad.clone() for n, p in trained.items()})
    save(Path(folder) / "train.safetensors", losses, first, dict(about, rank=RANK, alpha=ALPHA, adamw=ADAMW))

    model = fill(Flux2Transformer2DModel(**case["config"])).requires_grad_(True)
    losses, first = train(model, case, dict(model.named_parameters()), ADAMW_FULL, lambda: gradients(model))
    save(Path(folder) / "train_full.safetensors", losses, first, dict(about, adamw=ADAMW_FULL))


if __name__ == "__main__":
    main(sys.argv[1])
