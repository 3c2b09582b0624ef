"""Encodes documents with Hugging Face's tokenizers, in its best way: encode_batch over all cores. Documents are the lines of a JSONL
file. Prints the seconds of the encoding alone, and writes the ids with --out."""
import argparse
import json
import time
from pathlib import Path

import numpy
import tokenizers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("documents", type=Path)
parser.add_argument("--tokenizer", required=True)
parser.add_argument("--out", type=Path)
parser.add_argument("--batch", type=int, default=1000)
size = parser.parse_args()
tokenizer = tokenizers.Tokenizer.from_file(size.tokenizer)
with size.documents.open(encoding="utf-8") as lines:
    documents = [json.loads(line)["text"] for line in lines]
seconds, ids = 0.0, []
for first in range(0, len(documents), size.batch):
    begin = time.perf_counter()
    encoded = tokenizer.encode_batch(documents[first:first + size.batch], add_special_tokens=False)
    seconds += time.perf_counter() - begin
    if size.out:
        ids += [numpy.array(one.ids, dtype=numpy.uint32) for one in encoded]
    del encoded
if size.out:
    numpy.concatenate(ids).tofile(size.out)
print(json.dumps({"seconds": seconds, "documents": len(documents)}))
