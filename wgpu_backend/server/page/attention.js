// How much each token of a text takes of those before it, as a map and over the text.

import { byId, make, wrong } from "./dom.js";
import { post } from "./server.js";
import { spelled } from "./tokens.js";

let found = null;

// Of one head, or the mean of all: (tokens, tokens).
function chosen() {
  const { weights } = found;
  const head = byId("head").value;
  if (head !== "") return weights[Number(head)];
  return weights[0].map((row, i) =>
    row.map((_, j) => weights.reduce((sum, each) => sum + each[i][j], 0) / weights.length));
}

function painted(weights) {
  const count = weights.length;
  const canvas = make("canvas", { width: count, height: count, role: "img" });
  canvas.setAttribute("aria-label", `Weights of ${count} tokens; rows attend to columns`);
  const context = canvas.getContext("2d");
  const dark = getComputedStyle(document.body).color.match(/\d+/)[0] > 128;
  context.fillStyle = dark ? "#0f1113" : "#ffffff";
  context.fillRect(0, 0, count, count);
  const ink = dark ? "140, 176, 255" : "36, 87, 197";
  weights.forEach((row, y) => row.forEach((weight, x) => {
    context.fillStyle = `rgba(${ink}, ${Math.sqrt(Math.max(weight, 0))})`; // small ones are seen, too
    context.fillRect(x, y, 1, 1);
  }));
  return canvas;
}

function overText(weights) {
  const buttons = found.tokens.map((token, i) => make("button", {
    type: "button", textContent: token || "∅", "aria-pressed": "false",
    onmouseenter: () => show(i), onfocus: () => show(i),
  }));
  const told = make("p", { className: "quiet", "aria-live": "polite" });
  function show(from) {
    buttons.forEach((button, i) => {
      const weight = weights[from][i] ?? 0;
      button.style.setProperty("--share", `${Math.round(100 * Math.sqrt(Math.max(weight, 0)))}%`);
      button.setAttribute("aria-pressed", String(i === from));
      button.title = `${spelled(found.tokens[i])}: ${(100 * weight).toFixed(1)} %`;
    });
    const best = weights[from].map((weight, i) => [weight, i]).sort((a, b) => b[0] - a[0]).slice(0, 3);
    told.textContent = `“${spelled(found.tokens[from])}” attends to ` +
      best.map(([weight, i]) => `“${spelled(found.tokens[i])}” ${(100 * weight).toFixed(1)} %`).join(", ");
  }
  show(buttons.length - 1);
  return [make("div", { className: "tinted" }, ...buttons), told];
}

function draw() {
  if (!found) return;
  const weights = chosen();
  byId("weights").replaceChildren(...overText(weights), painted(weights),
    make("p", { className: "quiet" }, "Each row is a token, each column one that it looks at; the darker or brighter, the more."));
}

export function bindAttention(model) {
  byId("head").onchange = draw;
  byId("attend").onclick = async () => {
    const button = byId("attend");
    button.disabled = true;
    try {
      const layer = Number(byId("layer").value);
      found = await post("/inspect/attention", { model: model(), prompt: byId("text").value, layer });
      byId("layer").max = found.layers - 1;
      const head = byId("head");
      const before = head.value;
      head.replaceChildren(make("option", { value: "" }, "mean"),
        ...found.weights.map((_, i) => make("option", { value: i }, String(i))));
      head.value = Number(before) < found.weights.length ? before : "";
      draw();
    } catch (error) {
      found = null;
      byId("weights").replaceChildren(wrong(error));
    } finally {
      button.disabled = false;
    }
  };
}
