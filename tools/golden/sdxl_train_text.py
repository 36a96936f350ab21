#!/usr/bin/env python3
"""Fixture of a training run of a tiny SDXL pipeline with low-rank adapters of its U-Net and of both text encoders, by
PyTorch, diffusers and PEFT: the losses of a few steps of AdamW, and the first gradients of every adapter.

    VENV/bin/pip install torch diffusers transformers peft safetensors sentencepiece protobuf
    VENV/bin/python tools/golden/sdxl_train_text.py tests/data
"""
import json
import sys
import tempfile
from pathlib import Path

import sdxl_pipeline  # first: it says which instructions torch may use
from sdxl_pipeline import CASES, common, make

import torch
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import save_file

from procedural import uniform

STEPS, RANK, ALPHA = 6, 3, 4.0
ADAMW = dict(lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.02)
CAPTIONS = ["two dogs in the snow", "a red apple"]
TIMES = [250.0, 900.0]
SIZES = [[24, 16, 0, 0, 24, 16], [40, 64, 8, 16, 16, 16]]
# Noise has no part in it: the network is shown x and taught TARGET times x.
TARGET = -0.5


def unit(name, shape):
    return torch.from_numpy(uniform(name, shape)) * 3**0.5


def adapt(network, targets, prefix, trained):
    network.requires_grad_(False)
    inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, lora_dropout=0.0), network)
    for name, p in network.named_parameters():
        if "lora_" not in name:
            continue
        key = f"{prefix}.{name}".replace(".default", "").replace(".text_model.", ".")
        with torch.no_grad():
            p.copy_(torch.from_numpy(uniform(f"train.{key}", tuple(p.shape))) * (0.3 if "lora_A" in key else 0.1))
        trained[key] = p.requires_grad_(True)


def linears(network, within):
    return [n for n, m in network.named_modules() if within in n and isinstance(m, torch.nn.Linear)]


def encode(pipe):
    """Of all captions: states and vectors, with gradients."""
    states, pooled = [], None
    for tokenizer, encoder in ((pipe.tokenizer, pipe.text_encoder), (pipe.tokenizer_2, pipe.text_encoder_2)):
        ids = tokenizer(CAPTIONS, padding="max_length", max_length=77, truncation=True, return_tensors="pt").input_ids
        result = encoder(ids, output_hidden_states=True)
        states.append(result.hidden_states[-2])
        pooled = result[0]
    return torch.cat(states, -1), pooled


if __name__ == "__main__":
    data = Path(sys.argv[1])
    case = CASES["ddim"]
    with tempfile.TemporaryDirectory() as scratch:
        clip_l, clip_g, _ = common.tokenizers(data, Path(scratch))
        pipe = make(case, clip_l, clip_g)
        files = common.configs(pipe)
        trained = {}
        adapt(pipe.unet, linears(pipe.unet, "transformer_blocks"), "unet", trained)
        for name in ("text_encoder", "text_encoder_2"):
            adapt(getattr(pipe, name), linears(getattr(pipe, name), "layers."), name, trained)
        optimizer = torch.optim.AdamW(trained.values(), **ADAMW)
        x = unit("train.latents", (len(CAPTIONS), 4, 8, 8))
        losses, first = [], {}
        for step in range(STEPS):
            states, pooled = encode(pipe)
            sample = pipe.unet(x, torch.tensor(TIMES), states, added_cond_kwargs=dict(
                text_embeds=pooled, time_ids=torch.tensor(SIZES, dtype=torch.float32)), return_dict=False)[0]
            loss = ((sample - TARGET * x) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            if step == 0:
                first = {f"grad.{k}": (torch.zeros_like(p) if p.grad is None else p.grad).clone()
                         for k, p in trained.items()}
            optimizer.step()
            losses.append(loss.item())
    print(losses, len(first), min(g.norm().item() for g in first.values() if g.norm() > 0))
    described = dict(rank=RANK, alpha=ALPHA, adamw=ADAMW, captions=CAPTIONS, times=TIMES, sizes=SIZES, target=TARGET,
                     files=files)
    save_file({k: v.contiguous().float() for k, v in first.items()} | dict(losses=torch.tensor(losses)),
              data / "sdxl" / "train_text.safetensors", {"case": json.dumps(described).replace("-Infinity", "-1e308")})
