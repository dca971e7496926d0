// Models of the server: bring one, and delete one.

import { byId, bytes, make, wrong } from "./dom.js";
import { get, lines, remove } from "./server.js";

let pulling = null;

function row(each, changed) {
  const gone = async () => {
    if (!confirm(`Delete ${each.name} from the server?`)) return;
    try {
      await remove("/api/delete", { model: each.name });
      await changed();
    } catch (error) {
      byId("models-failure").replaceChildren(wrong(error));
      return;
    }
    await showLibrary(changed);
  };
  const button = make("button", { type: "button", className: "plain", onclick: gone, "aria-label": `Delete ${each.name}` }, "Delete");
  const own = each.size && !each.capabilities?.includes("image"); // pictures come with the command line
  const { parameter_size: parameters, quantization_level: type } = each.details ?? {};
  return make("tr", {},
    make("th", { scope: "row" }, each.name), make("td", {}, [parameters, type].filter(Boolean).join(", ")),
    make("td", { className: "number" }, each.size ? bytes(each.size) : ""),
    make("td", { className: "number" }, own ? button : ""));
}

export async function showLibrary(changed) {
  const place = byId("models-list");
  try {
    const { models } = await get("/api/tags");
    place.replaceChildren(make("table", { className: "steps" }, make("tbody", {}, ...models.map((each) => row(each, changed)))));
  } catch (error) {
    place.replaceChildren(wrong(error));
  }
}

export function bindLibrary(changed) {
  byId("pull").onsubmit = async (event) => {
    event.preventDefault();
    if (pulling) { pulling.abort(); return; }
    const model = byId("pull-name").value.trim();
    if (!model) return;
    const [told, bar, button] = [byId("pull-status"), byId("pull-bar"), byId("pull-go")];
    pulling = new AbortController();
    button.textContent = "Stop";
    byId("models-failure").replaceChildren();
    try {
      for await (const { status, total, completed } of lines("/api/pull", { model }, pulling.signal)) {
        told.textContent = total ? `${status}: ${bytes(completed ?? 0)} of ${bytes(total)}` : status;
        bar.hidden = !total;
        if (total) { bar.max = total; bar.value = completed ?? 0; }
      }
      byId("pull-name").value = "";
    } catch (error) {
      told.textContent = "";
      if (error.name !== "AbortError") byId("models-failure").replaceChildren(wrong(error));
    }
    pulling = null;
    bar.hidden = true;
    button.textContent = "Pull";
    await changed();
    await showLibrary(changed);
  };
}
