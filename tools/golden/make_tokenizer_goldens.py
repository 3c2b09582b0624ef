"""Writes tests/golden/tokens: small tokenizers, hostile strings and their ids.

    pip install tokenizers sentencepiece
    python tools/golden/make_tokenizer_goldens.py

`<name>.json` is a tokenizer.json that Hugging Face's tokenizers trained, and `<name>.ids.json` has the ids of all strings
of `strings.json`, once with special tokens as text and once with special tokens recognised. `gpt2/` is the tokenizer
`gpt2.json` as vocab.json and merges.txt. `<name>.model` is a SentencePiece model with its ids. `trained.json` has texts and the tokens that
a trainer learns from them. `strips.json` has added tokens that meet, and the ids of texts with them. `utf8.json` has what
Python decodes from invalid UTF-8, as hexadecimal bytes.
"""

import io
import json
import os
import pathlib
import random

import sentencepiece
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "golden" / "tokens"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
            "<|end_header_id|>", "<|eot_id|>"]

# Strings that tokenizers disagree about: contractions, white space of all kinds, marks, joiners, digits of all scripts,
# letters of Unicode 15 and 16, characters that normalization changes, and tokens that are cut short.
STRINGS = [*"aAzZ09'’  \t\n\rsStTſdDmMéñßÅﬁ①²½Ⅷ٣߁१〇𝟘_-!?([<>/\\|#@$€", "'s", "'S", "'LL", "'re", "  ", "   ", "\r\n",
          "\u0301", "\u0300\u0323", "e\u0301", "\u200d", "\u200c", "👨\u200d👩\u200d👧", "🏽", "🇩🇪", "\u180e", "\u2028",
          "\u2029", "\u00a0", "\u3000", "\u202f", "\u205f", "\u1680", "\u0085", "\u200b", "\ufeff", "한", "국",
          "\u1100\u1161\u11a8", "中", "文", "ひ", "カ", "ﾊﾟ", "ا", "ل", "\u064b", "ש", "ก", "ำ", "\U0001e030",
          "\U000105c0", "\U0001d2c0", "\u1c89", "\U000116d0", "\u0898", "...", "12", "123", "1234", "\x00", "\x7f", "\ufffd",
          "\U0010ffff", "\ud7ff", "\ue000", "the", " the", " The", "ing", "hello", "Ω", "\u212b", "\u0344", "\u1e9b\u0323",
          "<|im_", "|>", "LEFT", " LEFT ", "RIGHT", "RIGHT  ", "WORD", "aWORD", "WORD1", "ﬁx", "fix", "<mask>", "  <mask>",
          "<tool>", *SPECIALS]


def strings():
    random.seed(5)
    mixed = ["".join(random.choice(STRINGS) for _ in range(random.randrange(16))) for _ in range(150)]
    codes = [range(128), range(0x3000), range(0x20000), range(0xE000, 0x110000)]
    drawn = ["".join(chr(random.choice(random.choice(codes))) for _ in range(random.randrange(12))) for _ in range(50)]
    drawn = ["".join(c for c in text if not 0xD800 <= ord(c) < 0xE000) for text in drawn]
    return ["", " ", "Hello, world! It's 2024.", "a" * 300, " " * 300 + "x", *mixed, *drawn]


def corpus(texts):
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "LICENSE", "CONTRIBUTING.md")]
    return pages + texts


def byte_level(**options):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **options)


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(use_regex=False)])


def train(texts, pre_tokenizer, *, alphabet=True, specials=(), special_tokens=(), normalizer=None, size=600, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    letters = pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    tokenizer.train_from_iterator(corpus(texts) if alphabet else corpus([]), trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=letters, special_tokens=list(specials), show_progress=False))
    tokenizer.add_special_tokens(list(special_tokens))
    return tokenizer


def make(texts):
    end_of_text = AddedToken("<|endoftext|>", normalized=True)
    yield "gpt2", train(texts, byte_level(), special_tokens=[end_of_text])
    llama3 = train(texts, split(LLAMA3), special_tokens=SPECIALS, ignore_merges=True)
    begin = llama3.token_to_id("<|begin_of_text|>")
    llama3.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])])
    yield "llama3", llama3
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()])
    yield "smollm", train(texts, digits, alphabet=False, specials=SPECIALS[:3])
    qwen2 = train(texts, split(QWEN2), special_tokens=SPECIALS[:3], normalizer=normalizers.NFC())
    qwen2.add_tokens([AddedToken("<tool>", normalized=False)])
    yield "qwen2", qwen2
    flags = train(texts, pre_tokenizers.ByteLevel(add_prefix_space=True), normalizer=normalizers.NFKC(), size=500)
    flags.add_tokens([AddedToken("LEFT", lstrip=True), AddedToken("RIGHT", rstrip=True, normalized=True),
                      AddedToken("WORD", single_word=True), AddedToken("ﬁx", normalized=True),
                      AddedToken("Z", single_word=True, lstrip=True, rstrip=True), AddedToken("  ", normalized=False),
                      AddedToken("<mask>", lstrip=True, special=True, normalized=False)])
    yield "flags", flags
    yield "unknown", train(texts, byte_level(), alphabet=False, specials=["<unk>"], unk_token="<unk>", fuse_unk=True,
                           size=300)


def make_sentencepiece(texts):
    lines = [line for text in corpus([]) for line in text.splitlines() if line.strip()]
    os.chdir(OUT)
    rules = pathlib.Path("rules.tsv")  # a small table of normalized characters; the usual one has 240 kB. The model records the path.
    rules.write_text("FB01\t66 69\n2460\t31\n65 301\tE9\nA0\t20\n")
    for kind, normalizer in (("bpe", {"normalization_rule_name": "identity"}),
                             ("unigram", {"normalization_rule_tsv": str(rules)})):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, model_type=kind, vocab_size=600, byte_fallback=kind == "bpe",
            user_defined_symbols=["<tool>"], minloglevel=2, num_threads=1, **normalizer)
        (OUT / f"{kind}.model").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        ids = [processor.encode(text) for text in texts]
        write(f"{kind}.ids.json", {"text": ids, "decoded": [processor.decode(row) for row in ids]})
    rules.unlink()


# The tokens that the trainer learns with GPT-2's pre-tokenizer; its ties are those of trestle::tokens::train_bpe.
def make_trained():
    texts = (ROOT / "LICENSE").read_text(encoding="utf-8").split("\n\n")[:12]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=320, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    decoder = decoders.ByteLevel()
    write("trained.json", {"texts": texts, "tokens": [
        decoder.decode([a + b]) for a, b in json.loads(tokenizer.to_str())["model"]["merges"]]})


# Added tokens that meet, where the white space that one takes is another one. Strings on which the package panics ("bad
# split") are left out.
def make_strips():
    random.seed(1)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    base, cases = None, []
    for _ in range(60):
        tokenizer = Tokenizer(models.BPE(vocab=dict(vocabulary), merges=[]))
        tokenizer.pre_tokenizer = byte_level()
        tokenizer.decoder = decoders.ByteLevel()
        base = base or json.loads(tokenizer.to_str())
        for text in random.sample(["<A>", "<B>", "\n", "\n\n", "a b", "<A>\n", " ", "  "], random.randint(2, 4)):
            flags = {flag: random.random() < share for flag, share in
                     (("single_word", 0.2), ("lstrip", 0.4), ("rstrip", 0.4), ("normalized", 0.3))}
            token = AddedToken(text, **flags)
            (tokenizer.add_special_tokens if random.random() < 0.5 else tokenizer.add_tokens)([token])
        texts, ids = [], []
        for _ in range(40):
            text = "".join(random.choice(["<A>", "<B>", "\n", " ", "a", "b", " a b ", "\n\n", "\t"])
                           for _ in range(random.randint(1, 8)))
            try:
                ids.append(tokenizer.encode(text, add_special_tokens=False).ids)
                texts.append(text)
            except BaseException as error:  # a panic of Rust is no Exception
                assert "bad split" in str(error)
        cases.append({"added": json.loads(tokenizer.to_str())["added_tokens"], "texts": texts, "ids": ids})
    write("strips.json", {"tokenizer": base, "cases": cases})


def invalid_utf8():
    cases = ["80", "bf", "c080", "c1bf", "c2", "c241", "e080af", "e0a0", "e28261", "e282", "eda080", "edbfbf", "eda080edb080",
             "f0808080", "f09f98", "f09f9861", "f09f", "f0", "f48fbfbf", "f4908080", "f5808080", "ff", "fe", "fffe41",
             "41f09f98c3a9", "c3a9e2", "e2e282ac", "f09f98f09f9880", "e18080e180", "61c0af62", "f0809f98"]
    random.seed(3)
    heads = [0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF]
    drawn = [bytes(random.choice(heads) for _ in range(random.randrange(1, 12))) for _ in range(400)]
    return [[case.hex(), case.decode(errors="replace").encode().hex()] for case in [*map(bytes.fromhex, cases), *drawn]]


def write(name, value):
    (OUT / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def main():
    (OUT / "gpt2").mkdir(parents=True, exist_ok=True)
    texts = strings()
    write("strings.json", texts)
    write("utf8.json", invalid_utf8())
    for name, tokenizer in make(texts):
        tokenizer.save(str(OUT / f"{name}.json"), pretty=False)
        ids = {}
        for mode in ("text", "recognised"):
            tokenizer.encode_special_tokens = mode == "text"
            ids[mode] = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        write(f"{name}.ids.json", ids)
        if name == "gpt2":
            parts = json.loads(tokenizer.to_str())["model"]
            parts["vocab"]["<|endoftext|>"] = tokenizer.token_to_id("<|endoftext|>")
            write("gpt2/vocab.json", parts["vocab"])
            merges = ["#version: 0.2", *(" ".join(pair) for pair in parts["merges"])]
            (OUT / "gpt2" / "merges.txt").write_text("\n".join(merges) + "\n", encoding="utf-8")
    make_sentencepiece(texts)
    make_trained()
    make_strips()
    (OUT / "version.txt").write_text(
        f"tokenizers {tokenizers.__version__}\nsentencepiece {sentencepiece.__version__}\n")


if __name__ == "__main__":
    main()
