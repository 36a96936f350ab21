#!/usr/bin/env python3
"""Writes the hostile seeds of corpus/: from one good document per parser, each field with a value of
another type, and the rest of each kind (byte-order marks, NULs, numbers beyond their type, duplicate
keys, deep nesting). Seeds of other names are left alone."""

import base64
import copy
import json
import re
import struct
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
WRONG = {dict: [1], list: {"a": 1}, str: 7, bool: "true", int: "1", float: "1", type(None): [{}]}
NUMBERS = {"beyond_int64": 2**63, "most_uint64": 2**64 - 1, "beyond_uint64": 2**64, "negative": -1,
           "least": -(2**63), "fraction": 1.5}


def compact(document):
    return json.dumps(document, separators=(",", ":")).encode()


def ways(value, way=()):
    """The ways to all values, of lists to the first two."""
    if way:
        yield way
    items = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value[:2])
    for key, inner in items:
        yield from ways(inner, way + (key,))


def get(value, way):
    for key in way:
        value = value[key]
    return value


def changed(document, way, value):
    document = copy.deepcopy(document)
    get(document, way[:-1])[way[-1]] = value
    return document


def wrong_numbers(document, way):
    for name, value in NUMBERS.items():
        yield name, compact(changed(document, way, value))
    yield "beyond_double", compact(changed(document, way, "@")).replace(b'"@"', b"1e999")


def wrong_fields(document, text):
    """`text` is some of the document's own."""
    good = compact(document)
    yield "bom", b"\xef\xbb\xbf" + good
    yield "nul_after", good + b"\0\0"
    yield "nul_inside", good.replace(b"{", b"{\0", 1)
    yield "duplicate", good[:-1] + b"," + good[1:]
    yield "deep", good[:-1] + b',"deep":' + b"[" * 70 + b"]" * 70 + b"}"
    yield "not_utf8", good.replace(text, text + b"\xff\xc0", 1)
    for way in ways(document):
        name = "_".join(re.sub("[^A-Za-z0-9_-]", "_", str(key).strip("_")) for key in way)
        yield "wrong_" + name, compact(changed(document, way, WRONG[type(get(document, way))]))


def write(target, stem, seeds, prefix=b""):
    for name, data in seeds:
        (CORPUS / target / f"{stem}_{name}").write_bytes(prefix + data)


INDEX = {"metadata": {"total_size": 12}, "weight_map": {"a": "m-1.safetensors", "b": "sub/m-2.safetensors"}}
NVFP4 = {"version": 1, "tensors": {"a.weight": {
    "format": "nvfp4", "shape": [2, 16], "scale": "block", "rounding": "nearest-even", "block": 16,
    "scale_layout": "linear", "order": "low-nibble-first", "min_block_scale": 0.0, "four_over_six": False,
    "tile_rows": 1}}}
MX = {"version": 1, "tensors": {"a": {
    "format": "mxfp8", "shape": [2, 32], "scale": "block", "rounding": "nearest-even", "block": 32,
    "scale_layout": "linear", "scale_rounding": "rceil"}}}
NOTES = {"version": 1, "formats": MX,
         "weights": {"a": {"global_scale": 0.1, "input_scale": 1e-30, "full_precision": True}}}
COMFY = {"format": "float8_e4m3fn", "full_precision_matrix_mult": True}
COMFY_HEADER = {"layers": {"a": {"format": "nvfp4"}}}
TORCHAO = {"_type": "NVFP4Tensor", "_tensor_data_names": ["qdata"],
           "_data": {"is_swizzled_scales": True, "act_quant_kwargs": None, "block_size": 16}}
TORCHAO_MX = {"_type": "MXTensor", "_tensor_data_names": ["qdata"], "_data": {"act_quant_kwargs": {
    "_type": "QuantizeTensorToMXKwargs",
    "_data": {"scaling_mode": {"_type": "ScaleCalculationMode", "_data": "RCEIL"}}}}}
SPLIT = {"type": "Split", "pattern": {"Regex": "\\s"}, "behavior": "Isolated", "invert": False}
LEVEL = {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False}
TOKENIZER = {  # a change of a good one: see tokenizer_fuzz.cpp
    "model": {"type": "BPE", "vocab": {"ab": 256}, "merges": [["a", "b"]], "byte_fallback": False,
              "fuse_unk": False, "ignore_merges": False, "dropout": None, "end_of_word_suffix": "",
              "continuing_subword_prefix": ""},
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT, LEVEL]},
    "added_tokens": [{"id": 257, "content": "<|im_end|>", "lstrip": False, "rstrip": False,
                      "single_word": False}]}
PATTERNS = {"backtracks": "(a|a|(a+)+)+$", "any_byte": "\\C", "keep_out": "a\\K", "empty_matches": "x*",
            "verbs": "(*ACCEPT)a|(*COMMIT)b", "repeats": "(?:a{1,65535}){1,65535}",
            "limit": "(*LIMIT_MATCH=1)a+b"}
CLIP_CONFIG = {
    "tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "do_lower_case": True, "pad_token": "!",
    "eos_token": {"__type": "AddedToken", "content": "<|endoftext|>", "normalized": True},
    "additional_special_tokens": ["ab"],
    "added_tokens_decoder": {"515": {"content": "<|endoftext|>", "lstrip": True, "special": True}}}
CLIP_SPECIAL = {"bos_token": {"content": "<|startoftext|>", "normalized": True}, "pad_token": "!"}
CLIP_VOCAB = {"ab": 512, "ab</w>": 513, "x": None, "<|endoftext|>": 515}
MERGES = {"good": "#version: 0.2\na b\na b</w>\n", "no_end": "a b", "crlf": "#version: 0.2\r\na b\r\n", "one": "a\n",
          "three": "a b c\n", "unknown": "a zz\n", "empty_line": "a b\n\na b</w>\n", "twice": "a b\na b\n", "space": " \n"}
STEP = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
UNIGRAM = {  # a change of a good one: see unigram_fuzz.cpp
    "model": {"type": "Unigram", "unk_id": 2, "byte_fallback": True, "vocab": [["<unk>", 0], ["a", -1.5], ["a", -1], ["", 0]]},
    "normalizer": {"type": "Sequence", "normalizers": [STEP, {"type": "Strip", "strip_left": True, "strip_right": True},
                                                       {"type": "NFC"}, {"type": "Lowercase"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "WhitespaceSplit"},
        {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": True, "add_prefix_space": True}]},
    "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}],
                       "special_tokens": {"x": {"ids": [1, 1]}}},
    "added_tokens": [{"id": 1, "content": "</s>", "lstrip": True, "rstrip": True, "normalized": True}]}
TEXTS = {"empty": b"", "words": b"A photo of a cat, isn't it? 12 <|endoftext|>x</s> <extra_id_3> y",
         "marks": "e\u0301\u0323 \ufb01\u0301 \u00bd\u0301 \u0344 \u0f73 \u1112\u1161\u11ab".encode(),
         "cases": "\u0130 \u03a3\u03a3 \u00df \uff21\uff42 \u2160 \ufdfa".encode(),
         "emoji": "\U0001f469\U0001f3fd\u200d\U0001f680 \U0001f1e9\U0001f1ea \u2764\ufe0f".encode(),
         "spaces": " \t\n\u00a0\u1680\u180e\u200b\u2028\u3000\u0085 \u2581".encode(), "nul": b"a\0b\x01\x7f",
         "not_utf8": b"a\xff\xc0\xaf", "surrogate": b"\xed\xa0\x80", "letters": b"a" * 300, "scripts": "\u0e01\u0e33 \u0641\u0651 \u6f22".encode()}
SHARDS = {"nul": "m\0x", "dot": "./m", "slashes": "sub//./m", "folder": "sub/", "only_dot": "."}
HEADER = {"__metadata__": {"k": "v"}, "a": {"dtype": "U8", "shape": [1, 4], "data_offsets": [0, 4]}}
FRAME = bytes(6) + (4).to_bytes(2, "little")  # four bytes of data follow: see safetensors_header_fuzz.cpp


def charsmaps():
    """The table of the tokenizers in tests/data, and what damage does to it."""
    file = CORPUS.parents[1] / "data" / "tokenizer" / "t5_file" / "tokenizer.json"
    steps = json.loads(file.read_text())["normalizer"]["normalizers"]
    good = base64.b64decode(steps[0]["precompiled_charsmap"])
    size = struct.unpack("<I", good[:4])[0]
    units = list(struct.unpack(f"<{size // 4}I", good[4:4 + size]))
    texts = good[4 + size:]

    def table(units, texts, size=None):
        return struct.pack(f"<I{len(units)}I", size if size is not None else 4 * len(units), *units) + texts

    yield "good", good
    yield "no_texts", table(units, b"")
    yield "texts_not_utf8", table(units, b"\xff" * len(texts))
    yield "texts_without_end", table(units, texts.replace(b"\0", b"x"))
    yield "cut", good[:size // 2]
    for name, wrong in {"zero": 0, "odd": size - 1, "beyond": size + len(texts) + 4, "most": 2**32 - 4}.items():
        yield "size_" + name, table(units, texts, wrong)
    # A unit: value or offset, whether it has a value, label.
    yield "offsets_far", table([u | 0x7FFFFE00 for u in units], texts)
    yield "offsets_none", table([u & 0x800003FF for u in units], texts)
    yield "values_everywhere", table([u | 0x100 for u in units], texts)
    yield "values_far", table([u | 0x7FFF0000 if u >> 31 else u for u in units], texts)
    yield "one_unit", table([0], texts)
    yield "itself", table([0x161 | b for b in range(256)], b"a\0b\0")


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value % 2**64)


def sentencepiece_models():
    def piece(text, score=-1.0, kind=1):
        return field(1, field(1, text) + field(2, score) + field(3, kind))

    pieces = piece(b"<pad>", 0.0, 3) + piece(b"</s>", 0.0, 3) + piece(b"<unk>", 0.0, 2) + piece(b"\xe2\x96\x81") + piece(b"a") + piece(b"ab")
    trainer = field(3, 1) + field(40, 2) + field(41, -1) + field(42, 1) + field(43, 0)
    charsmap = dict(charsmaps())["good"]
    rules = field(1, b"own") + field(2, charsmap) + field(3, 1) + field(4, 1)
    good = pieces + field(2, trainer) + field(3, rules)
    yield "good", good
    yield "no_table", pieces + field(2, trainer)
    yield "bytes", good + piece(b"<0x61>", -3.0, 6) + field(2, field(35, 1))
    yield "user_defined", good + piece(b"zz", 0.0, 4)
    yield "cut", good[:-20]
    yield "bpe", good + field(2, field(3, 2))
    yield "not_utf8", good + piece(b"\xff")
    yield "infinite", good + piece(b"b", float("inf"))
    yield "not_a_number", good + piece(b"b", float("nan"))
    yield "unknown_far", good + field(2, field(40, 2**31 - 1))
    yield "unknown_negative", good + field(2, field(40, -1))
    yield "long_number", b"\xff" * 11
    yield "group", b"\x0b" + good
    yield "length_most", b"\x0a" + varint(2**64 - 1)
    yield "wrong_kinds", field(1, 7) + field(2, 7)
    yield "damaged_table", pieces + field(2, trainer) + field(3, field(2, dict(charsmaps())["offsets_far"]))


def tokenizer_seeds():
    for name, merges in MERGES.items():
        (CORPUS / "bpe_files" / f"merges_{name}").write_bytes(merges.encode())
    good = MERGES["good"].encode() + b"\0"
    write("bpe_files", "vocab", wrong_fields(CLIP_VOCAB, b'"ab'), good)
    write("bpe_files", "vocab_id", wrong_numbers(CLIP_VOCAB, ("ab",)), good)
    write("bpe_files", "config", wrong_fields(CLIP_CONFIG, b"CLIP"), good + b"\0")
    write("bpe_files", "length", wrong_numbers(CLIP_CONFIG, ("model_max_length",)), good + b"\0")
    write("bpe_files", "special", wrong_fields(CLIP_SPECIAL, b"<|start"), good + b"\0\0")
    write("unigram", "change", wrong_fields(UNIGRAM, b"</s>"))
    write("unigram", "unk", wrong_numbers(UNIGRAM, ("model", "unk_id")))
    write("unigram", "score", wrong_numbers(UNIGRAM, ("model", "vocab", 1, 1)))
    doubling = changed(UNIGRAM, ("normalizer", "normalizers"), [STEP] * 40)
    (CORPUS / "unigram" / "doubling").write_bytes(compact(doubling))
    write("charsmap", "table", charsmaps())
    write("sentencepiece", "model", sentencepiece_models())
    write("encode_text", "text", TEXTS.items())


def main():
    for target in ("bpe_files", "unigram", "charsmap", "sentencepiece", "encode_text"):
        (CORPUS / target).mkdir(exist_ok=True)
    tokenizer_seeds()
    write("checkpoint_index", "index", wrong_fields(INDEX, b'"a'))
    write("checkpoint_index", "index", wrong_numbers(INDEX, ("metadata", "total_size")))
    write("quantization_metadata", "nvfp4", wrong_fields(NVFP4, b"a.weight"))
    write("quantization_metadata", "mx", wrong_fields(MX, b"mxfp8"))
    write("quantization_metadata", "shape", wrong_numbers(NVFP4, ("tensors", "a.weight", "shape", 0)))
    write("quantization_metadata", "block", wrong_numbers(MX, ("tensors", "a", "block")))
    write("quantization_metadata", "clamp", wrong_numbers(NVFP4, ("tensors", "a.weight", "min_block_scale")))
    write("dialect_markers", "notes", wrong_fields(NOTES, b"mxfp8"))
    write("dialect_markers", "notes", wrong_numbers(NOTES, ("weights", "a", "global_scale")))
    write("dialect_markers", "comfy", wrong_fields(COMFY, b"float8"))
    write("dialect_markers", "comfy_header", wrong_fields(COMFY_HEADER, b"nvfp4"))
    write("dialect_markers", "torchao", wrong_fields(TORCHAO, b"NVFP4"))
    write("dialect_markers", "torchao_mx", wrong_fields(TORCHAO_MX, b"RCEIL"))
    write("tokenizer", "change", wrong_fields(TOKENIZER, b"<|im"))
    write("tokenizer", "id", wrong_numbers(TOKENIZER, ("model", "vocab", "ab")))
    write("safetensors_header", "framed", wrong_fields(HEADER, b'"a'), FRAME)
    write("safetensors_header", "shape", wrong_numbers(HEADER, ("a", "shape", 0)), FRAME)
    write("safetensors_header", "offset", wrong_numbers(HEADER, ("a", "data_offsets", 1)), FRAME)
    for name, shard in SHARDS.items():
        path = CORPUS / "checkpoint_index" / f"index_name_{name}"
        path.write_bytes(compact({"weight_map": {"a": shard, "b": "m"}}))
    for name, pattern in PATTERNS.items():
        split = {**SPLIT, "pattern": {"Regex": pattern}}
        path = CORPUS / "tokenizer" / f"regex_{name}"
        path.write_bytes(compact({"pre_tokenizer": {"pretokenizers": [split, LEVEL]}}))


if __name__ == "__main__":
    main()
