#!/usr/bin/env python3
"""Fixture of the model that ships: final latents that diffusers computes from its folder and given noise.

    VENV/bin/pip install torch diffusers transformers safetensors
    VENV/bin/python tools/golden/emoji.py models/emoji tests/data/emoji
"""
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import torch
from diffusers import ZImagePipeline
from safetensors.torch import save_file

from procedural import uniform

CASES = [dict(prompt="a red apple on a blue background", negative="", guidance=0.0, steps=20),
         dict(prompt="a cat next to a pizza", negative="", guidance=2.0, steps=8)]

if __name__ == "__main__":
    folder, out = sys.argv[1:]
    pipe = ZImagePipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    tensors = {}
    for i, case in enumerate(CASES):
        noise = torch.from_numpy(uniform(f"emoji.noise.{i}", (1, 16, 16, 16))) * 3**0.5
        latents = pipe(prompt=case["prompt"], negative_prompt=case["negative"], height=128, width=128,
                       num_inference_steps=case["steps"], guidance_scale=case["guidance"], latents=noise,
                       output_type="latent").images
        tensors[f"latents.{i}"] = latents.float().contiguous()
    Path(out).mkdir(parents=True, exist_ok=True)
    save_file(tensors, Path(out) / "latents.safetensors", {"cases": json.dumps(CASES)})
