#!/usr/bin/env python3
"""Small tokenizers of CLIP's and T5's kind, trained here on text of our own, and what `transformers` and
`tokenizers` make of hard text with them. Needs sentencepiece and protobuf.

    VENV/bin/python tools/golden/text_tokenizers.py tests/data/tokenizer
"""
import base64
import json
import random
import shutil
import sys
import tempfile
import unicodedata
from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import CLIPTokenizer, T5Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
import tokenizer as bytes_tokenizer  # noqa: E402  its corpus and texts

CORPUS = bytes_tokenizer.CORPUS + [
    "a small wooden boat on a quiet lake at sunrise, soft light", "an old lighthouse above the sea, oil painting",
    "portrait of a woman with red hair and green eyes, film grain", "two children playing with a dog in the snow",
    "a bowl of fruit on a wooden table, still life with apples and grapes", "the street after the rain at night",
    "a red fox sleeping under a tree in autumn leaves", "watercolor of a mountain village with white houses",
    "close-up photo of a bee on a yellow flower, 85mm", "a castle on a hill; fog in the valley, early morning",
    "ein kleines Haus am Fluß über den Wäldern", "une maison près de la forêt, l'été à Paris",
    "un gato negro duerme en la ventana, el niño está aquí", "красная лодка на тихом озере",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ abcdefghijklmnopqrstuvwxyz", "A Photo Of The Old Town; MADE IN ITALY",
    "isn't wasn't they'd we'll she's I've", "1 2 3 10 25 100 4k 8k 50mm f/1.8", "hello, world! (what?) [yes] {no} #1 @home"]

END = "<|endoftext|>"
START = "<|startoftext|>"


# ---- CLIP -----------------------------------------------------------------------------------------------

def flags(content, normalized, special=True):
    token = {"content": content, "lstrip": False, "normalized": normalized, "rstrip": False, "single_word": False}
    return {**token, "special": True} if special else token


def build_clip(folder):
    """Laid out as CLIP's: bytes, bytes at the end of a word, merges, the two special tokens."""
    trained = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    trained.normalizer = normalizers.Lowercase()
    trained.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), behavior="removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained.train_from_iterator(CORPUS * 4, trainers.BpeTrainer(
        vocab_size=1100, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False))
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split()) for m in json.loads(trained.to_str())["model"]["merges"]]
    tokens = alphabet + [a + "</w>" for a in alphabet]
    tokens += [a + b for a, b in merges if a + b not in tokens]
    # Some bytes have no token at the end of a word: they become unk_token.
    used = {part for merge in merges for part in merge}
    missing = [t for t in tokens if t.endswith("</w>") and 0x122 <= ord(t[0]) <= 0x132 and t not in used]  # bytes 0x80 to 0x90
    assert len(missing) > 3
    tokens = [t for t in tokens if t not in missing]
    tokens += [START, END]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}, ensure_ascii=False, separators=(",", ":")))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    vocab = {t: i for i, t in enumerate(tokens)}
    config = {"add_prefix_space": False, "added_tokens_decoder": {str(vocab[START]): flags(START, True), str(vocab[END]): flags(END, False)},
              "bos_token": START, "clean_up_tokenization_spaces": True, "do_lower_case": True, "eos_token": END,
              "errors": "replace", "model_max_length": 77, "pad_token": END, "tokenizer_class": "CLIPTokenizer", "unk_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def build_clip_g(folder, clip):
    """As the second encoder's folder: older settings, and "!" fills up, which makes it a special token."""
    folder.mkdir(parents=True, exist_ok=True)
    end = {"__type": "AddedToken", **flags(END, True, special=False)}
    config = {"add_prefix_space": False, "bos_token": {"__type": "AddedToken", **flags(START, True, special=False)},
              "do_lower_case": True, "eos_token": end, "errors": "replace", "model_max_length": 77, "pad_token": "!",
              "tokenizer_class": "CLIPTokenizer", "unk_token": end}
    special = {"bos_token": flags(START, True, special=False), "eos_token": flags(END, True, special=False), "pad_token": "!",
               "unk_token": flags(END, True, special=False)}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=1))
    return with_files(folder, [clip / "vocab.json", clip / "merges.txt"])


def with_files(folder, files):
    """A copy of the folder with files of others in it: the test makes the same one."""
    copy = Path(tempfile.mkdtemp())
    for file in [*folder.iterdir(), *files]:
        shutil.copy(file, copy)
    return copy


# ---- T5 -------------------------------------------------------------------------------------------------

def rules():
    """Compatibility forms, a few composed letters, white space and control characters, as rules of our own:
    what sentencepiece's nmt_nfkc does to the same characters, in a table of a few KB."""
    found = {}
    for c in [*range(0xA0, 0x180), *range(0x1C4, 0x1CD), *range(0x2000, 0x2030), *range(0x2100, 0x2140), *range(0x2150, 0x2170),
              *range(0x2460, 0x2474), *range(0x3000, 0x3001), *range(0xFB00, 0xFB07), 0xFDFA, *range(0xFF01, 0xFF5F), *range(0x1D400, 0x1D410)]:
        normal = unicodedata.normalize("NFKC", chr(c))
        if normal != chr(c):
            found[(c,)] = normal
    for c in range(0xC0, 0x180):
        parts = unicodedata.normalize("NFD", chr(c))
        if len(parts) > 1:
            found[tuple(map(ord, parts))] = chr(c)
    for c in [*range(1, 9), 0xB, *range(0xE, 0x20), 0x7F, 0x8F, 0x9F]:
        found[(c,)] = ""
    for c in [9, 0xA, 0xC, 0xD, 0x1680, *range(0x200B, 0x2010), 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD]:
        found[(c,)] = " "
    lines = ("\t".join([" ".join(f"{c:X}" for c in key), " ".join(f"{ord(c):X}" for c in text)]) for key, text in sorted(found.items()))
    return "\n".join(lines) + "\n"


def build_t5(folder):
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp())
    (work / "rules.tsv").write_text(rules())
    (work / "text.txt").write_text("\n".join(CORPUS * 20))
    sentencepiece.SentencePieceTrainer.train(
        input=str(work / "text.txt"), model_prefix=str(work / "spiece"), vocab_size=600, model_type="unigram", hard_vocab_limit=False,
        normalization_rule_tsv=str(work / "rules.tsv"), character_coverage=1.0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        num_threads=1, minloglevel=2)
    from transformers.convert_slow_tokenizer import import_protobuf
    model = import_protobuf().ModelProto()
    model.ParseFromString((work / "spiece.model").read_bytes())
    model.trainer_spec.ClearField("input")
    model.trainer_spec.ClearField("model_prefix")
    model.normalizer_spec.ClearField("normalization_rule_tsv")
    (folder / "spiece.model").write_bytes(model.SerializeToString())
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"additional_special_tokens": [f"<extra_id_{i}>" for i in range(10)], "clean_up_tokenization_spaces": True, "eos_token": "</s>",
         "extra_ids": 10, "legacy": True, "model_max_length": 512, "pad_token": "<pad>", "sp_model_kwargs": {},
         "tokenizer_class": "T5Tokenizer", "unk_token": "<unk>"}, indent=1))
    return model


def t5_file(folder, model, settings):
    """tokenizer.json as converters write it: normalizer and pre-tokenizer differ from those of the class."""
    pieces = [(p.piece, p.score) for p in model.pieces] + [(f"<extra_id_{i}>", 0.0) for i in range(9, -1, -1)]
    if settings["bytes"]:
        pieces += [(f"<0x{b:02X}>", 0.0 if b < 128 else -3.0) for b in range(256)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=settings["bytes"]))
    steps = [normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)] if settings["charsmap"] else [normalizers.NFC()]
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=settings["scheme"])
    end = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(single=["$A", "</s>"], pair=["$A", "</s>", "$B", "</s>"], special_tokens=[("</s>", end)])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ["<pad>", "</s>", "<unk>"]])
    tokenizer.add_special_tokens([AddedToken(f"<extra_id_{i}>", lstrip=settings["strip"], rstrip=settings["strip"], normalized=False)
                                  for i in range(9, -1, -1)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    return tokenizer


# ---- texts ----------------------------------------------------------------------------------------------

def texts():
    hard = [t for t in bytes_tokenizer.texts()][:len(bytes_tokenizer.CORPUS) + 34]
    yield from (t for t in hard if len(t) < 200)
    yield from CORPUS[len(bytes_tokenizer.CORPUS):]
    yield from [
        "A RED Apple", "İstanbul IĞDIR ışık", "ΟΔΥΣΣΕΥΣ ΣΑΣ Σ", "STRASSE Straße ẞ", "ǅ ǈ ﬁn ﬂow ﬀ ﬃ ﬄ ﬅ", "①②③ Ⅷ ½ ¼ x² H₂O №5 ℃ ™",
        "ＡＢＣ　ｄｅｆ　１２３！", "soft\u00adhyphen", "a\u00a0b\u2007c\u202fd\u3000e\u1680f\u205fg", "a\u200bb\u200cc\u200dd\u2060e\ufefff",
        "a\u0085b", "a\u180eb \u180e", "tab\tand\nnewline\r\nand\x0bvertical\x0cform", "  two  spaces  ", "\u3000", "\u00a0", "\u200b", "\u2028\u2029",
        "e\u0301 e\u0301\u0323 e\u0323\u0301", "\u0301", " \u0301", "a\u0301\u0302\u0303\u0304b", "ﬁ\u0301 ½\u0301 ①\u20dd", "\u0344 \u0f73\u0f71",
        "\u1112\u1161\u11ab\u1100\u1173\u11af 한글", "\u0600\u0661 \u06dd\u0661", "ไทย กำ น้ำ", "עִבְרִית", "مُحَمَّد ﷺ ﻻ", "हिन्दी क्षत्रिय", "தமிழ் நிலை",
        "日本語のテキスト、漢字とカナ。", "中文，标点。“引号”", "한국어 문장입니다.", "👍🏽 👩🏽‍🚀 🏳️‍🌈 👨‍👩‍👧‍👦 🇩🇪🇫🇷 1️⃣ ❤️ ☺", "🏽", "\u200d", "\ufe0f x\ufe0f",
        "\x00", "a\x00b", "\x01\x02\x1b[31m\x7f\x80\x9f", "\ufffd \ufffe \uffff \U0010ffff", "\ue000\U000f0000",
        END, START, "a " + END + " b", END + END, "a" + START.upper() + "b", "<|ENDOFTEXT|>", "<|endoftext", "<|endoftext|", "<|startoftext|>x<|endoftext|>y",
        "</s>", "a</s>b", "a </s> b", "<pad>", "<unk> <pad></s>", "＜pad＞ ＜unk＞ ＜/s＞", "<extra_id_0>", "a <extra_id_0> b", "a<extra_id_9>b<extra_id_1>",
        "  <extra_id_3>  <extra_id_4>  ", "<extra_id_10> <extra_id_>", "\u00a0<extra_id_2>\u3000x", "▁", "a▁b", "▁▁a ▁ b", "x</w>y a</w>",
        "it's IT'S 'tis 's ''s don't y'all'd've I'm", "rock'n'roll o'clock 90's", "it’s don’t", "3.14 1,000,000 50% $5 #1 1e-5 ٣٤٥ ४५६ Ⅻ",
        "snake_case camelCase kebab-case", "https://example.org/a?b=c&d=e#f", "C:\\path\\file", "(((((masterpiece))))), [[x]], {y:1.2}", "!!! ??? ... --- ___ ***",
        "!", "hello!", "hello !world!", "a!b", "! !", ",,,,", "\"quoted\" 'single' `back`", "<b>bold</b>", "a&amp;b", "~^|\\", "½", "ß", "ſ", "K Å Ω",
        "naïve façade Ångström smörgåsbord", "Zürich São Paulo Łódź Đà Nẵng", "Ğğ İi Iı", "ʻokina ʼn ŉ", "Ǆ Ǆ ǅ", "…", "‥ ․", "ﹽ ﹾ", "㍿ ㎏ ㏂",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "0000000000000000", "。。。。。。", "-" * 30, "word " * 12, "ab" * 20, "\n" * 10, "\t \t "]
    rng = random.Random(11)
    ranges = [(0x20, 0x7e), (0x20, 0x7e), (0xa0, 0x17f), (0x300, 0x330), (0x370, 0x4ff), (0x590, 0x6ff), (0x900, 0x97f), (0xe00, 0xe5b),
              (0x1100, 0x11ff), (0x2000, 0x206f), (0x20a0, 0x21ff), (0x2460, 0x2473), (0x3040, 0x30ff), (0x4e00, 0x4fff), (0xac00, 0xacff),
              (0xf900, 0xfa2f), (0xfb00, 0xfb06), (0xff01, 0xff5e), (0x1f300, 0x1f64f), (0x9, 0xd)]
    for _ in range(200):
        sticky = rng.choice(ranges)
        out = ""
        for _ in range(rng.randrange(1, 20)):
            low, high = sticky if rng.random() < 0.6 else rng.choice(ranges)
            out += chr(rng.randrange(low, high + 1))
            if rng.random() < 0.15:
                out += rng.choice([" ", "\n", "'s", END, "  ", "</s>", "<extra_id_1>", "the ", "a", "e\u0301", "!"])
        yield out


def main(folder):
    clip, clip_g, t5 = folder / "clip", folder / "clip_g", folder / "t5"
    build_clip(clip)
    whole_g = build_clip_g(clip_g, clip)
    model = build_t5(t5)
    classes = {"clip": CLIPTokenizer.from_pretrained(clip), "clip_g": CLIPTokenizer.from_pretrained(whole_g), "t5": T5Tokenizer.from_pretrained(t5)}
    files = {"t5_file": t5_file(folder / "t5_file", model, {"bytes": False, "charsmap": True, "scheme": "always", "strip": True}),
             "t5_bytes": t5_file(folder / "t5_bytes", model, {"bytes": True, "charsmap": False, "scheme": "first", "strip": False})}
    all_texts = list(dict.fromkeys(texts()))
    ids = {name: [t(x).input_ids for x in all_texts] for name, t in classes.items()}
    ids |= {name: [t.encode(x).ids for x in all_texts] for name, t in files.items()}
    padded = {name: [t(x, padding="max_length", truncation=True, max_length=12).input_ids for x in all_texts[:60]] for name, t in classes.items()}
    # What differs little is stored as what differs.
    ids["clip_g"] = {str(i): got for i, got in enumerate(ids["clip_g"]) if got != ids["clip"][i]}
    ids["t5_file"] = {str(i): got for i, got in enumerate(ids["t5_file"]) if got != ids["t5"][i]}
    document = {"texts": all_texts, "ids": ids, "padded": padded}
    (folder / "text_cases.json").write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")))
    print(len(all_texts), "texts;", len(ids["clip_g"]), "differ in clip_g,", len(ids["t5_file"]), "in t5_file; table of",
          len(base64.b64encode(model.normalizer_spec.precompiled_charsmap)), "letters;",
          sum(2 in got for got in ids["t5"]), "texts with unknown ones")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
