// Colours for code: comments, strings, numbers and keywords, which most languages share.

import { make } from "./dom.js";

const WORDS = new Set((
  "abstract and as async await bool boolean break byte case catch char class const continue debugger def default del " +
  "delete do double elif else end enum except export extends extern false False final finally float fn for foreach from " +
  "func function global go goto if impl implements import in include inline instanceof int interface is lambda let long " +
  "loop match mod module mut namespace new nil None nonlocal not null of operator or override package pass private " +
  "protected public pub raise ref return select self short signed sizeof static string struct super switch this throw " +
  "throws trait true True try type typedef typeof undefined union unsafe unsigned use using var void volatile where while " +
  "with yield"
).split(" "));
const HASHES = /^(py|python|sh|bash|shell|zsh|ruby|rb|yaml|yml|toml|r|perl|make|makefile|dockerfile|console)$/i;
const DASHES = /^(sql|lua|haskell|hs|ada)$/i;
const PARTS = String.raw`("""[^]*?(?:"""|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'|` + "`(?:\\\\.|[^`\\\\])*`?" +
  String.raw`)|(\b\d[\w.]*)|([A-Za-z_]\w*)`;

function comment(language) {
  if (HASHES.test(language)) return String.raw`#[^\n]*`;
  if (DASHES.test(language)) return String.raw`--[^\n]*`;
  return String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)|<!--[^]*?(?:-->|$)`;
}

export function coloured(text, language) {
  const found = new RegExp(`(${comment(language)})|${PARTS}`, "g");
  const made = [];
  let end = 0;
  for (const each of text.matchAll(found)) {
    const [whole, note, string, number, word] = each;
    const kind = note ? "note" : string ? "string" : number ? "number" : WORDS.has(word) ? "word" : "";
    if (!kind) continue;
    made.push(text.slice(end, each.index), make("span", { className: `code-${kind}` }, whole));
    end = each.index + whole.length;
  }
  return [...made, text.slice(end)];
}
