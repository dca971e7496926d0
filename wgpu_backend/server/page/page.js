// The page put together.

import { bindAttention } from "./attention.js";
import { current, listed, remove } from "./conversations.js";
import { byId, make } from "./dom.js";
import { bindGraph } from "./graph.js";
import { keep, kept } from "./kept.js";
import { bindLibrary, showLibrary } from "./library.js";
import { showMachine } from "./machine.js";
import { bindPanel, openPanel, openTab } from "./panel.js";
import { Waiting } from "./pictures.js";
import { get } from "./server.js";
import { showSettings } from "./settings.js";
import { Talk, figures } from "./talk.js";
import { showTokens } from "./tokens.js";

const model = () => byId("model").value;
let running = new Map();
let painters = new Set();
let seers = new Set();

async function showModels() {
  try {
    const [tags, ps] = await Promise.all([get("/api/tags"), get("/api/ps")]);
    running = new Map(ps.models.map((each) => [each.name, each]));
    const picker = byId("model");
    const wanted = picker.value || kept("model", "");
    const able = (what) => new Set(tags.models.filter((each) => each.capabilities?.includes(what)).map(({ name }) => name));
    painters = able("image");
    seers = able("vision");
    const options = tags.models.map(({ name }) =>
      make("option", { value: name }, running.has(name) ? `● ${name} (loaded)` : name));
    picker.replaceChildren(...options);
    if (tags.models.some(({ name }) => name === wanted)) picker.value = wanted;
    if (!options.length) talk.fail(new Error("The server has no models yet: wgpu-backend pull brings one."));
  } catch (error) {
    talk.fail(error);
  }
}

function showContext(end) {
  const size = running.get(model())?.context_length;
  if (!end || !size) return "";
  const used = end.prompt_eval_count + end.eval_count;
  return `context ${used} of ${size} tokens (${Math.round(100 * used / size)} %)`;
}

async function changed(what, watch) {
  const send = byId("send");
  send.textContent = talk.going ? "Stop" : "Send";
  send.classList.toggle("main", !talk.going);
  byId("log").setAttribute("aria-busy", String(talk.going));
  byId("status").textContent = what === "begins" ? "waiting for the first token …" : figures(watch);
  if (what !== "ends") return;
  showTokens(talk.last);
  showHistory();
  await showModels();
  byId("status").textContent = showContext(watch.end);
  if (!byId("machine").hidden) showMachine();
}

const talk = new Talk(changed, (message) => {
  showTokens(message);
  openPanel(true);
  openTab("tokens", true);
}, (name) => painters.has(name));

function refusal() {
  if (seers.has(model())) return "";
  const others = [...seers].slice(0, 3);
  const where = others.length ? `choose one that does: ${others.join(", ")}` : "the server has none that does";
  return `${model() || "The model"} does not read pictures; ${where}.`;
}

const waiting = new Waiting(refusal, (error) => talk.fail(error));
talk.returns = (pictures) => waiting.set(pictures);

function showHistory() {
  const place = byId("history");
  const rows = listed().map(({ id, title, when }) => make("div", { className: "kept" },
    make("button", { type: "button", className: "plain", onclick: () => { talk.open(id); showTokens(talk.last); } }, title),
    make("time", { className: "quiet" }, new Date(when).toLocaleString()),
    make("button", {
      type: "button", className: "plain", "aria-label": `Delete ${title}`,
      onclick: () => { remove(id); talk.open(current()); showHistory(); },
    }, "Delete")));
  place.replaceChildren(...(rows.length ? rows : [make("p", { className: "quiet" }, "No conversations yet.")]));
}

async function send(event) {
  event?.preventDefault();
  if (talk.going) { talk.stop(); return; }
  if (waiting.reading) await waiting.reading;
  const prompt = byId("prompt");
  const text = prompt.value.trim();
  if (!text && !waiting.pictures.length) return;
  if (waiting.pictures.length && !waiting.isAllowed()) return;
  prompt.value = "";
  fit();
  talk.say(text, model(), waiting.take());
}

function fit() {
  const prompt = byId("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

byId("composer").onsubmit = send;
byId("prompt").oninput = fit;
byId("prompt").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
};
byId("new").onclick = () => { talk.open(); showTokens(talk.last); showHistory(); byId("prompt").focus(); };
byId("model").onchange = () => { keep("model", model()); talk.fail(null); };
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") talk.stop();
  if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    byId("prompt").focus();
  }
});
document.addEventListener("tab", ({ detail }) => {
  if (detail === "machine") showMachine();
  if (detail === "history") showHistory();
  if (detail === "models") showLibrary(showModels);
});

bindPanel();
showSettings(() => { talk.fail(null); showModels(); });
bindAttention(model);
bindGraph(model);
bindLibrary(showModels);
showTokens(talk.last);
await showModels();
byId("prompt").focus();
