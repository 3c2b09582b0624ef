"""Writes tests/golden/nifti: small NIfTI files of nibabel, each with its values and its affine as nibabel reads them.

    python tools/golden/make_nifti_goldens.py

Needs nibabel 5.4.2 and numpy. The arrays of nibabel are [columns, rows, slices, channels]; x.values.npy has
[channels, slices, rows, columns], x.affine.npy the three upper rows of the affine.
"""

import pathlib

import nibabel
import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "nifti"
SHAPE = (4, 3, 2)  # columns, rows, slices

AFFINE = np.array([[-0.9, 0.1, 0.0, 12.5], [0.1, 0.9, 0.2, -7.25], [0.0, -0.15, 3.0, 101.0], [0, 0, 0, 1]])


def turned(spacing):
    """A rotation, so that the qform alone can hold it."""
    c, s = np.cos(0.3), np.sin(0.3)
    rotation = np.array([[c, -s, 0], [s, c, 0], [0, 0, -1]])
    affine = np.eye(4)
    affine[:3, :3] = rotation @ np.diag(spacing)
    affine[:3, 3] = [5, -6, 7]
    return affine


def numbers(shape, dtype, low=0):
    return (np.arange(np.prod(shape)).reshape(shape, order="F") * 7 % 101 + low).astype(dtype)


def write(name, image):
    path = OUT / name
    nibabel.save(image, path)
    read = nibabel.load(path)
    values = np.asarray(read.get_fdata(dtype=np.float64))
    while values.ndim < 4:
        values = values[..., np.newaxis]
    values = values.reshape(*values.shape[:3], -1)
    stem = name.split(".")[0]
    np.save(OUT / f"{stem}.values.npy", np.ascontiguousarray(values.transpose(3, 2, 1, 0).astype(np.float32)))
    np.save(OUT / f"{stem}.affine.npy", np.ascontiguousarray(read.affine[:3].astype(np.float64)))
    print(name, values.shape, read.get_data_dtype(), read.header.get_slope_inter())


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for kind in ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"):
        write(f"{kind}.nii", nibabel.Nifti1Image(numbers(SHAPE, kind), AFFINE, dtype=kind))
    # Slope and intercept: nibabel stores (value - inter) / slope.
    image = nibabel.Nifti1Image(numbers(SHAPE, np.float64) * 0.5 - 10, AFFINE)
    image.header.set_data_dtype(np.int16)
    write("scaled.nii.gz", image)
    big = nibabel.Nifti1Header(endianness=">")
    big.set_data_dtype(">i2")
    write("big_endian.nii.gz", nibabel.Nifti1Image(numbers(SHAPE, np.int16, -50), AFFINE, big))
    write("channels.nii.gz", nibabel.Nifti1Image(numbers((*SHAPE, 3), np.float32), AFFINE))
    write("vectors.nii", nibabel.Nifti1Image(numbers((*SHAPE, 1, 2), np.int16), AFFINE))
    write("second_version.nii.gz", nibabel.Nifti2Image(numbers(SHAPE, np.int16, -50), AFFINE))
    only_qform = nibabel.Nifti1Image(numbers(SHAPE, np.uint8), None)
    only_qform.set_qform(turned([0.5, 0.75, 2.5]), code=1)
    only_qform.set_sform(None, code=0)
    write("qform.nii", only_qform)
    extended = nibabel.Nifti1Image(numbers(SHAPE, np.uint8), AFFINE)
    extended.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"behind the header"))
    write("extended.nii", extended)
    nibabel.save(nibabel.Nifti1Pair(numbers(SHAPE, np.uint8), AFFINE), OUT / "pair.img")
    (OUT / "pair.img").unlink()
    colours = np.zeros(SHAPE, dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    nibabel.save(nibabel.Nifti1Image(colours, AFFINE), OUT / "colours.nii")
    (OUT / "version.txt").write_text(f"nibabel {nibabel.__version__}, numpy {np.__version__}\n")


if __name__ == "__main__":
    main()
