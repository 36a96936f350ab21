#!/usr/bin/env python3
"""Fixtures of whole tiny FLUX.2-klein pipelines: token ids, text states, latents after each step, picture.
With every config as diffusers and transformers save it, so that a test can write the same folder.

    VENV/bin/python tools/golden/flux2_pipeline.py tests/data/flux2 tests/data/tokenizer
"""
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import torch
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline, Flux2Transformer2DModel
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from flux2_parts import fill_autoencoder
from procedural import fill, uniform

# One user turn and an empty thought, as Qwen3's own template writes them.
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n"
            "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
            "{% endif %}")
# As deep as the states that the pipeline takes: those after layers 9, 18 and 27.
TEXT = dict(vocab_size=480, hidden_size=16, intermediate_size=32, num_hidden_layers=28, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, rms_norm_eps=1e-6, rope_theta=1e6)
TRANSFORMER = dict(in_channels=16, num_layers=2, num_single_layers=2, num_attention_heads=2, attention_head_dim=16,
                   joint_attention_dim=48, timestep_guidance_channels=16, axes_dims_rope=[4, 4, 4, 4],
                   guidance_embeds=False)
VAE = dict(block_out_channels=[16, 32], layers_per_block=1, latent_channels=4, norm_num_groups=8,
           down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2)
SCHEDULER = dict(use_dynamic_shifting=True, shift=3.0)
CASES = {
    # Distilled: no guidance. Two pictures, wide.
    "distilled": dict(distilled=True, prompt="a red apple on a blue background, naïve café 🍎", size=(24, 16),
                      steps=4, guidance=1.0, count=2),
    # Guidance against the empty prompt, tall.
    "base": dict(distilled=False, prompt="two dogs", size=(16, 32), steps=4, guidance=4.0, count=1),
}


def configs(pipe):
    """What a folder of this pipeline says about its parts."""
    with tempfile.TemporaryDirectory() as folder:
        pipe.save_pretrained(folder)
        read = lambda name: json.loads((Path(folder) / name).read_text())
        return dict(model_index=read("model_index.json"), transformer=read("transformer/config.json"),
                    text_encoder=read("text_encoder/config.json"), vae=read("vae/config.json"),
                    scheduler=read("scheduler/scheduler_config.json"),
                    tokenizer_config=dict(tokenizer_class="PreTrainedTokenizerFast", chat_template=TEMPLATE,
                                          pad_token="<|endoftext|>", eos_token="<|im_end|>"))


def run(name, case, tokenizer_file):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_file), pad_token="<|endoftext|>",
                                        eos_token="<|im_end|>", chat_template=TEMPLATE)
    pipe = Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**SCHEDULER), vae=fill_autoencoder(AutoencoderKLFlux2(**VAE)),
        text_encoder=fill(Qwen3ForCausalLM(Qwen3Config(**TEXT))), tokenizer=tokenizer,
        transformer=fill(Flux2Transformer2DModel(**TRANSFORMER)), is_distilled=case["distilled"])
    pipe.set_progress_bar_config(disable=True)
    width, height = case["size"]
    rows, columns = height // 4, width // 4
    shape = (case["count"], TRANSFORMER["in_channels"], rows, columns)
    latents = torch.from_numpy(uniform(f"{name}.noise", shape)) * 3**0.5
    out = {}

    def keep(_, step, __, values):
        out[f"latents.{step}"] = values["latents"].permute(0, 2, 1).reshape(shape).clone()
        return {}

    with torch.no_grad():
        out["states"] = pipe.encode_prompt(case["prompt"], device="cpu")[0][0]

    def with_template(prompt):
        return tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False,
                                             add_generation_prompt=True, enable_thinking=False)

    text = with_template(case["prompt"])
    for key, prompt in (("ids", text), ("empty_ids", with_template(""))):
        out[key] = torch.tensor(tokenizer(prompt).input_ids, dtype=torch.int32)
    image = pipe(prompt=case["prompt"], width=width, height=height, num_inference_steps=case["steps"],
                 guidance_scale=case["guidance"], num_images_per_prompt=case["count"], latents=latents,
                 output_type="pt", callback_on_step_end=keep).images
    out["image"] = image * 2 - 1  # the processor maps to 0 .. 1 and cuts off
    out["sigmas"] = pipe.scheduler.sigmas
    description = dict(configs(pipe), name=name, text=text, pad_id=tokenizer.pad_token_id, **case)
    return {k: v.contiguous() for k, v in out.items()}, {"case": json.dumps(description)}


if __name__ == "__main__":
    folder, tokenizer = Path(sys.argv[1]), Path(sys.argv[2]) / "tokenizer.json"
    for name, case in CASES.items():
        tensors, metadata = run(name, case, tokenizer)
        save_file(tensors, folder / f"pipeline_{name}.safetensors", metadata)
        print(name, {k: tuple(v.shape) for k, v in tensors.items()}, tensors["sigmas"])
