// Requests to the server, whose errors are passed on in its own words.

import { kept } from "./kept.js";

async function failure(response) {
  let told = "";
  try {
    const { error } = await response.json();
    told = typeof error === "string" ? error : error.message;
  } catch {
    told = response.statusText;
  }
  return new Error(`${response.status}: ${told}`);
}

async function ask(path, body, signal, method = body ? "POST" : "GET") {
  const headers = {};
  const key = kept("key", "");
  if (key) headers["X-Api-Key"] = key;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(`The server does not answer (${error.message}).`);
  }
  if (!response.ok) throw await failure(response);
  return response;
}

export const get = async (path) => (await ask(path)).json();
export const remove = (path, body) => ask(path, body, undefined, "DELETE");
export const post = async (path, body, signal) => (await ask(path, body, signal)).json();

// Objects of an answer in lines, as they come.
export async function* lines(path, body, signal) {
  const reader = (await ask(path, body, signal)).body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
    const found = rest.split("\n");
    rest = found.pop();
    for (const line of found) {
      if (!line.trim()) continue;
      const told = JSON.parse(line);
      if (told.error) throw new Error(told.status ? `${told.status}: ${told.error}` : told.error);
      yield told;
    }
    if (done) return;
  }
}
