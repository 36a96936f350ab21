"""A byte-level BPE over the captions with Qwen's pre-tokenizer, and prompts as rows of token ids.

    python tokenizer.py pack/tokenizer.json
"""
import sys

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from captions import Author
from sprites import read_classes

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
THINK = ["<think>", "</think>"]
VOCAB = 2048
TOKENS = 32  # of a prompt with its template, at most: the transformer pads captions to a multiple of 32
# As Qwen3's own template for one message of the user; thinking is left to the model unless switched off.
TEMPLATE = ("{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
            "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
            "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
            "{%- endif %}{%- endif %}")


def chat(prompt):
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


def corpus():
    author = Author(read_classes(), "tokenizer")
    for _ in range(60000):
        yield author.scene()[0]
    # The words of the template must be tokens; every name, at either end of a sentence, should be few.
    for _ in range(2000):
        yield "user\n"
        yield "assistant\n"
    for c in author.classes:
        for name, _ in c.names:
            yield from [name, name.capitalize()] + [f"a {name}"] * 4


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    added = len(SPECIAL) + len(THINK)
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - added, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in THINK])
    return tokenizer


def encode(tokenizer, prompts):
    """Ids [N, TOKENS] padded with zeros, and counts [N]; a count over TOKENS marks a prompt that does not fit."""
    ids, counts = np.zeros((len(prompts), TOKENS), np.int16), np.zeros(len(prompts), np.int16)
    for i, row in enumerate(tokenizer.encode_batch([chat(p) for p in prompts])):
        counts[i] = len(row.ids)
        ids[i, :min(TOKENS, len(row.ids))] = row.ids[:TOKENS]
    return ids, counts


if __name__ == "__main__":
    tokenizer = train()
    tokenizer.save(sys.argv[1], pretty=False)
    author = Author(read_classes(), "check")
    counts = encode(tokenizer, [author.scene()[0] for _ in range(20000)])[1]
    print(tokenizer.get_vocab_size(), "tokens; prompts of", counts.min(), "to", counts.max(), "mean", counts.mean(),
          "over the limit:", (counts > TOKENS).mean())
