// The part of Markdown that models use, made into elements. Links go to http and https alone.

import { coloured } from "./code.js";
import { copier, make } from "./dom.js";

const SPANS = /(`+)([^`]|[^`][^]*?[^`])\1(?!`)|\*\*(?=\S)([^]+?)\*\*|\*(?=[^\s*])([^*]+?)\*|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/;

function spans(text) {
  const made = [];
  for (;;) {
    const found = SPANS.exec(text);
    if (!found) return [...made, text];
    made.push(text.slice(0, found.index));
    const [whole, , code, strong, em, label, href] = found;
    if (code !== undefined) made.push(make("code", {}, code));
    else if (strong !== undefined) made.push(make("strong", {}, ...spans(strong)));
    else if (em !== undefined) made.push(make("em", {}, ...spans(em)));
    else made.push(make("a", { href, rel: "noopener noreferrer", target: "_blank" }, label));
    text = text.slice(found.index + whole.length);
  }
}

function lined(lines) {
  return lines.flatMap((line, i) => (i ? [make("br"), ...spans(line)] : spans(line)));
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
const BULLET = /^\s*[-*+]\s+/, NUMBER = /^\s*\d{1,9}[.)]\s+/;
const STARTS = /^(\s*```|#{1,6}\s|\s*[-*+]\s+|\s*\d{1,9}[.)]\s+|>\s?)/;

// Each takes lines off the front and gives an element, or nothing where it is not its turn.
const BLOCKS = [
  function fence(lines) {
    const found = /^\s*```\s*([\w+#.-]*)/.exec(lines[0]);
    if (!found) return null;
    lines.shift();
    const code = [];
    while (lines.length && !/^\s*```\s*$/.test(lines[0])) code.push(lines.shift());
    lines.shift();
    const text = code.join("\n");
    return make("div", { className: "code" },
      make("div", { className: "bar" }, make("span", {}, found[1]), copier(text)),
      make("pre", { tabIndex: 0 }, make("code", {}, ...coloured(text, found[1]))));
  },
  function heading(lines) {
    const found = /^(#{1,6})\s+(.*)$/.exec(lines[0]);
    if (!found) return null;
    lines.shift();
    return make(`h${Math.min(found[1].length + 2, 5)}`, {}, ...spans(found[2]));
  },
  function list(lines) {
    const mark = [BULLET, NUMBER].find((each) => each.test(lines[0]));
    if (!mark) return null;
    const made = make(mark === BULLET ? "ul" : "ol");
    if (mark === NUMBER) made.start = Number.parseInt(lines[0], 10);
    while (lines.length && mark.test(lines[0])) {
      const item = [lines.shift().replace(mark, "")];
      while (lines.length && /^\s+\S/.test(lines[0]) && !STARTS.test(lines[0])) item.push(lines.shift().trim());
      made.append(make("li", {}, ...lined(item)));
    }
    return made;
  },
  function quote(lines) {
    if (!/^>\s?/.test(lines[0])) return null;
    const inside = [];
    while (lines.length && /^>\s?/.test(lines[0])) inside.push(lines.shift().replace(/^>\s?/, ""));
    return make("blockquote", {}, ...lined(inside));
  },
  function table(lines) {
    if (!lines[0].includes("|") || !/^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[1] ?? "")) return null;
    const row = (line, tag) => make("tr", {}, ...cells(line).map((cell) => make(tag, {}, ...spans(cell))));
    const head = make("thead", {}, row(lines.shift(), "th"));
    lines.shift();
    const body = make("tbody");
    while (lines.length && lines[0].includes("|")) body.append(row(lines.shift(), "td"));
    return make("table", {}, head, body);
  },
  function paragraph(lines) {
    const text = [lines.shift()];
    while (lines.length && lines[0].trim() && !STARTS.test(lines[0])) text.push(lines.shift());
    return make("p", {}, ...lined(text));
  },
];

export function markdown(text) {
  const lines = text.split("\n");
  const made = [];
  while (lines.length) {
    if (!lines[0].trim()) { lines.shift(); continue; }
    for (const block of BLOCKS) {
      const element = block(lines);
      if (element) { made.push(element); break; }
    }
  }
  return made;
}
