"""Compare the training code with diffusers and transformers on an exported folder, on the CPU in float32.

    python check.py --folder model --model run/ema.pt --vae run/vae.pt [--prompts "a dog" ...]
"""
import argparse
from pathlib import Path

import numpy as np
import torch
from diffusers import ZImagePipeline

from data import load_tokenizer, load_vae
from evaluate import Sampler, sheet
from model import Model
from tokenizer import encode

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="ema.pt of a run")
    parser.add_argument("--vae", type=Path, required=True)
    parser.add_argument("--prompts", nargs="+", default=["a dog", "a cat above a car on a green background"])
    parser.add_argument("--guidance", type=float, default=2.0)
    parser.add_argument("--sheet", type=Path)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    pipe = ZImagePipeline.from_pretrained(args.folder, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    vae, statistics = load_vae(args.vae, "cpu", args.tiny)
    model = Model(args.tiny).eval().requires_grad_(False)
    model.load_state_dict({k: v.float() for k, v in torch.load(args.model, map_location="cpu", weights_only=True)["model"].items()})

    ids, counts = (torch.as_tensor(a).long() for a in encode(load_tokenizer(), args.prompts))
    chat = [pipe.tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True,
                                               enable_thinking=True) for p in args.prompts]
    for i, text in enumerate(chat):
        assert pipe.tokenizer(text).input_ids == ids[i, :counts[i]].tolist(), text
    states = pipe.encode_prompt(list(args.prompts), device="cpu", do_classifier_free_guidance=False)[0]
    ours = model.text_encoder(ids)
    print("text", max((s - ours[i, :len(s)]).abs().max().item() for i, s in enumerate(states)), ours.abs().max().item())
    x, t = torch.randn(len(ids), 16, 16, 16), torch.rand(len(ids))
    theirs = torch.stack(pipe.transformer(list(x[:, :, None].unbind(0)), t, states, return_dict=False)[0])[:, :, 0]
    print("transformer", (theirs - model(x, t, ids, counts)).abs().max().item(), theirs.abs().max().item())
    picture = torch.rand(2, 3, 128, 128) * 2 - 1
    z = pipe.vae.encode(picture).latent_dist.mean
    print("vae", (z - vae.encode(picture)).abs().max().item(), (pipe.vae.decode(z).sample - vae.decode(z)).abs().max().item())
    seeds, shift = list(range(len(args.prompts))), pipe.scheduler.config.shift
    images = pipe(prompt=list(args.prompts), negative_prompt=[""] * len(seeds), height=128, width=128, num_inference_steps=20,
                  guidance_scale=args.guidance, generator=[torch.Generator().manual_seed(s) for s in seeds],
                  output_type="pt").images * 2 - 1
    mine = Sampler(model, vae, statistics, torch.device("cpu")).pictures(list(args.prompts), seeds, args.guidance, shift)
    print("pipeline", (images - mine).abs().max().item(), "spread", np.std(images.numpy()))
    if args.sheet:
        sheet(images, 8, args.sheet)
