# SPDX-License-Identifier: Apache-2.0
"""hooks.py - what schemathesis has to know of attnd: bodies of safetensors and of traces, and that ids in links are those of the answers."""
import json
import struct

import schemathesis
from hypothesis import strategies as st

DTYPES = {"F32": 4, "BF16": 2, "I64": 8, "I32": 4, "U64": 8}
NAMES = ["sequences", "indptr", "positions", "q", "k", "v", "o", "lse", "tokens", "token_ids", "block_tables", "context_lens",
         "slot_mapping", "kv_indptr", "kv_indices", "kv_last_page_len", "sinks", "alibi_slopes"]


@st.composite
def safetensors(draw):
    """Well-formed files of a few small tensors."""
    header, data = {}, b""
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=5)):
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        shape = draw(st.sampled_from([[1], [2], [1, 2, 8], [2, 2, 8], [1, 1, 8], [2, 1, 1, 8], [0]]))
        count = 1
        for n in shape:
            count *= n
        value = draw(st.sampled_from([0, 1, 2]))
        if dtype == "F32":
            raw = struct.pack("<f", value) * count
        elif dtype == "BF16":
            raw = struct.pack("<f", value)[2:] * count
        else:
            raw = value.to_bytes(DTYPES[dtype], "little") * count
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


CSV = st.lists(st.tuples(st.integers(0, 59), st.integers(0, 30), st.integers(0, 5)), max_size=5).map(
    lambda rows: "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"2023-11-16 18:15:{s:02}.5,{p},{d}\n" for s, p, d in rows)
).map(str.encode)
LINES = st.lists(
    st.fixed_dictionaries({"timestamp": st.integers(0, 1000), "input_length": st.integers(0, 30), "output_length": st.integers(0, 5)}), max_size=5
).map(lambda rows: "".join(json.dumps(row) + "\n" for row in rows).encode())

for media_type, strategy in {"application/x-safetensors": safetensors(), "application/octet-stream": safetensors(),
                             "text/csv": CSV, "application/x-ndjson": LINES}.items():
    schemathesis.openapi.media_type(media_type, strategy)


@schemathesis.deserializer("application/x-safetensors")
def read_safetensors(context, response):
    """The header of an answer, which must be one, and fit its data."""
    n = struct.unpack("<Q", response.content[:8])[0]
    header = json.loads(response.content[8:8 + n])
    end = max(t["data_offsets"][1] for name, t in header.items() if name != "__metadata__")
    assert 8 + n + end == len(response.content)
    return header
