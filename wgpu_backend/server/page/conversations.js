// Conversations that this browser keeps, newest first, and the one that is open.

import { drop, keep, kept } from "./kept.js";

const MOST = 100;
const TITLE = 60;

export const listed = () => kept("conversations", []);

let open = kept("conversation", null);

export function read() {
  const earlier = kept("messages", null); // pages before this one kept a single conversation
  if (earlier !== null) {
    drop("messages");
    write(earlier);
  }
  return open === null ? [] : kept(`conversation.${open}`, []);
}

export function write(messages) {
  const others = listed().filter(({ id }) => id !== open);
  if (!messages.length) {
    remove(open);
    return;
  }
  open ??= crypto.randomUUID?.() ?? String(Date.now());
  keep("conversation", open);
  const title = messages[0].content.trim().replace(/\s+/g, " ").slice(0, TITLE) || "Untitled";
  const all = [{ id: open, title, when: Date.now() }, ...others];
  for (const { id } of all.splice(MOST)) drop(`conversation.${id}`);
  // Where the browser's store is full, the oldest conversations make room.
  while (!keep(`conversation.${open}`, messages) && all.length > 1) drop(`conversation.${all.pop().id}`);
  keep("conversations", all);
}

export const current = () => open;

export function choose(id) {
  open = id;
  keep("conversation", id);
}

export function remove(id) {
  drop(`conversation.${id}`);
  keep("conversations", listed().filter((each) => each.id !== id));
  if (id === open) choose(null);
}
