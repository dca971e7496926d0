// How answers are made: what is left empty is the model's own.

import { byId, make } from "./dom.js";
import { keep, kept } from "./kept.js";

const OPTIONS = [
  ["temperature", "0.8", 0, 100], ["top_k", "40", 0], ["top_p", "0.9", 0, 1],
  ["min_p", "0", 0, 1], ["repeat_penalty", "1", 0.01, 100], ["presence_penalty", "0", -100, 100],
  ["frequency_penalty", "0", -100, 100], ["seed", "random", -1], ["num_predict", "no limit", -1],
  ["num_ctx", "the model's", 1],
];
const PLAIN = ["system", "think", "key"];

export function settings() {
  const options = kept("options", {});
  const think = kept("think", "");
  return {
    system: kept("system", ""),
    probabilities: kept("probabilities", false),
    ...(think && { think: think === "true" }),
    options: Object.fromEntries(
      Object.entries(options).map(([name, text]) => [name, name === "stop" ? [text] : Number(text)]),
    ),
  };
}

function field(name, hint, least, most) {
  const number = least !== undefined;
  const input = make("input", {
    id: `option-${name}`, type: number ? "number" : "text", placeholder: hint, step: "any",
    value: kept("options", {})[name] ?? "",
  });
  if (number) input.min = least;
  if (most !== undefined) input.max = most;
  input.addEventListener("input", () => {
    const found = kept("options", {});
    delete found[name];
    if (input.value && input.checkValidity()) found[name] = input.value;
    keep("options", found);
  });
  return make("div", {}, make("label", { htmlFor: input.id }, name), input);
}

export function showSettings(changed) {
  byId("options").replaceChildren(...OPTIONS.map((each) => field(...each)), field("stop", "no text"));
  for (const name of PLAIN) {
    const input = byId(name);
    input.value = kept(name, "");
    input.oninput = () => { keep(name, input.value); };
  }
  byId("key").onchange = changed;
  const probabilities = byId("probabilities");
  probabilities.checked = kept("probabilities", false);
  probabilities.onchange = () => keep("probabilities", probabilities.checked);
  byId("defaults").onclick = () => {
    for (const name of ["options", "system", "think", "probabilities"]) keep(name, undefined);
    for (const name of ["options", "system", "think", "probabilities"]) localStorage.removeItem(`wgpu-backend.${name}`);
    showSettings(changed);
  };
}
