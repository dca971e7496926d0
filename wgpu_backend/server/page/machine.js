// What is loaded where, and what it takes.

import { byId, bytes, facts, make, wrong } from "./dom.js";
import { get } from "./server.js";

function described({ name, device, memory, context_length: context, engine, ...rest }) {
  const total = Object.values(memory).reduce((sum, each) => sum + each, 0);
  const rows = [
    ["Device", `${device.name} (${device.id})`], ["Kind", device.kind], ["API", device.api],
    ["Driver", device.driver],
    ["Weights", bytes(memory.weights)], ["KV cache", bytes(memory.cache)], ["Graphs", bytes(memory.graphs)],
    ["Total", device.total_memory ? `${bytes(total)} of ${bytes(device.total_memory)}` : bytes(total)],
    ["Context", `${context} tokens`], ["Load time", `${rest.load_seconds.toFixed(2)} s`],
    ["Unloads in", rest.seconds_left === null ? "never" : `${Math.round(rest.seconds_left)} s`],
  ];
  const found = [make("h3", {}, name), facts(rows)];
  if (!engine) return found;
  const busy = engine.slots.filter((slot) => slot !== null).length;
  return [...found, facts([
    ["Slots in use", `${busy} of ${engine.slots.length}`], ["Queued", engine.queued],
    ["Prefix cache", `${engine.kept_tokens} tokens`], ["Forward passes", engine.steps],
    ["Requests", engine.requests], ["Prompt tokens", engine.prompt_tokens],
    ["Cached", engine.cached_tokens], ["Completion tokens", engine.completion_tokens],
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
