// What is loaded where, and what it takes.

import { byId, bytes, facts, make, wrong } from "./dom.js";
import { get } from "./server.js";

function described({ name, device, memory, context_length: context, engine, ...rest }) {
  const total = Object.values(memory).reduce((sum, each) => sum + each, 0);
  const rows = [
    ["Device", `${device.name} (${device.id})`], ["Kind", device.kind], ["API", device.api],
    ["Driver", device.driver],
    ["Weights", bytes(memory.weights)], ["Cache", bytes(memory.cache)], ["Graphs", bytes(memory.graphs)],
    ["Together", device.total_memory ? `${bytes(total)} of ${bytes(device.total_memory)}` : bytes(total)],
    ["Context", `${context} tokens`], ["Loaded in", `${rest.load_seconds.toFixed(2)} s`],
    ["Stays", rest.seconds_left === null ? "for ever" : `${Math.round(rest.seconds_left)} s`],
  ];
  const found = [make("h3", {}, name), facts(rows)];
  if (!engine) return found;
  const busy = engine.slots.filter((slot) => slot !== null).length;
  return [...found, facts([
    ["Answering", `${busy} of ${engine.slots.length} places`], ["Waiting", engine.queued],
    ["Kept for reuse", `${engine.kept_tokens} tokens`], ["Passes", engine.steps],
    ["Requests", engine.requests], ["Tokens of prompts", engine.prompt_tokens],
    ["Of these reused", engine.cached_tokens], ["Tokens made", engine.completion_tokens],
  ])];
}

export async function showMachine() {
  const holder = byId("machine");
  try {
    const { version, models } = await get("/inspect/machine");
    const shown = models.flatMap(described);
    if (!shown.length) shown.push(make("p", { className: "quiet" }, "No model is loaded; the first message loads one."));
    holder.replaceChildren(...shown, make("p", { className: "quiet" }, `wgpu-backend ${version}`));
  } catch (error) {
    holder.replaceChildren(wrong(error));
  }
}
