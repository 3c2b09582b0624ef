"""Writes tests/golden/mnist: three tiny pictures and their labels as MNIST's gzip-compressed IDX files.

    python tools/golden/make_gzip_goldens.py
"""

import gzip
import pathlib
import struct

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "mnist"


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    pixels = bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255])
    for name, content in (
        ("train-images-idx3-ubyte", struct.pack(">BBBBIII", 0, 0, 8, 3, 3, 2, 2) + pixels),
        ("train-labels-idx1-ubyte", struct.pack(">BBBBI", 0, 0, 8, 1, 3) + bytes([7, 0, 9])),
    ):
        with open(OUT / f"{name}.gz", "wb") as file:
            with gzip.GzipFile(name, "wb", fileobj=file, mtime=0) as packed:
                packed.write(content)


if __name__ == "__main__":
    main()
