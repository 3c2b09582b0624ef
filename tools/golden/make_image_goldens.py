"""Writes tests/golden/images: small picture files and Pillow's results.

    pip install pillow numpy
    python tools/golden/make_image_goldens.py

Every `<name>.jpg|png|gif` has beside it `<name>.pgm` or `<name>.ppm` with the samples of
numpy.asarray(Image.open(...)) (pictures with alpha: `<name>.raw`). `resize.txt` lists
`source filter width height result`, one per line. `orientation_<n>` have that Exif orientation; beside them are the results of
ImageOps.exif_transpose. `<name>_to_l` and `<name>_to_rgb` are the results of convert("L") and convert("RGB").
"""

import pathlib

import numpy as np
import PIL
from PIL import Image, ImageOps

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "images"


def photo(width, height):
    """Smooth shapes, sharp edges and noise, which show differences in resizing and chroma sampling."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    base = np.stack(
        [
            127 + 120 * np.sin(x / 5.0 + y / 9.0),
            255 * ((x - width / 2) ** 2 + (y - height / 2) ** 2 < (height / 3) ** 2),
            20 + 230 * y / height,
        ],
        axis=-1,
    )
    return np.clip(base + rng.normal(0, 12, base.shape), 0, 255).astype(np.uint8)


def write_samples(name, image):
    array = np.asarray(image)
    if array.dtype == bool:
        array = array.astype(np.uint8)
    if array.ndim == 3 and array.shape[2] != 3:
        (OUT / f"{name}.raw").write_bytes(array.tobytes())
        return
    kind, suffix = ("P5", "pgm") if array.ndim == 2 else ("P6", "ppm")
    header = f"{kind} {array.shape[1]} {array.shape[0]} 255\n".encode()
    (OUT / f"{name}.{suffix}").write_bytes(header + array.tobytes())


def save(name, suffix, image, **options):
    path = OUT / f"{name}.{suffix}"
    image.save(path, **options)
    with Image.open(path) as read:
        read.load()
        write_samples(name, read)


def orientations():
    for number in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = number
        for suffix, options in (("jpg", {"quality": 90}), ("png", {})) if number == 6 else (("jpg", {"quality": 90}),):
            name = f"orientation_{number}" + ("_png" if suffix == "png" else "")
            Image.fromarray(photo(13, 8)).save(OUT / f"{name}.{suffix}", exif=exif, **options)
            with Image.open(OUT / f"{name}.{suffix}") as image:
                write_samples(name, ImageOps.exif_transpose(image))


def odd_orientations():
    """The chunk after the pixels, with the number as a long: Pillow applies both."""
    png = (OUT / "orientation_6_png.png").read_bytes()
    at = png.index(b"eXIf") - 4
    end = at + 12 + int.from_bytes(png[at : at + 4], "big")
    last = png.rindex(b"IEND") - 4
    (OUT / "orientation_6_behind.png").write_bytes(png[:at] + png[end:last] + png[at:end] + png[last:])
    jpeg = (OUT / "orientation_6.jpg").read_bytes()
    short, long = b"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00", b"\x01\x12\x00\x04\x00\x00\x00\x01\x00\x00\x00\x06"
    assert short in jpeg
    (OUT / "orientation_6_long.jpg").write_bytes(jpeg.replace(short, long))
    for name in ("orientation_6_behind.png", "orientation_6_long.jpg"):
        with Image.open(OUT / name) as image:
            write_samples(name.split(".")[0], ImageOps.exif_transpose(image))


def conversions():
    for name in ("rgb", "rgba", "grey", "grey_alpha"):
        for mode in ("L", "RGB"):
            with Image.open(OUT / f"{name}.png") as image:
                write_samples(f"{name}_to_{mode.lower()}", image.convert(mode))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    rgb = Image.fromarray(photo(37, 23))
    grey = rgb.convert("L")
    save("rgb_420", "jpg", rgb, quality=85, subsampling=2)
    save("rgb_422", "jpg", rgb, quality=70, subsampling=1)
    save("rgb_444", "jpg", rgb, quality=95, subsampling=0)
    save("progressive", "jpg", rgb, quality=80, progressive=True)
    save("grey_jpeg", "jpg", grey, quality=80)

    save("rgb", "png", rgb)
    save("grey", "png", grey)
    save("palette", "png", rgb.quantize(11))
    save("one_bit", "png", grey.point(lambda v: 255 * (v > 128)).convert("1"))
    alpha = Image.merge("RGBA", (*rgb.split(), grey))
    save("rgba", "png", alpha)
    save("grey_alpha", "png", Image.merge("LA", (grey, rgb.split()[1])))

    mask = Image.fromarray((photo(37, 23)[..., 1] > 128).astype(np.uint8), mode="P")
    mask.putpalette([0, 0, 0, 255, 255, 255])
    save("mask", "gif", mask)
    save("interlaced", "gif", rgb.quantize(29), interlace=1)
    save("plain", "gif", rgb.quantize(200), interlace=0)

    orientations()
    odd_orientations()
    conversions()

    lines = []
    for source, filters in (("rgb", "bicubic nearest"), ("grey", "bicubic nearest")):
        image = Image.open(OUT / f"{source}.png")
        for kind in filters.split():
            for width, height in ((18, 11), (50, 31), (37, 11), (18, 23), (5, 3), (1, 1), (36, 40)):
                name = f"{source}_{kind}_{width}x{height}"
                write_samples(name, image.resize((width, height), getattr(Image.Resampling, kind.upper())))
                lines.append(f"{source} {kind} {width} {height} {name}")
    (OUT / "resize.txt").write_text("\n".join(lines) + "\n")
    (OUT / "version.txt").write_text(f"Pillow {PIL.__version__}, NumPy {np.__version__}\n")


if __name__ == "__main__":
    main()
