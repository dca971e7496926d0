// Tokens of an answer, tinted the more the less likely they were, with what else might have come.

import { byId, make } from "./dom.js";

const percent = (logprob) => {
  const share = 100 * Math.exp(logprob);
  return share >= 0.05 || share === 0 ? `${share.toFixed(1)} %` : "< 0.1 %";
};

export const spelled = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ /, "␣") || "∅";

function alternatives(each) {
  const known = each.top_logprobs.some((other) => other.token === each.token);
  const rows = known ? each.top_logprobs : [...each.top_logprobs, each];
  const bars = make("div", { className: "bars" });
  for (const other of rows) {
    const share = Math.exp(other.logprob);
    const chosen = other.token === each.token ? "chosen" : "";
    bars.append(
      make("div", { className: chosen }, make("code", {}, spelled(other.token))),
      make("meter", { value: share, max: 1, title: percent(other.logprob) }),
      make("span", {}, percent(other.logprob)),
    );
  }
  return bars;
}

export function showTokens(answer) {
  const panel = byId("tokens");
  const tokens = answer?.tokens ?? [];
  if (!tokens.length) {
    panel.replaceChildren(make("p", { className: "quiet" },
      "Nothing to show yet: switch on “Token probabilities” in the settings, and ask something."));
    return;
  }
  const text = make("div", { className: "tinted", role: "group", "aria-label": "Tokens of the answer" });
  const detail = make("div", { "aria-live": "polite" });
  let held = null;
  const show = (button, each) => {
    held?.setAttribute("aria-pressed", "false");
    held = button;
    button.setAttribute("aria-pressed", "true");
    detail.replaceChildren(make("h3", {}, `In place of “${spelled(each.token)}”`), alternatives(each));
  };
  for (const each of tokens) {
    const button = make("button", {
      type: "button", textContent: each.token, "aria-pressed": "false",
      title: `${spelled(each.token)}: ${percent(each.logprob)}`,
    });
    button.style.setProperty("--share", `${Math.round(85 * (1 - Math.exp(each.logprob)))}%`);
    button.onmouseenter = button.onfocus = () => show(button, each);
    text.append(button);
  }
  const surprise = -tokens.reduce((sum, each) => sum + each.logprob, 0) / tokens.length;
  panel.replaceChildren(
    make("p", { className: "scale" }, "certain", make("i"), "unlikely"),
    text,
    make("p", { className: "quiet" },
      `${tokens.length} tokens, perplexity ${Math.exp(surprise).toFixed(2)}. Point at a token, or go there with Tab.`),
    detail,
  );
  show(text.firstChild, tokens[0]);
}
