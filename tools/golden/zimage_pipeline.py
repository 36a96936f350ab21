#!/usr/bin/env python3
"""Fixtures of whole tiny Z-Image pipelines: token ids, text states, latents after each step, picture.

    VENV/bin/python tools/golden/zimage_pipeline.py tests/data/zimage tests/data/tokenizer
"""
import json
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from procedural import fill, uniform

TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
TEXT = dict(vocab_size=480, hidden_size=32, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, rope_theta=1e6)
VAE = dict(in_channels=3, out_channels=3, latent_channels=16, block_out_channels=[32, 64], layers_per_block=1,
           norm_num_groups=8, scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False,
           use_post_quant_conv=False, down_block_types=["DownEncoderBlock2D"] * 2,
           up_block_types=["UpDecoderBlock2D"] * 2, mid_block_add_attention=True)
CASES = {
    # Guidance with prompts of unequal length, two pictures, wide.
    "guided": dict(transformer=dict(dim=96, n_heads=3, axes_dims=[16, 8, 8], n_layers=2, n_refiner_layers=1),
                   scheduler=dict(shift=3.0), prompt="a red apple on a blue background, naïve café 🍎",
                   negative="blurry, the quick brown fox jumps over the lazy dog " * 2, size=(24, 16), guidance=2.0, count=2),
    # No guidance, dynamic shift, tall.
    "plain": dict(transformer=dict(dim=192, n_heads=2, axes_dims=[32, 32, 32], n_layers=1, n_refiner_layers=2),
                  scheduler=dict(use_dynamic_shifting=True), prompt="two dogs", negative="", size=(16, 32), guidance=0.0,
                  count=1),
}
STEPS = 4


def run(name, case, tokenizer_file):
    config = dict(in_channels=16, n_kv_heads=1, cap_feat_dim=32, axes_lens=[256, 64, 64], **case["transformer"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file), pad_token="<|endoftext|>",
                                        eos_token="<|im_end|>", chat_template=TEMPLATE)
    pipe = ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**case["scheduler"]), vae=fill(AutoencoderKL(**VAE)),
        text_encoder=fill(Qwen3ForCausalLM(Qwen3Config(**TEXT))), tokenizer=tokenizer,
        transformer=fill(ZImageTransformer2DModel(**config)))
    pipe.set_progress_bar_config(disable=True)
    width, height = case["size"]
    latents = torch.from_numpy(uniform(f"{name}.noise", (case["count"], 16, height // 2, width // 2))) * 3**0.5
    out = {}

    def keep(_, step, __, values):
        out[f"latents.{step}"] = values["latents"].clone()
        return {}

    states = pipe.encode_prompt(case["prompt"], device="cpu", do_classifier_free_guidance=False)[0][0]
    out["states"] = states.detach()
    text = tokenizer.apply_chat_template([{"role": "user", "content": case["prompt"]}], tokenize=False,
                                         add_generation_prompt=True)
    out["ids"] = torch.tensor(tokenizer(text).input_ids, dtype=torch.int32)
    image = pipe(prompt=case["prompt"], negative_prompt=case["negative"], width=width, height=height,
                 num_inference_steps=STEPS, guidance_scale=case["guidance"], num_images_per_prompt=case["count"],
                 latents=latents, output_type="pt", callback_on_step_end=keep).images
    out["image"] = image * 2 - 1  # the processor maps to 0 .. 1 and cuts off
    description = dict(name=name, transformer=config, text_encoder=TEXT, vae=VAE, scheduler=case["scheduler"],
                       prompt=case["prompt"], negative=case["negative"], size=case["size"], guidance=case["guidance"],
                       count=case["count"], steps=STEPS)
    return {k: v.contiguous() for k, v in out.items()}, {"case": json.dumps(description)}


if __name__ == "__main__":
    folder, tokenizer = Path(sys.argv[1]), Path(sys.argv[2]) / "tokenizer.json"
    for name, case in CASES.items():
        tensors, metadata = run(name, case, tokenizer)
        save_file(tensors, folder / f"pipeline_{name}.safetensors", metadata)
        print(name, {k: tuple(v.shape) for k, v in tensors.items()})
