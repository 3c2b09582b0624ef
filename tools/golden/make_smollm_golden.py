#!/usr/bin/env python3
"""Writes tests/golden/smollm.json: how SmolLM2-135M-Instruct continues five prompts.

    tools/get_smollm; tools/golden/make_smollm_golden.py [GGUF]

A prompt's ids are those of Hugging Face's tokenizers with the vocabulary of the GGUF file. The tokens are the first 32 that
LlamaForCausalLM of transformers chooses greedily, in fp32, with the weights that Python's gguf converts from the file; its end
tokens do not end them. "margin" is the smallest difference between the two best scores: where it is far above rounding, every
correct program chooses the same tokens.
"""

import hashlib
import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy
import torch
from gguf import GGUFReader, dequantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = pathlib.Path(__file__).parents[2]
GGUF = ROOT / "data" / "smollm" / "SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS = [
    "The capital of France is",
    "Once upon a time, there was a little girl who",
    "def fibonacci(n):\n",
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nName three colors.<|im_end|>\n<|im_start|>assistant\n",
    "In 1969, Übermensch café – 12345 πράγματα 日本:",
]
COUNT = 32


def make_tokenizer(fields):
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    types = fields["tokenizer.ggml.token_type"].contents()
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, types) if kind == control])
    return tokenizer


def make_model(reader):
    fields = reader.fields
    value = lambda key: fields[f"llama.{key}"].contents()
    heads, kv_heads, width = value("attention.head_count"), value("attention.head_count_kv"), value("embedding_length")
    config = LlamaConfig(
        vocab_size=value("vocab_size"), hidden_size=width, intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"), num_attention_heads=heads, num_key_value_heads=kv_heads,
        max_position_embeddings=value("context_length"), rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")})
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    state = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if tensor.name in ("token_embd.weight", "output_norm.weight"):
            name = "model.embed_tokens.weight" if tensor.name.startswith("token") else "model.norm.weight"
        else:
            _, block, part, _ = tensor.name.split(".")
            name = f"model.layers.{block}.{names[part]}.weight"
            if part in ("attn_q", "attn_k"):  # from the order of interleaved rotary pairs
                rows = heads if part == "attn_q" else kv_heads
                weight = weight.reshape(rows, -1, 2, width).swapaxes(1, 2).reshape(weight.shape)
        state[name] = torch.from_numpy(weight.copy())
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model.eval()


def main():
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else GGUF
    reader = GGUFReader(path)
    tokenizer, model = make_tokenizer(reader.fields), make_model(reader)
    golden = {"model": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "prompts": []}
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=COUNT, do_sample=False, pad_token_id=0,
                             eos_token_id=None, return_dict_in_generate=True, output_logits=True)
        best = torch.stack(out.logits).topk(2).values
        tokens = out.sequences[0, ids.shape[1]:].tolist()
        margin = (best[..., 0] - best[..., 1]).min().item()
        golden["prompts"].append({"prompt": prompt, "ids": ids[0].tolist(), "tokens": tokens, "margin": round(margin, 4),
                                  "text": tokenizer.decode(tokens, skip_special_tokens=False)})
        print(f"{margin:.4f} {prompt!r} -> {golden['prompts'][-1]['text']!r}")
    (ROOT / "tests" / "golden" / "smollm.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
