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
  const [{ content, pictures = [] }] = messages;
  const title = content.trim().replace(/\s+/g, " ").slice(0, TITLE) || pictures[0]?.name || "Untitled";
  const all = [{ id: open, title, when: Date.now() }, ...others];
  for (const { id } of all.splice(MOST)) drop(`conversation.${id}`);
  store(messages, all);
  keep("conversations", all);
}

// Where the browser's store is full, older pictures make room first, then the oldest conversations.
function store(messages, all) {
  const name = `conversation.${open}`;
  const isKept = () => keep(name, messages);
  if (isKept()) return;
  for (const { id } of all.slice(1).reverse()) {
    const older = kept(`conversation.${id}`, []);
    if (!older.some(hasPictures)) continue;
    keep(`conversation.${id}`, older.map(withoutPictures));
    if (isKept()) return;
  }
  for (let i = 0; i < messages.length; i += 1) {
    if (!hasPictures(messages[i])) continue;
    messages = messages.with(i, withoutPictures(messages[i]));
    if (isKept()) return;
  }
  while (all.length > 1) {
    drop(`conversation.${all.pop().id}`);
    if (isKept()) return;
  }
}

const hasPictures = ({ pictures = [] }) => pictures.some(({ url }) => url);

function withoutPictures(message) {
  return hasPictures(message) ? { ...message, pictures: message.pictures.map(({ name }) => ({ name })) } : message;
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
