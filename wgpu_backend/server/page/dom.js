// Elements made in one line. Text goes in as text, so nothing that a model says becomes markup.

export const byId = (id) => document.getElementById(id);

export function make(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria-") || name === "role" || name === "scope") {
      element.setAttribute(name, value);
    } else element[name] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${unit ? count.toFixed(1) : count} ${units[unit]}`;
}

export const wrong = (error) => make("p", { className: "wrong", role: "alert" }, error.message);

// Rows of names and values.
export function facts(rows) {
  const body = make("tbody");
  for (const [name, value] of rows) {
    if (value === "" || value === null || value === undefined) continue;
    body.append(make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, String(value))));
  }
  return make("table", { className: "facts" }, body);
}

// A button that copies a text.
export function copier(text) {
  const copy = async ({ target }) => {
    target.textContent = await copied(text) ? "Copied" : "Not copied";
    setTimeout(() => { target.textContent = "Copy"; }, 1500);
  };
  return make("button", { type: "button", className: "plain", onclick: copy }, "Copy");
}

// Pages of https and of this machine have a clipboard; of others, browsers copy what is selected.
async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = make("textarea", { value: text });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}
