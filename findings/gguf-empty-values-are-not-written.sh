#!/bin/sh
# gguf-py: a key with an empty string or an empty array is left out of the file
#
# Version: gguf 0.19.0. The format has strings and arrays of length 0. GGUFWriter drops both without a
# word, so that "this model has an empty chat template" and "this model has none" become the same file,
# and a reader that requires an array (merges of a vocabulary without any) does not find it.
. "$(dirname "$0")/common.sh"
install gguf==0.19.0 numpy==2.4.6
expect "written: general.architecture, a.text, a.list, a.empty_text, a.empty_list
read: general.architecture, a.text, a.list" <<'END'
import tempfile

import gguf

with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
    writer = gguf.GGUFWriter(file.name, "llama")
    writer.add_string("a.text", "x")
    writer.add_array("a.list", [1])
    writer.add_string("a.empty_text", "")
    writer.add_array("a.empty_list", [])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    keys = [key for key in gguf.GGUFReader(file.name).fields if not key.startswith("GGUF.")]
print("written: general.architecture, a.text, a.list, a.empty_text, a.empty_list")
print("read:", ", ".join(keys))
END
