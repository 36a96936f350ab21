#!/usr/bin/env python3
"""Fixture of an adapter on a whole tiny SDXL pipeline, as diffusers and PEFT apply it: on linears and convolutions of
the U-Net and on both text encoders. Text states, vectors and latents at two strengths. The C++ test writes the same
adapter in several namings.

    VENV/bin/pip install torch diffusers transformers peft safetensors sentencepiece protobuf
    VENV/bin/python tools/golden/sdxl_lora.py tests/data
"""
import json
import sys
import tempfile
from pathlib import Path

import sdxl_pipeline  # first: it says which instructions torch may use
from sdxl_pipeline import CASES, common, make

import torch
from safetensors.torch import save_file

from procedural import uniform, weight

RANK, ALPHA, STRENGTHS = 3, 2.0, (0.6, -1.5)
NEGATIVE = "a blurry cat"
UNET = ["conv_in", "down_blocks.0.resnets.0.conv1", "down_blocks.0.downsamplers.0.conv",
        "down_blocks.1.resnets.0.conv_shortcut", "down_blocks.1.resnets.0.time_emb_proj",
        "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q", "mid_block.resnets.1.conv2",
        "mid_block.attentions.0.transformer_blocks.0.attn2.to_v", "up_blocks.0.upsamplers.0.conv",
        "up_blocks.1.attentions.1.transformer_blocks.0.ff.net.2", "up_blocks.2.resnets.1.conv_shortcut",
        "conv_out"]
LAYER = "encoder.layers."
# The first encoder's last layer has no part in what is read of it.
TEXT = {"text_encoder": [f"{LAYER}0.self_attn.q_proj", f"{LAYER}1.mlp.fc1", f"{LAYER}2.mlp.fc2"],
        "text_encoder_2": [f"{LAYER}0.self_attn.v_proj", f"{LAYER}0.self_attn.out_proj", f"{LAYER}1.mlp.fc2"]}


def adapter(pipe):
    """The state, with B times alpha / rank, and shapes by component and module."""
    state, shapes = {}, {}
    for component, modules in dict(unet=UNET, **TEXT).items():
        network = getattr(pipe, component)
        paths = dict(network.named_modules())
        for module in modules:
            path = module if module in paths else f"text_model.{module}"
            shape = tuple(paths[path].weight.shape)
            shapes[f"{component}.{module}"] = shape
            single = (1, 1) if len(shape) == 4 else ()
            name = f"{component}.{module}"
            # Of a size that shows beside the other weights.
            state[f"{component}.{path}.lora_A.weight"] = torch.from_numpy(
                weight(f"{name}.lora_A.weight", (RANK, *shape[1:])))
            state[f"{component}.{path}.lora_B.weight"] = torch.from_numpy(
                weight(f"{name}.lora_B.weight", (shape[0], RANK, *single))) * (ALPHA / RANK)
    return state, shapes


def run(pipe, case, out, key):
    width, height = case["size"]
    noise = torch.from_numpy(uniform("lora.noise", (1, 4, height // 2, width // 2))) * 3**0.5
    with torch.no_grad():
        states, negative, pooled, negative_pooled = pipe.encode_prompt(
            case["prompt"], None, negative_prompt=NEGATIVE, do_classifier_free_guidance=True)
        latents = pipe(prompt=case["prompt"], negative_prompt=NEGATIVE, width=width, height=height,
                       num_inference_steps=2, output_type="latent", guidance_scale=3.0, latents=noise).images
    out |= {f"{key}.states": states[0], f"{key}.pooled": pooled[0], f"{key}.negative": negative[0],
            f"{key}.negative_pooled": negative_pooled[0], f"{key}.latents": latents}


if __name__ == "__main__":
    data, out = Path(sys.argv[1]), {}
    case = CASES["ddim"]
    with tempfile.TemporaryDirectory() as scratch:
        clip_l, clip_g, _ = common.tokenizers(data, Path(scratch))
        pipe = make(case, clip_l, clip_g)
        pipe.set_progress_bar_config(disable=True)
        files = common.configs(pipe)
        run(pipe, case, out, "none")
        state, shapes = adapter(pipe)
        pipe.load_lora_weights(state, adapter_name="all")
        for strength in STRENGTHS:
            pipe.set_adapters("all", strength)
            run(pipe, case, out, str(strength))
            for name in ("states", "pooled", "latents"):
                a, b = out[f"{strength}.{name}"], out[f"none.{name}"]
                print(strength, name, ((a - b).norm() / b.norm()).item())
    described = dict(rank=RANK, alpha=ALPHA, strengths=STRENGTHS, shapes=shapes, negative=NEGATIVE,
                     **{k: v for k, v in case.items() if k != "scheduler"}, files=files)
    described = json.dumps(described).replace("-Infinity", "-1e308")
    save_file({k: v.contiguous().float() for k, v in out.items()}, data / "sdxl" / "pipeline_lora.safetensors",
              {"case": described})
