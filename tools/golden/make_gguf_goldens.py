#!/usr/bin/env python3
"""Writes tests/golden/gguf with Python's gguf and numpy: one tensor of each type, and its values as floats.

    tools/golden/make_gguf_goldens.py

types.gguf has the tensors "f32", "q4_0", ... and metadata of every kind; types.f32 has the floats of gguf.dequantize(), all
tensors one after another, little endian. Every block has other scales, and some have extreme ones.
"""

import pathlib

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, dequantize

OUT = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "gguf"
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
# The bytes of a block that hold its fp16 scales.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def some_halves(count, random):
    """Finite fp16 numbers: ordinary, subnormal, the largest, and zeros."""
    special = numpy.array([0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00], dtype=numpy.uint16)
    ordinary = (random.standard_normal(max(count - len(special), 0)) / 50).astype(numpy.float16)
    return numpy.concatenate([special.view(numpy.float16), ordinary])[:count]


def random_bytes(name, rows, columns, random):
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = rows * columns // block
    data = random.integers(0, 256, (blocks, size), dtype=numpy.uint8)
    for at in SCALES[name]:
        data[:, at:at + 2] = random.permutation(some_halves(blocks, random)).view(numpy.uint8).reshape(blocks, 2)
    return data.reshape(rows, -1)


def make(name, random):
    if name == "F32":
        return (random.standard_normal((3, 4, 5)) * 10).astype(numpy.float32)
    if name == "F16":
        halves = numpy.concatenate([some_halves(22, random), numpy.array([numpy.inf, -numpy.inf], dtype=numpy.float16)])
        return halves.reshape(4, 6)
    if name == "BF16":
        return random.standard_normal((4, 6)).astype(numpy.float32).view(numpy.uint32).__rshift__(16).astype(
            numpy.uint16).view(numpy.uint8).reshape(4, 12)
    return random_bytes(name, 12, 256 if name.endswith("_K") else 64, random)


def main():
    random = numpy.random.default_rng(7)
    OUT.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(OUT / "types.gguf", "llama")
    for key, value, kind in [
            ("u8", 200, GGUFValueType.UINT8), ("i8", -100, GGUFValueType.INT8), ("u16", 60000, GGUFValueType.UINT16),
            ("i16", -30000, GGUFValueType.INT16), ("u32", 4000000000, GGUFValueType.UINT32),
            ("i32", -2000000000, GGUFValueType.INT32), ("u64", 1 << 60, GGUFValueType.UINT64),
            ("i64", -(1 << 60), GGUFValueType.INT64), ("f32", 0.5, GGUFValueType.FLOAT32),
            ("f64", 0.1, GGUFValueType.FLOAT64), ("yes", True, GGUFValueType.BOOL), ("no", False, GGUFValueType.BOOL),
            ("word", "größer", GGUFValueType.STRING)]:
        writer.add_key_value(f"test.{key}", value, kind)
    writer.add_array("test.words", ["a", "", "ccc"])
    writer.add_array("test.numbers", [1, -2, 3])
    writer.add_array("test.floats", [0.5, -0.25])
    writer.add_array("test.flags", [True, False])
    for name in TYPES:
        data = make(name, random)
        writer.add_tensor(name.lower(), data, raw_dtype=None if name in ("F32", "F16") else GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with (OUT / "types.f32").open("wb") as out:
        for tensor in GGUFReader(OUT / "types.gguf").tensors:
            with numpy.errstate(all="ignore"):
                values = dequantize(tensor.data, tensor.tensor_type).astype("<f4")
            print(tensor.name, tensor.shape.tolist()[::-1], values.shape)
            out.write(values.tobytes())


if __name__ == "__main__":
    main()
