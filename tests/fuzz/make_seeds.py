#!/usr/bin/env python3
"""Writes the hostile seeds of corpus/: from one good document per parser, each field with a value of
another type, and the rest of each kind (byte-order marks, NULs, numbers beyond their type, duplicate
keys, deep nesting). Seeds of other names are left alone."""

import copy
import json
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
        name = "_".join(str(key).strip("_").replace(".", "_") for key in way)
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
SHARDS = {"nul": "m\0x", "dot": "./m", "slashes": "sub//./m", "folder": "sub/", "only_dot": "."}
HEADER = {"__metadata__": {"k": "v"}, "a": {"dtype": "U8", "shape": [1, 4], "data_offsets": [0, 4]}}
FRAME = bytes(6) + (4).to_bytes(2, "little")  # four bytes of data follow: see safetensors_header_fuzz.cpp


def main():
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
