"""Continues a prompt greedily with Hugging Face transformers and its cache, and prints the seconds of the prompt and of the answer.
With --llama-cpp PATH a GGUF file is continued with llama.cpp's Python package instead."""
import argparse
import json
import time
from pathlib import Path


class Clock:
    """A streamer of transformers: the times at which tokens came. The first call has the prompt."""

    def __init__(self):
        self.times = []

    def put(self, ids):
        self.times.append(time.perf_counter())

    def end(self):
        pass


def with_transformers(size, prompt):
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(size.model, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[size.precision])
    model.generation_config.pad_token_id = 0
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(Path(size.model) / "tokenizer.json"))
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    for _ in range(2):  # the first one warms up
        clock, begin = Clock(), time.perf_counter()
        with torch.inference_mode():
            made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=size.tokens, streamer=clock)
    first, last = clock.times[1], clock.times[-1]
    return ids.shape[1], made[0, ids.shape[1]:].tolist(), first - begin, last - first


def with_llama_cpp(size, prompt):
    import llama_cpp
    model = llama_cpp.Llama(size.llama_cpp, n_ctx=2048, n_threads=size.threads, n_threads_batch=size.threads, verbose=False)
    ids = model.tokenize(prompt.encode(), add_bos=False)
    for _ in range(2):
        model.reset()
        begin, times, made = time.perf_counter(), [], []
        for token in model.generate(ids, temp=0.0):
            times.append(time.perf_counter())
            made.append(token)
            if len(made) == size.tokens or token == model.token_eos():
                break
    return len(ids), made, times[0] - begin, times[-1] - times[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a folder of Hugging Face")
    parser.add_argument("--llama-cpp", metavar="GGUF")
    parser.add_argument("--prompts", type=Path, required=True, help="a file; its last line is the prompt")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    size = parser.parse_args()
    prompt = size.prompts.read_text(encoding="utf-8").strip().splitlines()[-1]
    count, ids, prompt_seconds, answer_seconds = (with_llama_cpp if size.llama_cpp else with_transformers)(size, prompt)
    print(json.dumps({"prompt_ids": count, "ids": ids, "prompt_seconds": prompt_seconds, "answer_seconds": answer_seconds}))


if __name__ == "__main__":
    main()
