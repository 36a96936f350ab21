#!/usr/bin/env python3
"""Fixtures of the parts around a Z-Image transformer: a tiny Qwen3, a tiny AutoencoderKL, and
schedules of FlowMatchEuler, as transformers and diffusers compute them.

    VENV/bin/python tools/golden/zimage_parts.py tests/data/zimage
"""
import json
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.z_image.pipeline_z_image import calculate_shift, get_default_z_image_sigmas
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from procedural import fill, uniform


def text_encoder(folder):
    config = dict(vocab_size=300, hidden_size=32, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True,
                  max_position_embeddings=1024)
    model = fill(Qwen3ForCausalLM(Qwen3Config(**config)))
    prompts = [[5, 17, 250, 3, 3, 99, 1], [(i * 37 + 11) % 300 for i in range(45)]]
    out = {}
    for i, ids in enumerate(prompts):
        with torch.no_grad():
            states = model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
        for layer in range(config["num_hidden_layers"] - 1):
            out[f"prompt.{i}.layer.{layer}"] = states[layer + 1][0].contiguous()
        out[f"prompt.{i}.states"] = states[-2][0].contiguous()
    save_file({k: v.clone() for k, v in out.items()}, folder / "text_encoder.safetensors",
              {"case": json.dumps(dict(config=config, prompts=prompts))})


def autoencoder(folder):
    config = dict(in_channels=3, out_channels=3, latent_channels=16, block_out_channels=[32, 64], layers_per_block=1,
                  norm_num_groups=8, scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False,
                  use_post_quant_conv=False, down_block_types=["DownEncoderBlock2D"] * 2,
                  up_block_types=["UpDecoderBlock2D"] * 2, mid_block_add_attention=True)
    model = fill(AutoencoderKL(**config))
    latents = torch.from_numpy(uniform("vae.latents", (2, 16, 6, 4))) * 3**0.5
    image = torch.from_numpy(uniform("vae.image", (1, 3, 12, 20)))
    with torch.no_grad():
        decoded = model.decode(latents / config["scaling_factor"] + config["shift_factor"], return_dict=False)[0]
        encoded = model.encode(image).latent_dist
    save_file({"decoded": decoded.contiguous(), "mean": encoded.mean.contiguous(), "logvar": encoded.logvar.contiguous()},
              folder / "autoencoder.safetensors", {"case": json.dumps(dict(config=config))})


def schedules(folder):
    out, cases = {}, []
    for i, (config, steps, tokens) in enumerate([
            (dict(shift=3.0), 8, 4096), (dict(shift=1.0), 1, 64),
            (dict(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15), 9, 1024),
            (dict(use_dynamic_shifting=True, time_shift_type="linear", shift_terminal=0.02), 5, 300)]):
        scheduler = FlowMatchEulerDiscreteScheduler(**config)
        mu = calculate_shift(tokens, scheduler.config.get("base_image_seq_len", 256),
                             scheduler.config.get("max_image_seq_len", 4096), scheduler.config.get("base_shift", 0.5),
                             scheduler.config.get("max_shift", 1.15))
        scheduler.set_timesteps(sigmas=get_default_z_image_sigmas(steps), mu=mu)
        out[f"sigmas.{i}"] = scheduler.sigmas.clone()
        cases.append(dict(config=config, steps=steps, tokens=tokens))
    save_file(out, folder / "schedules.safetensors", {"cases": json.dumps(cases)})


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    text_encoder(folder)
    autoencoder(folder)
    schedules(folder)
