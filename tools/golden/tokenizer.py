#!/usr/bin/env python3
"""A small byte-level BPE tokenizer with Qwen's pre-tokenizer and NFC, and what the `tokenizers`
package makes of hard text.

    VENV/bin/python tools/golden/tokenizer.py tests/data/tokenizer
"""
import json
import random
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["a red apple on a blue background", "a photo of a cat and two dogs next to the house",
          "user\nassistant\n", "the quick brown fox jumps over the lazy dog", "naïve café déjà vu Ångström",
          "Привет, мир! こんにちは世界 你好，世界 안녕하세요", "it's we're they've I'm you'll he'd", "😀😃🍎🚗🏳️‍🌈",
          "1234567890 3.14 2026", "\n\n  \t spaces   and\r\nlines"]


def build():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return tokenizer


def texts():
    yield from CORPUS
    yield from ["", " ", "\n", "  leading", "trailing  ", "a  b   c", "don't DON'T 'S 'ſ", "e\u0301 = é, A\u030a = Å",
                "\u1100\u1161\u11a8 각", "ﬁ ﬀ ① ½ ² ٣ Ⅷ", "\u00a0nbsp\u2003em\u3000ideographic\u200bzero", "a\u2028b\u2029c\u0085d",
                "مرحبا بالعالم", "हिन्दी में लिखा", "ไทยไม่มีช่องว่าง", "👨‍👩‍👧‍👦👍🏽🇩🇪", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
                "x<think>y</think>z", "<|im_start", "|endoftext|>", "a<|endoftext|><|endoftext|>b", "\t\t\n \r\n\r\r x",
                "q" * 500, "ab" * 300, " " * 100, "\u0301\u0301 lone marks", "\ufeffbom \ufffd", "\U0010ffff\ue000", "1" * 40,
                "!!!???\n\n...", "😀" * 20, "ａｂｃ fullwidth １２３", "\x00\x01\x1f\x7f control"]
    rng = random.Random(7)
    ranges = [(0x20, 0x7e), (0x20, 0x7e), (0xa0, 0x24f), (0x300, 0x36f), (0x370, 0x52f), (0x590, 0x6ff), (0x900, 0x97f),
              (0xe00, 0xe7f), (0x1100, 0x11ff), (0x2000, 0x206f), (0x20a0, 0x21ff), (0x3040, 0x30ff), (0x4e00, 0x4fff),
              (0xac00, 0xacff), (0xf900, 0xfa2f), (0x1f300, 0x1f64f), (0x9, 0xd)]
    for _ in range(400):
        length = rng.randrange(1, 40)
        sticky = ranges[rng.randrange(len(ranges))]
        out = ""
        for _ in range(length):
            low, high = sticky if rng.random() < 0.6 else ranges[rng.randrange(len(ranges))]
            out += chr(rng.randrange(low, high + 1))
            if rng.random() < 0.1:
                out += rng.choice([" ", "\n", "'s", "<|im_end|>", "  "])
        yield out


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    tokenizer = build()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    cases = [[text, tokenizer.encode(text).ids] for text in texts()]
    # The same with merges written as "a b", as older files have them.
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["merges"] = [" ".join(m) if isinstance(m, list) else m for m in data["model"]["merges"]]
    (folder / "tokenizer_old.json").write_text(json.dumps(data))
    (folder / "cases.json").write_text(json.dumps(cases))
    print(len(cases), "texts,", tokenizer.get_vocab_size(), "tokens")
