// Reads a list of WGSL texts as JSON from stdin, and writes what naga's back ends say of each: a list of
// lists of errors. The first argument is the folder with naga, the others are names of back ends.
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, ...backends] = process.argv.slice(2);
const glue = await import(pathToFileURL(resolve(folder, "wgsl_wasm_transpiler_bg.js")));
const bytes = readFileSync(join(folder, "wgsl_wasm_transpiler_bg.wasm"));
const imports = { "./wgsl_wasm_transpiler_bg.js": glue };
const { instance } = await WebAssembly.instantiate(bytes, imports);
glue.__wbg_set_wasm(instance.exports);
instance.exports.__wbindgen_start();

function errors(code) {
  const found = [];
  for (const backend of backends) {
    try {
      glue.compileShader(code, backend);
    } catch (error) {
      found.push(`${backend}: ${error}`);
    }
  }
  return found;
}

console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(errors)));
