// The panel beside the conversation, its tabs, and light or dark.

import { byId } from "./dom.js";
import { keep, kept } from "./kept.js";

const NAMES = ["history", "models", "settings", "tokens", "attention", "graph", "machine"];
const narrow = matchMedia("(max-width: 60rem)");

export function openPanel(open) {
  document.body.classList.toggle("alone", !open);
  byId("toggle").setAttribute("aria-expanded", String(open));
}

export function openTab(name, focus = false) {
  for (const each of NAMES) {
    const tab = byId(`tab-${each}`);
    tab.setAttribute("aria-selected", String(each === name));
    tab.tabIndex = each === name ? 0 : -1;
    byId(each).hidden = each !== name;
    if (focus && each === name) tab.focus();
  }
  document.dispatchEvent(new CustomEvent("tab", { detail: name }));
}

function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export function bindPanel() {
  const theme = kept("theme", "");
  if (theme) document.documentElement.dataset.theme = theme;
  byId("theme").onclick = () => {
    const next = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    keep("theme", next);
  };
  NAMES.forEach((name, i) => {
    const tab = byId(`tab-${name}`);
    tab.onclick = () => openTab(name);
    tab.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) openTab(NAMES[(i + step + NAMES.length) % NAMES.length], true);
    };
  });
  openTab("settings");
  openPanel(!narrow.matches && kept("panel", true));
  byId("toggle").onclick = () => {
    const open = document.body.classList.contains("alone");
    openPanel(open);
    if (!narrow.matches) keep("panel", open);
  };
}
