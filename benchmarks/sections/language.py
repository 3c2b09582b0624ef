"""(gpt), (characters), (generate) and (tokens): a GPT's step and its training, generation and tokenising, beside Python torch,
transformers and tokenizers."""
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import ROOT
from measuring import Trouble, alternate, best, has_bf16_instructions, run, say

TYPES = {"fp32": "<= 0.95", "bf16": "<= 0.90"}
ANSWERS = {"fp32": "<= 0.90", "bf16": "<= 0.65"}
# A sentence, and about 512 tokens of prose for the time of a prompt.
SENTENCE = "Here is a long story about a fisherman who lived by the sea with his three daughters:"
PROSE = "The fisherman went down to the shore each morning, and looked at the grey water for a long time before he put out. "


def gpt(bench):
    """(gpt) a training step of a GPT, against Python torch"""
    bench.need("torch")
    small = bench.tiny("--layers", "2", "--context", "32", "--heads", "2", "--width", "32", "--batch", "2")
    everything = {}
    for precision, target in TYPES.items():
        if precision == "bf16" and not has_bf16_instructions() and not bench.arguments.tiny:
            say("  no bf16: this processor has no instructions for it, and a step takes minutes")
            continue
        flags = ["--precision", precision]
        contestants = {"trestle": lambda flags=flags: bench.steps(bench.program("gpt_step"), *flags, *small)}
        for name, more in (("eager", []), ("eager, fused AdamW", ["--fused"]), ("compiled", ["--compile", "--fused", "--warm-up", "2"])):
            contestants[name] = lambda flags=flags, more=more: bench.steps(*bench.peer("gpt_step"), *flags, *more, *small)
        results = everything[precision] = alternate(bench.arguments.rounds, contestants, say)
        for name in contestants:
            if name != "trestle":
                bench.compare(results, f"(gpt) {precision}, against {name}", "trestle", name, gradients=False)
        bench.compare(results, f"(gpt) {precision}, against Python's best of three", "trestle", [name for name in contestants if name != "trestle"],
                      target, gradients=False)
    return everything


def busy(bench):
    """(busy) the same for 40 steps, beside three busy processes for each core"""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * (os.cpu_count() or 1))]
    try:
        return characters(bench, 40, "busy", "<= 0.50")
    finally:
        for loop in loops:
            loop.kill()


def characters(bench, steps=2000, section="characters", target="<= 0.85"):
    """(characters) recipes/gpt_characters.toml, 2,000 steps on Shakespeare's plays: the whole command, against Python torch"""
    bench.need("torch", "numpy")
    plays = ROOT / "data" / "text" / "shakespeare.txt"
    if not plays.exists():
        raise Trouble("there is no text in data/text.\nFetch it: tools/get_text shakespeare")
    trestle = bench.program("trestle", "apps/trestle")
    steps, batch = (20 if bench.arguments.tiny else steps), 12
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        command([trestle, "text", "prepare", plays, "--tokenizer", "characters", "--out", folder / "plays"])
        losses = {"trestle": [], "Python torch": []}

        def ours():
            begin, name = time.perf_counter(), f"run_{len(losses['trestle'])}"
            command([trestle, "train", ROOT / "recipes" / "gpt_characters.toml", "--tokens", folder / "plays", "--count", steps * batch,
                     "--runs", folder, "--name", name, "--warm-up", min(100, steps // 2), "--quiet"])
            seconds = time.perf_counter() - begin
            last = (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
            losses["trestle"].append(json.loads(last)["validation_loss"])
            return {"seconds": seconds}

        def theirs():
            begin = time.perf_counter()
            found = run("Python torch", [*bench.peer("gpt_characters"), folder / "plays", "--steps", steps])
            losses["Python torch"].append(found["validation_loss"])
            return {"seconds": time.perf_counter() - begin}

        results = alternate(bench.arguments.rounds, {"trestle": ours, "Python torch": theirs}, say)
    bench.row(f"({section}) {steps} steps, the whole command, s", best(results, "trestle", "seconds"), best(results, "Python torch", "seconds"),
              target)
    bench.row(f"({section}) validation loss", losses["trestle"], losses["Python torch"])
    return {"seconds": results, "validation_loss": losses}


def answer(report):
    """Seconds of the prompt and of the answer, for each token. The prompt's pass gives the answer's first token."""
    return {"prompt": report["prompt_seconds"] / report["prompt_tokens"], "answer": report["answer_seconds"] / max(1, len(report["ids"]) - 1),
            "ids": report["ids"]}


def generate(bench):
    """(generate) continuing a text with SmolLM2-135M, against transformers on the same weights"""
    bench.need("torch", "transformers")
    gguf = next((ROOT / "data" / "smollm").glob("*.gguf"), None)
    if gguf is None:
        raise Trouble("there are no weights in data/smollm.\nFetch them: tools/get_smollm data/smollm")
    trestle = bench.program("trestle", "apps/trestle")
    everything = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "smollm"
        command([trestle, "export", gguf, "--names", "hugging_face", "--out", model])
        short = Path(folder) / "short.txt"
        short.write_text(f"{SENTENCE}\n" * 2, encoding="utf-8")  # the first one warms up
        long = Path(folder) / "long.txt"
        long.write_text(f"{PROSE * 21}\n" * 2, encoding="utf-8")
        tokens = 8 if bench.arguments.tiny else 64

        def ours(precision, prompts, count):
            lines = command([trestle, "generate", model, "--prompts", prompts, "--batch", 1, "--greedy", "--json", "--tokens", count,
                             "--precision", precision])
            report = json.loads(lines.splitlines()[-1])
            return answer({**report, "prompt_tokens": len(report["prompt_ids"])})

        def theirs(precision, prompts, count):
            report = run("transformers", [*bench.peer("generate_text"), "--model", model, "--prompts", prompts, "--tokens", count,
                                          "--precision", precision])
            return answer({**report, "prompt_tokens": report["prompt_ids"]})

        def llama_cpp(prompts, count):
            report = run("llama.cpp", [*bench.peer("generate_text"), "--llama-cpp", gguf, "--prompts", prompts, "--tokens", count])
            return answer({**report, "prompt_tokens": report["prompt_ids"]})

        contestants = {}
        for precision in ("fp32", "bf16", "int8"):
            contestants[f"trestle, {precision}"] = lambda p=precision: timed(ours(p, short, tokens), ours(p, long, 2))
        for precision in ANSWERS:
            contestants[f"transformers, {precision}"] = lambda p=precision: timed(theirs(p, short, tokens), theirs(p, long, 2))
        if bench.has("llama_cpp"):
            contestants["llama.cpp, Q4_1"] = lambda: timed(llama_cpp(short, tokens), llama_cpp(long, 2))
        texts = [one("fp32", short, tokens)["ids"] for one in (ours, theirs)]
        if texts[0] != texts[1]:
            raise Trouble(f"the two do not write the same text in fp32: {texts}")
        results = everything["seconds a token"] = alternate(bench.arguments.rounds, contestants, say)
        for precision, target in ANSWERS.items():
            pair = f"trestle, {precision}", f"transformers, {precision}"
            bench.compare_one(results, f"(generate) {precision}, a token of the answer", *pair, "answer", target, 4)
            bench.compare_one(results, f"(generate) {precision}, a token of a prompt of 500", *pair, "prompt", "<= 0.95", 4)
        bench.compare_one(results, "(generate) int8 by row against transformers' bf16, a token of the answer", "trestle, int8",
                          "transformers, bf16", "answer", "<= 0.40", 4)
        if "llama.cpp, Q4_1" in results:
            for precision in ("bf16", "int8"):
                bench.compare_one(results, f"(generate) {precision} against llama.cpp's 4-bit weights, a token of the answer",
                                  f"trestle, {precision}", "llama.cpp, Q4_1", "answer", None, 4)
        everything["perplexity"] = perplexity(bench, trestle, model, Path(folder))
    return everything


def timed(short, long):
    return {"answer": short["answer"], "prompt": long["prompt"]}


def perplexity(bench, trestle, model, folder):
    """The perplexity of each type of weights, on 30 kB of a novel."""
    novels = ROOT / "data" / "text" / "austen.txt"
    if not novels.exists():
        say("  no perplexity: fetch the text with tools/get_text austen")
        return None
    text = folder / "novel.txt"
    text.write_bytes(novels.read_bytes()[2000:4000 if bench.arguments.tiny else 32000])
    found = {}
    for precision in ("fp32", "bf16", "int8"):
        lines = command([trestle, "evaluate", model, "--text", text, "--window", 512, "--precision", precision, "--json"])
        found[precision] = json.loads(lines.splitlines()[-1])["perplexity"]
        say(f"  perplexity, {precision}: {found[precision]:.3f}")
    for precision in ("bf16", "int8"):
        bench.row(f"(generate) perplexity, {precision} against fp32", [found[precision]], [found["fp32"]])
    return found


def tokens(bench):
    """(tokens) tokenising documents, against Hugging Face's tokenizers"""
    bench.need("tokenizers", "numpy")
    gguf = next((ROOT / "data" / "smollm").glob("*.gguf"), None)
    texts = sorted((ROOT / "data" / "text").glob("*.txt"))
    if gguf is None or not texts:
        raise Trouble("there are no weights in data/smollm, or no text in data/text.\n"
                      "Fetch them: tools/get_smollm data/smollm; tools/get_text shakespeare; tools/get_text bible; tools/get_text austen")
    trestle = bench.program("trestle", "apps/trestle")
    megabytes = 1 if bench.arguments.tiny else 100
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        command([trestle, "export", gguf, "--names", "hugging_face", "--out", folder / "smollm"])
        tokenizer = folder / "smollm" / "tokenizer.json"
        documents = folder / "documents.jsonl"
        cut_documents([text.read_text(encoding="utf-8") for text in texts], megabytes * 10**6, documents)

        def ours():
            begin = time.perf_counter()
            command([trestle, "text", "prepare", documents, "--tokenizer", tokenizer, "--out", folder / "tokens", "--end", "none", "--validation", 0,
                     "--overwrite", "--json"])
            return {"seconds": time.perf_counter() - begin}

        def theirs(*more):
            return {"seconds": run("tokenizers", [*bench.peer("tokenise_text"), documents, "--tokenizer", tokenizer, *more])["seconds"]}

        ours()
        theirs("--out", folder / "theirs.bin")
        compare_ids(folder)
        results = alternate(bench.arguments.rounds, {"trestle": ours, "tokenizers": theirs}, say)
    bench.row(f"(tokens) {megabytes} MB in documents of 1 to 10 kB: our whole command against encode_batch alone", best(results, "trestle", "seconds"),
              best(results, "tokenizers", "seconds"), "<= 0.50")
    return results


def cut_documents(texts, size, path):
    """Documents of 1 to 10 kB from random places of the texts. They overlap where the texts are smaller than `size`."""
    draw, written = random.Random(1), 0
    with path.open("w", encoding="utf-8") as out:
        while written < size:
            text, length = draw.choice(texts), draw.randint(1000, 10000)
            begin = draw.randrange(max(1, len(text) - length))
            out.write(json.dumps({"text": text[begin:begin + length]}) + "\n")
            written += length


def compare_ids(folder):
    import array  # numpy is a package of the peers
    header, ids = 1024, array.array("H")
    for path in sorted((folder / "tokens").glob("train_*.bin")):
        ids.frombytes(path.read_bytes()[header:])
    wanted = array.array("I", (folder / "theirs.bin").read_bytes())
    if len(ids) != len(wanted) or any(a != b for a, b in zip(ids, wanted)):
        raise Trouble("the two do not make the same ids")


def command(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise Trouble(f"`{' '.join(str(word) for word in words)}` failed:\n{done.stderr.strip()[-800:]}")
    return done.stdout
