// The steps of a pass, before and after fusion, and where their results lie.

import { byId, bytes, facts, make, wrong } from "./dom.js";
import { post } from "./server.js";

const shape = (step) => `${step.shape.join("×")} ${step.dtype}`;

function counts(pass) {
  const tally = (steps) => steps.reduce((all, each) => all.set(each.op, (all.get(each.op) ?? 0) + 1), new Map());
  const [before, after] = [tally(pass.before.steps), tally(pass.after.steps)];
  const ops = [...new Set([...after.keys(), ...before.keys()])];
  const body = make("tbody");
  for (const op of ops.sort((a, b) => (after.get(b) ?? 0) - (after.get(a) ?? 0))) {
    body.append(make("tr", {}, make("td", {}, make("code", {}, op)),
      make("td", { className: "number" }, String(before.get(op) ?? "")),
      make("td", { className: "number" }, String(after.get(op) ?? ""))));
  }
  return make("table", { className: "steps" }, make("thead", {}, make("tr", {},
    ...["Op", "Before fusion", "After"].map((name) => make("th", { scope: "col" }, name)))), body);
}

function listed(steps) {
  const body = make("tbody");
  steps.forEach((step, i) => {
    const of = step.made_of.length > 1 ? make("div", { className: "quiet" }, step.made_of.join(" + ")) : null;
    const reads = step.operands.map((operand) => `${operand.name} = ${operand.what}`).join(", ");
    body.append(make("tr", {},
      make("td", { className: "number" }, `%${i}`),
      make("td", {}, make("code", { title: step.shader }, step.op), of,
        make("div", { className: "quiet" }, reads)),
      make("td", { className: "number" }, shape(step), make("div", { className: "quiet" },
        step.nbytes ? bytes(step.nbytes) : `into ${step.place}`))));
  });
  return make("table", { className: "steps listed" }, make("thead", {}, make("tr", {},
    ...["", "Step and what it reads", "Result"].map((name) => make("th", { scope: "col" }, name)))), body);
}

function drawn(pass) {
  const find = make("input", { type: "search", placeholder: "Only steps with …" });
  find.setAttribute("aria-label", "Only steps with");
  const holder = make("div", {}, listed(pass.after.steps));
  find.oninput = () => {
    const rows = holder.querySelectorAll("tbody tr");
    for (const row of rows) row.hidden = !row.textContent.includes(find.value);
  };
  return [
    facts([["Dispatches", pass.dispatches || "none, on NumPy"],
      ["Steps before and after fusion", `${pass.before.steps.length} → ${pass.after.steps.length}`],
      ["Slots of memory", `${pass.after.slot_nbytes.length}, ${bytes(pass.after.peak_nbytes)}`],
      ["Alive at once", bytes(pass.after.live_nbytes)]]),
    make("details", {}, make("summary", {}, "By op"), counts(pass)),
    make("h3", {}, "Steps"), find, holder,
  ];
}

export function bindGraph(model) {
  const holder = byId("steps");
  byId("graph-show").onclick = async () => {
    const button = byId("graph-show");
    button.disabled = true;
    try {
      const { passes } = await post("/inspect/graph", { model: model(), tokens: Number(byId("graph-tokens").value) });
      const which = make("select", {}, ...passes.map((pass, i) => make("option", { value: i }, pass.name)));
      which.setAttribute("aria-label", "Pass");
      const body = make("div");
      which.onchange = () => body.replaceChildren(...drawn(passes[which.value]));
      holder.replaceChildren(make("div", { className: "row" }, which), body);
      which.onchange();
    } catch (error) {
      holder.replaceChildren(wrong(error));
    } finally {
      button.disabled = false;
    }
  };
}
