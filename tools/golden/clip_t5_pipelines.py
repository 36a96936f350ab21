#!/usr/bin/env python3
"""Fixtures of whole tiny pipelines with CLIP and T5, FLUX.1 and Stable Diffusion 3: text states, vectors, latents after
each step, picture. With every config as diffusers and transformers save it, so that a test can write the same folder;
tokenizers are those of tests/data/tokenizer.

    VENV/bin/pip install torch diffusers transformers safetensors sentencepiece protobuf
    VENV/bin/python tools/golden/clip_t5_pipelines.py tests/data [CASE ...]
"""
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import torch
from diffusers import (AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel,
                       SD3Transformer2DModel, StableDiffusion3Pipeline)
from safetensors.torch import save_file
from transformers import (CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer,
                          T5Config, T5EncoderModel, T5Tokenizer)

from procedural import fill, uniform, weight

FLUX = dict(in_channels=16, num_layers=2, num_single_layers=2, num_attention_heads=2, attention_head_dim=16,
            joint_attention_dim=24, pooled_projection_dim=16, axes_dims_rope=[4, 4, 8])
SD3 = dict(sample_size=8, patch_size=2, in_channels=4, num_layers=3, num_attention_heads=2, attention_head_dim=16,
           joint_attention_dim=40, caption_projection_dim=32, pooled_projection_dim=36, out_channels=4,
           pos_embed_max_size=12, dual_attention_layers=(0,), qk_norm="rms_norm")
VAE = dict(block_out_channels=[16, 32], layers_per_block=1, latent_channels=4, norm_num_groups=8,
           down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2, use_quant_conv=False,
           use_post_quant_conv=False, scaling_factor=0.3611, shift_factor=0.1159)
PROMPT = "A red apple on a BLUE background, naïve café, it's 2 of 3 dogs"
LONG = " ".join(["two dogs and a cat next to the house on the hill,"] * 9)
CASES = {
    # Guidance that the network reads, two pictures, wide; the same with a negative prompt; without, and few steps.
    "dev": dict(family="flux1", guidance=3.5, prompt=PROMPT, size=(24, 16), steps=4, count=2),
    "cfg": dict(family="flux1", guidance=2.0, true_cfg=3.0, prompt=LONG, negative="two dogs", size=(16, 24), steps=3, count=1),
    "schnell": dict(family="flux1", guidance=0.0, prompt=PROMPT, size=(16, 16), steps=2, count=1),
    # Guidance against a negative prompt and against the empty one; without T5.
    "large": dict(family="sd3", guidance=4.5, prompt=PROMPT, negative="a blurry cat", size=(24, 16), steps=4, count=2),
    "clips": dict(family="sd3", guidance=3.0, prompt=PROMPT, size=(16, 32), steps=3, count=1),
    # Two of the steps are guided away from a prediction without the first and the last block, too.
    "skip": dict(family="sd3", guidance=4.0, prompt=PROMPT, negative="a blurry cat", size=(16, 24), steps=11, count=2,
                 skip_layers=[0, 2], skip_layer_scale=2.5),
}


def clip(hidden, projected, act, eos, layers):
    config = CLIPTextConfig(vocab_size=982, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
                            num_attention_heads=2, max_position_embeddings=77, hidden_act=act, projection_dim=hidden,
                            bos_token_id=980, eos_token_id=eos, pad_token_id=1)
    return fill(CLIPTextModelWithProjection(config)) if projected else fill(CLIPTextModel(config), "text_model.")


def t5(hidden):
    model = fill(T5EncoderModel(T5Config(vocab_size=400, d_model=hidden, d_kv=8, d_ff=24, num_layers=2, num_heads=2,
                                         feed_forward_proj="gated-gelu", tie_word_embeddings=False)))
    return model


def tokenizers(data, scratch):
    """CLIP-L's, bigG's, which has the same words, and T5's."""
    g = scratch / "clip_g"
    shutil.copytree(data / "tokenizer" / "clip_g", g)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(data / "tokenizer" / "clip" / name, g)
    return (CLIPTokenizer.from_pretrained(data / "tokenizer" / "clip"), CLIPTokenizer.from_pretrained(g),
            T5Tokenizer.from_pretrained(data / "tokenizer" / "t5"))


def make(name, case, clip_l, clip_g, words):
    vae = fill(AutoencoderKL(**VAE))
    if case["family"] == "flux1":
        dynamic = dict(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, base_image_seq_len=256,
                       max_image_seq_len=4096, shift=3.0)
        scheduler = dict(shift=1.0) if name == "schnell" else dynamic
        return FluxPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(**scheduler), vae=vae, tokenizer=clip_l, tokenizer_2=words,
            text_encoder=clip(16, False, "quick_gelu", 981, 2), text_encoder_2=t5(24),
            transformer=fill(FluxTransformer2DModel(**FLUX, guidance_embeds=name != "schnell")))
    transformer = fill(SD3Transformer2DModel(**SD3))
    table = transformer.pos_embed.pos_embed
    table.copy_(torch.from_numpy(weight("pos_embed.pos_embed", tuple(table.shape))))
    return StableDiffusion3Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0), vae=vae, tokenizer=clip_l, tokenizer_2=clip_g,
        tokenizer_3=None if name == "clips" else words, text_encoder=clip(16, True, "quick_gelu", 2, 3),
        text_encoder_2=clip(20, True, "gelu", 981, 2), text_encoder_3=None if name == "clips" else t5(40),
        transformer=transformer)


def configs(pipe):
    """Every config.json of a folder of this pipeline, and model_index.json."""
    with tempfile.TemporaryDirectory() as folder:
        pipe.save_pretrained(folder)
        files = sorted(Path(folder).rglob("*config.json")) + [Path(folder) / "model_index.json"]
        return {str(f.relative_to(folder)): json.loads(f.read_text()) for f in files if "tokenizer" not in str(f)}


def run(name, case, parts):
    pipe = make(name, case, *parts)
    pipe.set_progress_bar_config(disable=True)
    flux = case["family"] == "flux1"
    width, height = case["size"]
    rows, columns = height // 2, width // 2
    shape = (case["count"], 4, rows, columns)
    noise = torch.from_numpy(uniform(f"{name}.noise", shape)) * 3**0.5
    out, negative = {}, case.get("negative", "")

    def keep(_, step, __, values):
        latents = values["latents"]
        out[f"latents.{step}"] = (FluxPipeline._unpack_latents(latents, 2 * rows, 2 * columns, 2) if flux else latents).clone()
        return {}

    common = dict(prompt=case["prompt"], width=width, height=height, num_inference_steps=case["steps"],
                  num_images_per_prompt=case["count"], output_type="pt", callback_on_step_end=keep,
                  guidance_scale=case["guidance"])
    with torch.no_grad():
        if flux:
            length = 256 if name == "schnell" else 512
            states, pooled, _ = pipe.encode_prompt(case["prompt"], None, max_sequence_length=length)
            packed = FluxPipeline._pack_latents(noise, *shape)
            cfg = dict(negative_prompt=negative, true_cfg_scale=case["true_cfg"]) if "true_cfg" in case else {}
            image = pipe(**common, latents=packed, max_sequence_length=length, **cfg).images
        else:
            states, _, pooled, _ = pipe.encode_prompt(case["prompt"], None, None, do_classifier_free_guidance=False)
            skip = dict(skip_guidance_layers=case["skip_layers"],
                        skip_layer_guidance_scale=case["skip_layer_scale"]) if "skip_layers" in case else {}
            image = pipe(**common, latents=noise, negative_prompt=negative, **skip).images
    out |= dict(states=states[0], pooled=pooled[0], image=image * 2 - 1, sigmas=pipe.scheduler.sigmas)
    print(name, {k: tuple(v.shape) for k, v in out.items()}, pipe.scheduler.sigmas.tolist())
    return {k: v.contiguous().float() for k, v in out.items()}, {"case": json.dumps(dict(case, files=configs(pipe)))}


if __name__ == "__main__":
    data = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        parts = tokenizers(data, Path(scratch))
        for name in sys.argv[2:] or CASES:
            case = CASES[name]
            tensors, metadata = run(name, case, parts)
            save_file(tensors, data / case["family"] / f"pipeline_{name}.safetensors", metadata)
