// What stays in this browser between visits: conversations and settings.

const PREFIX = "wgpu-backend.";

export function kept(name, otherwise) {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise; // damaged, or a browser that keeps nothing
  }
}

// Returns whether there was room.
export function keep(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false; // full, or not allowed: the page works without
  }
}

export function drop(name) {
  try {
    localStorage.removeItem(PREFIX + name);
  } catch {
    // Not allowed: nothing was kept.
  }
}
