#!/bin/sh
# gguf-py: GGUFReader gives an array of arrays as one flat list
#
# Version: gguf 0.19.0. GGUF arrays may nest, and GGUFWriter writes them. `contents()` of the reader
# returns the numbers of all inner arrays in one list, so [[1, 2], [3]], [[1], [2, 3]] and [1, 2, 3]
# read the same; only `types`, with ARRAY twice, tells that there was another level.
. "$(dirname "$0")/common.sh"
install gguf==0.19.0 numpy==2.4.6
expect '[[1, 2], [3]] -> [1, 2, 3], ARRAY ARRAY INT32
[[1], [2, 3]] -> [1, 2, 3], ARRAY ARRAY INT32
[1, 2, 3] -> [1, 2, 3], ARRAY INT32' <<'END'
import tempfile

import gguf

for value in ([[1, 2], [3]], [[1], [2, 3]], [1, 2, 3]):
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        writer = gguf.GGUFWriter(file.name, "llama")
        writer.add_array("a.list", value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        field = gguf.GGUFReader(file.name).fields["a.list"]
        print(f"{value} -> {field.contents()}, {' '.join(kind.name for kind in field.types)}")
END
