#!/usr/bin/env python3
"""Fixtures of the parts around a FLUX.2 transformer: states of a tiny Qwen3 after several layers, padding
included, and a tiny AutoencoderKLFlux2, as transformers and diffusers compute them.

    VENV/bin/python tools/golden/flux2_parts.py tests/data/flux2
"""
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import torch
from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from procedural import fill, to_bf16, uniform


def fill_autoencoder(model):
    """Statistics too, which are no parameters: means +- 0.5, variances 1 +- 0.8."""
    fill(model)
    shape = tuple(model.bn.running_mean.shape)
    with torch.no_grad():
        model.bn.running_mean.copy_(torch.from_numpy(to_bf16(0.5 * uniform("bn.running_mean", shape))))
        model.bn.running_var.copy_(torch.from_numpy(to_bf16(1 + 0.8 * uniform("bn.running_var", shape))))
    return model


def text_encoder(folder):
    config = dict(vocab_size=300, hidden_size=32, intermediate_size=80, num_hidden_layers=6, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True,
                  max_position_embeddings=1024)
    model = fill(Qwen3ForCausalLM(Qwen3Config(**config)))
    prompts = [[5, 17, 250, 3, 3, 99, 1, 280, 12], [(i * 37 + 11) % 300 for i in range(17)]]
    tokens, pad, layers = 24, 77, [1, 3, 4]
    ids = torch.tensor([p + [pad] * (tokens - len(p)) for p in prompts])
    mask = torch.tensor([[1] * len(p) + [0] * (tokens - len(p)) for p in prompts])
    with torch.no_grad():
        states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True, use_cache=False).hidden_states
        unmasked = model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    out = {"states": torch.cat([states[k] for k in layers], -1), "unmasked": torch.cat([unmasked[k] for k in layers], -1)}
    save_file({k: v.contiguous() for k, v in out.items()}, folder / "text_encoder.safetensors",
              {"case": json.dumps(dict(config=config, prompts=prompts, tokens=tokens, pad=pad, layers=layers))})


def autoencoder(folder):
    model = fill_autoencoder(AutoencoderKLFlux2(
        block_out_channels=[32, 64], layers_per_block=1, latent_channels=4, norm_num_groups=8,
        decoder_block_out_channels=[16, 32], down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2))
    config = json.loads(model.to_json_string())
    latents = torch.from_numpy(uniform("vae.latents", (2, 16, 3, 5))) * 3**0.5
    image = torch.from_numpy(uniform("vae.image", (2, 3, 12, 20)))
    mean = model.bn.running_mean.view(1, -1, 1, 1)
    deviation = torch.sqrt(model.bn.running_var.view(1, -1, 1, 1) + model.config.batch_norm_eps)
    with torch.no_grad():
        decoded = model.decode(Flux2KleinPipeline._unpatchify_latents(latents * deviation + mean), return_dict=False)[0]
        encoded = model.encode(image).latent_dist
        taken = (Flux2KleinPipeline._patchify_latents(encoded.mode()) - mean) / deviation
    out = dict(decoded=decoded, mean=encoded.mean, logvar=encoded.logvar, latents=taken)
    save_file({k: v.contiguous() for k, v in out.items()}, folder / "autoencoder.safetensors",
              {"case": json.dumps(dict(config=config))})


if __name__ == "__main__":
    text_encoder(Path(sys.argv[1]))
    autoencoder(Path(sys.argv[1]))
