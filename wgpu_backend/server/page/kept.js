// What stays in this browser between visits: the conversation and the settings.

const PREFIX = "wgpu-backend.";

export function kept(name, otherwise) {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise; // damaged, or a browser that keeps nothing
  }
}

export function keep(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // Full, or not allowed: the page works without.
  }
}
