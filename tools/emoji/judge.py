"""Score what the program draws from a model folder: do the pictures show what the prompts name?

    python judge.py --program build/halftone --folder models/emoji --judge run/judge.pt --precision bf16

The prompts are those of evaluate.py; picture i has seed i. A picture of two counts only if each emoji is in its
own place.
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from classifier import load_classifier, predict
from data import load_classes
from evaluate import ground_right, pair_hits, pair_prompts, sheet, single_prompts


def draw(args, prompts, first_seed):
    """Pictures [N, 3, 128, 128] in -1 .. 1; those of one run have the bits of a run each."""
    pictures = []
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "prompts.jsonl"
        lines.write_text("".join(json.dumps({"prompt": prompt, "seed": first_seed + i, "id": f"{i:06}"}) + "\n"
                                 for i, prompt in enumerate(prompts)))
        subprocess.run([args.program, "generate", "--prompts", lines, "--model", args.folder, "--precision", args.precision,
                        "-o", Path(folder) / "drawn"] + (["--base", args.base] if args.base else []),
                       check=True, stdout=subprocess.DEVNULL)
        for i in range(len(prompts)):
            pixels = np.asarray(Image.open(Path(folder) / "drawn" / f"{i:06}.png").convert("RGB"), np.float32)
            pictures.append(torch.from_numpy(pixels / 127.5 - 1).permute(2, 0, 1))
    return torch.stack(pictures)


def main(args):
    torch.set_num_threads(1)
    classes, judge = load_classes(), load_classifier(args.judge, "cpu")
    singles = single_prompts(classes, 512)[:args.singles]
    pictures = draw(args, [s[0] for s in singles], 0)
    hits = predict(judge, pictures) == torch.tensor([s[2] for s in singles])
    report = {"precision": args.precision, "singles": len(singles), "single": hits.float().mean().item(),
              "ground": ground_right(pictures, [s[1] for s in singles]).float().mean().item(),
              "wrong singles": [singles[i][0] for i in (~hits).nonzero()[:, 0].tolist()]}
    sheet(pictures[:64], 8, args.out / "singles.png")
    pairs = pair_prompts(classes, 256)[:args.pairs]
    pictures = draw(args, [p[0] for p in pairs], 1000)
    first, second = pair_hits(judge, pictures, pairs)
    report |= {"pairs": len(pairs), "both": (first & second).float().mean().item(),
               "pair ground": ground_right(pictures, [p[1] for p in pairs]).float().mean().item(),
               "wrong pairs": [pairs[i][0] for i in (~(first & second)).nonzero()[:, 0].tolist()]}
    sheet(pictures[:64], 8, args.out / "pairs.png")
    print(json.dumps({k: v for k, v in report.items() if not k.startswith("wrong")}), flush=True)
    (args.out / "judge.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/halftone")
    parser.add_argument("--folder", default="models/emoji")
    parser.add_argument("--base", help="where the folder is a file of the denoiser alone: the folder with the rest")
    parser.add_argument("--judge", type=Path, required=True)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--singles", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("."))
    main(parser.parse_args())
