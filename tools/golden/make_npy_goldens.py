"""Writes tests/golden/npy: small arrays as NumPy saves them.

    pip install numpy
    python tools/golden/make_npy_goldens.py

`<type>.npy` is arange(6) of that type in the shape (2, 3).
"""

import pathlib

import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "npy"


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    numbers = np.arange(6).reshape(2, 3)
    for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "i8", "f2", "f4", "f8"):
        np.save(OUT / f"{kind}.npy", numbers.astype(kind))
    np.save(OUT / "b1.npy", numbers % 2 == 1)
    np.save(OUT / "scalar.npy", np.float32(3))
    np.save(OUT / "row.npy", np.arange(4, dtype="f4"))
    np.save(OUT / "fortran.npy", np.asfortranarray(numbers.astype("f4")))
    np.save(OUT / "big_endian.npy", numbers.astype(">f4"))
    np.save(OUT / "complex.npy", numbers.astype("c8"))
    np.save(OUT / "records.npy", np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]))
    np.save(OUT / "objects.npy", np.array([1, "x"], dtype=object), allow_pickle=True)
    for version in ((2, 0), (3, 0)):
        with open(OUT / f"format_{version[0]}.npy", "wb") as file:
            np.lib.format.write_array(file, numbers.astype("f4"), version=version)
    x, y = numbers.astype("f4"), np.array([1, 0])
    np.savez(OUT / "set.npz", x=x, y=y)
    np.savez_compressed(OUT / "packed.npz", x=np.zeros((40, 50), "f4"), y=np.arange(40))
    np.savez(OUT / "one.npz", x)
    (OUT / "version.txt").write_text(f"NumPy {np.__version__}\n")


if __name__ == "__main__":
    main()
