#!/usr/bin/env python3
"""Fixtures of whole tiny SDXL pipelines: text states, vectors, latents after each step, picture. With every config as
diffusers and transformers save it, so that a test can write the same folder; tokenizers are those of
tests/data/tokenizer.

    VENV/bin/pip install torch diffusers transformers safetensors sentencepiece protobuf
    VENV/bin/python tools/golden/sdxl_pipeline.py tests/data [CASE ...]
"""
import json
import sys
import tempfile
from pathlib import Path

import clip_t5_pipelines as common  # first: it says which instructions torch may use

import torch
from diffusers import (AutoencoderKL, DDIMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler,
                       StableDiffusionXLPipeline, UNet2DConditionModel, UniPCMultistepScheduler)
from safetensors.torch import save_file

from procedural import fill, uniform

# Levels as SDXL has them.
UNET = dict(sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32, 32),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=64,
            transformer_layers_per_block=1, attention_head_dim=(1, 2, 4), use_linear_projection=True,
            addition_embed_type="text_time", addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=6 * 8 + 32, norm_num_groups=8)
VAE = dict(common.VAE, use_quant_conv=True, use_post_quant_conv=True, scaling_factor=0.13025, shift_factor=None)
# The scheduler_config.json of the repository of base 1.0; other classes take what they know of it.
SCHEDULER = dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", interpolation_type="linear",
                 num_train_timesteps=1000, prediction_type="epsilon", steps_offset=1, timestep_spacing="leading",
                 trained_betas=None, use_karras_sigmas=False)
OTHER = dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1,
             timestep_spacing="leading")
CASES = {
    # Nothing in the place of a negative prompt: zeros; sizes of another picture than the one that is made.
    "base": dict(guidance=5.0, prompt=common.PROMPT, size=(24, 16), steps=4, count=2,
                 scheduler=EulerDiscreteScheduler(**SCHEDULER)),
    "sizes": dict(guidance=3.0, prompt=common.PROMPT, negative="a blurry cat", size=(16, 24), steps=3, count=1,
                  original_size=(1024, 640), crop=(96, 8), scheduler=EulerDiscreteScheduler(**SCHEDULER)),
    # The empty prompt, given: it is encoded, and no zeros.
    "empty": dict(guidance=5.0, prompt=common.PROMPT, negative="", size=(16, 16), steps=3, count=1,
                  scheduler=EulerDiscreteScheduler(**SCHEDULER)),
    # The empty prompt in the place of a negative one, and the prediction of v.
    "v": dict(guidance=4.0, prompt=common.PROMPT, size=(16, 16), steps=3, count=1, force_zeros=False,
              scheduler=EulerDiscreteScheduler(**SCHEDULER | dict(prediction_type="v_prediction"))),
    "ddim": dict(guidance=5.0, prompt=common.PROMPT, size=(16, 16), steps=4, count=1,
                 scheduler=DDIMScheduler(**OTHER, clip_sample=False, set_alpha_to_one=False)),
    "dpm": dict(guidance=5.0, prompt=common.PROMPT, size=(16, 16), steps=5, count=1,
                scheduler=DPMSolverMultistepScheduler(**OTHER)),
    "unipc": dict(guidance=1.0, prompt=common.PROMPT, size=(16, 16), steps=5, count=1,
                  scheduler=UniPCMultistepScheduler(**OTHER)),
}


def make(case, clip_l, clip_g):
    return StableDiffusionXLPipeline(
        scheduler=case["scheduler"], vae=fill(AutoencoderKL(**VAE)), tokenizer=clip_l, tokenizer_2=clip_g,
        text_encoder=common.clip(32, False, "quick_gelu", 981, 3), text_encoder_2=common.clip(32, True, "gelu", 2, 2),
        unet=fill(UNet2DConditionModel(**UNET)), force_zeros_for_empty_prompt=case.get("force_zeros", True),
        add_watermarker=False)


def run(name, case, clip_l, clip_g):
    pipe = make(case, clip_l, clip_g)
    pipe.set_progress_bar_config(disable=True)
    width, height = case["size"]
    noise = torch.from_numpy(uniform(f"{name}.noise", (case["count"], 4, height // 2, width // 2))) * 3**0.5
    out = {}

    def keep(_, step, __, values):
        out[f"latents.{step}"] = values["latents"].clone()
        return {}

    sizes = {}
    if "original_size" in case:  # height before width, and top before left, here
        sizes = dict(original_size=case["original_size"][::-1], crops_coords_top_left=case["crop"][::-1])
    with torch.no_grad():
        states, negative, pooled, negative_pooled = pipe.encode_prompt(
            case["prompt"], None, negative_prompt=case.get("negative"), do_classifier_free_guidance=True)
        image = pipe(prompt=case["prompt"], negative_prompt=case.get("negative"), width=width, height=height,
                     num_inference_steps=case["steps"], num_images_per_prompt=case["count"], output_type="pt",
                     callback_on_step_end=keep, guidance_scale=case["guidance"], latents=noise, **sizes).images
    last = case["steps"] - 1
    out = {f"latents.{last}": out[f"latents.{last}"]}
    out |= dict(image=image * 2 - 1)
    if name == "base":  # the others' are the same
        out |= dict(states=states[0], pooled=pooled[0])
        assert not negative.any() and not negative_pooled.any()
    if name == "empty":
        assert negative.any() and negative_pooled.any()
    if name in ("v", "empty"):
        out |= dict(negative=negative[0], negative_pooled=negative_pooled[0])
    print(name, {k: tuple(v.shape) for k, v in out.items()}, pipe.scheduler.timesteps.tolist())
    described = {k: v for k, v in case.items() if k != "scheduler"} | dict(files=common.configs(pipe))
    # JSON has no infinities, which DPM-Solver++ writes.
    described = json.dumps(described).replace("-Infinity", "-1e308")
    return {k: v.contiguous().float() for k, v in out.items()}, {"case": described}


if __name__ == "__main__":
    data = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        clip_l, clip_g, _ = common.tokenizers(data, Path(scratch))
        for name in sys.argv[2:] or CASES:
            tensors, metadata = run(name, CASES[name], clip_l, clip_g)
            save_file(tensors, data / "sdxl" / f"pipeline_{name}.safetensors", metadata)
