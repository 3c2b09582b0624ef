#!/usr/bin/env python3
"""Writes tests/golden/smollm.json: what Python's transformers says with the real SmolLM2-135M-Instruct.

    tools/get_smollm && python tools/golden/smollm.py [FOLDER]     (torch, transformers 5, tokenizers and gguf)

FOLDER is data/smollm by default. For each prompt: its ids, the 32 tokens that follow without sampling (the end token does not
end them), their text, and the smallest distance between the two largest logits of a step. The tokenizer comes from the file's
metadata, and the weights are the file's, dequantized to float32.
"""
import hashlib
import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import gguf
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parents[2]
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
OUT = ROOT / "tests/golden/smollm.json"
TOKENS = 32
PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a little",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nName three colors.<|im_end|>\n<|im_start|>assistant\n",
    "In 1969, 2 men landed on the moon; naïve café – 12345",
]


def tokenizer_of(reader):
    words, kinds, merges = (reader.fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges"))
    made = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[tuple(m.split(" ")) for m in merges]))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                  pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([word for word, kind in zip(words, kinds) if kind == gguf.TokenType.CONTROL])
    return made


def unpermuted(weight, heads):
    """transformers' order of the rows of queries and keys, from llama.cpp's."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def public_name(name):
    parts = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
             "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    if not name.startswith("blk."):
        return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]
    _, layer, part, leaf = name.split(".")
    return f"model.layers.{layer}.{parts[part]}.{leaf}"


def model_of(reader):
    def value(key):
        return reader.fields[f"llama.{key}"].contents()

    config = LlamaConfig(
        vocab_size=value("vocab_size"), hidden_size=value("embedding_length"), intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"), num_attention_heads=value("attention.head_count"),
        num_key_value_heads=value("attention.head_count_kv"), max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"), tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=value("rope.freq_base")))
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        weights[public_name(tensor.name)] = torch.tensor(unpermuted(values, heads[part]) if part in heads else values)
    model = LlamaForCausalLM(config).eval()
    missing = model.load_state_dict(weights, strict=False)
    assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys, missing
    return model


@torch.no_grad()
def continued(model, ids):
    said = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=TOKENS,
                          do_sample=False, pad_token_id=0, eos_token_id=None)[0]
    # One pass over the whole row must choose the same tokens as the steps with cached keys.
    logits = model(said[None, :-1]).logits[0, len(ids) - 1:]
    top = logits.topk(2)
    assert top.indices[:, 0].tolist() == said[len(ids):].tolist(), "the tokens depend on the cache"
    return said[len(ids):].tolist(), (top.values[:, 0] - top.values[:, 1]).min().item()


def main():
    path = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "data/smollm") / NAME
    reader = gguf.GGUFReader(path)
    tokenizer, model = tokenizer_of(reader), model_of(reader)
    cases = []
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt).ids
        tokens, margin = continued(model, ids)
        said = tokenizer.decode(tokens, skip_special_tokens=False)
        cases.append(dict(prompt=prompt, ids=ids, tokens=tokens, text=said, margin=float(f"{margin:.4g}")))
        print(f"{margin:.4f} {prompt!r} -> {said!r}")
    content = dict(made_by="python tools/golden/smollm.py", versions=dict(
        torch=torch.__version__.split("+")[0], transformers=transformers.__version__), file=NAME,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(), cases=cases)
    lines = ",\n".join("  " + json.dumps(case, ensure_ascii=False) for case in content.pop("cases"))
    OUT.write_text(json.dumps(content)[:-1] + ', "cases": [\n' + lines + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
