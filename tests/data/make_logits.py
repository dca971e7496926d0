"""Records what llama.cpp makes of the models in `tests.models.cases`, under ``tests/data/logits``.

Run it from the root of the repository, in an environment with llama.cpp besides numpy and gguf::

    python -m venv oracle
    CMAKE_ARGS=-DLLAMA_BUILD=OFF oracle/bin/pip install llama-cpp-python==0.3.36 \
        xllamacpp==2026.10.11549 gguf
    oracle/bin/python -m tests.data.make_logits

The first package has the bindings and the second the library, both without a compiler. What is
recorded is exact: every tensor dequantised to f32, an f32 cache, no flash attention. llama.cpp's
own path for quantised weights quantises the activations too, which costs about 3e-4.
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import gguf
import numpy as np

from tests.builders import dequantised
from tests.models.cases import FILES, RECORDED, Case
from tests.models.recurrent_cases import RecurrentCase, recurrent

LIBRARIES = ("libllama.so", "libggml.so", "libggml-base.so", "libggml-cpu.so")


def bindings(folder: Path) -> ModuleType:
    """Import llama_cpp over the one library that xllamacpp is, through links put into `folder`."""
    import xllamacpp

    library = Path(xllamacpp.__file__).with_name("xllamacpp.abi3.so")
    for name in LIBRARIES:
        (folder / name).symlink_to(library)
    os.environ["LLAMA_CPP_LIB_PATH"] = str(folder)
    package = importlib.util.find_spec("llama_cpp")
    assert package is not None
    assert package.submodule_search_locations is not None
    source = Path(package.submodule_search_locations[0]) / "_ctypes_extensions.py"
    spec = importlib.util.spec_from_file_location("llama_cpp._ctypes_extensions", source)
    assert spec is not None
    assert spec.loader is not None
    extensions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extensions)
    strict = extensions.ctypes_function_for_shared_library

    def lenient(library):
        """Leave out what the library does not export."""
        declare = strict(library)

        def declared(name, arguments, result, enabled=True):
            return declare(name, arguments, result, enabled and hasattr(library, name))

        return declared

    extensions.ctypes_function_for_shared_library = lenient
    sys.modules["llama_cpp._ctypes_extensions"] = extensions
    import llama_cpp

    return llama_cpp


def twin(source: Path, path: Path) -> Path:
    """Write the same model with every tensor as f32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, inner[0] if inner else None)
    for name, values in dequantised(source).items():
        writer.add_tensor(name, np.ascontiguousarray(values, "f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(llama: ModuleType, path: Path, tokens: list[int]) -> np.ndarray:
    """Scores after every token: (tokens, vocabulary), float32."""
    parameters = llama.llama_model_default_params()
    parameters.use_extra_bufts = False
    model = llama.llama_model_load_from_file(os.fsencode(path), parameters)
    options = llama.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = options.n_outputs_max = 1024
    if hasattr(options, "n_outputs_max_per_seq"):
        options.n_outputs_max_per_seq = 1024
    options.flash_attn_type = 0
    options.type_k = options.type_v = 0
    context = llama.llama_init_from_model(model, options)
    batch = llama.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    if status := llama.llama_decode(context, batch):
        raise SystemExit(f"{path}: llama_decode gave {status}")
    count = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    scores = np.ctypeslib.as_array(llama.llama_get_logits(context), (len(tokens), count)).copy()
    llama.llama_batch_free(batch)
    llama.llama_free(context)
    llama.llama_model_free(model)
    return scores


def record(llama: ModuleType, case: Case | RecurrentCase, folder: Path) -> np.ndarray:
    """Rows of the case's run that are kept."""
    model = twin(case.write(folder / "model.gguf"), folder / "twin.gguf")
    return logits(llama, model, case.tokens)[list(case.rows)]


def main() -> None:
    RECORDED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        llama = bindings(folder)
        quiet = llama.llama_log_callback(lambda level, text, data: None)
        llama.llama_log_set(quiet, None)
        llama.llama_backend_init()
        for file, cases in {**FILES, "recurrent": recurrent}.items():
            rows = {name: record(llama, case, folder) for name, case in cases().items()}
            np.savez_compressed(RECORDED / f"{file}.npz", **rows)


if __name__ == "__main__":
    main()
