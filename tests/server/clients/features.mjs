// What each script here does: try features one by one, and print a line for each.
import { readFileSync } from "node:fs";

export const [url, pullName, pictures] = process.argv.slice(2);

// A picture with a square, red or blue, in base64.
export const encodedPicture = (colour) => readFileSync(`${pictures}/${colour}.png`).toString("base64");

export async function tryAll(features) {
  for (const [name, feature] of Object.entries(features)) {
    try {
      await feature();
      console.log(`${name}: ok`);
    } catch (error) {
      console.log(`${name}: ${String(error.stack ?? error).split("\n").slice(0, 2).join(" ")}`);
    }
  }
}

export function equal(found, wanted) {
  const [a, b] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (a !== b) throw new Error(`${a} is not ${b}`);
}

export async function refused(call, status) {
  try {
    await call();
  } catch (error) {
    equal(error.status ?? error.status_code, status);
    return;
  }
  throw new Error("no error");
}

export async function idle() {
  for (let i = 0; i < 100; i++) {
    const slots = await (await fetch(`${url}/slots`)).json();
    if (!slots.some((slot) => slot.is_processing)) return;
    await new Promise((done) => setTimeout(done, 50));
  }
  throw new Error("something is made still");
}

export async function width() {
  const body = JSON.stringify({ model: "tale" });
  const facts = (await (await fetch(`${url}/api/show`, { method: "POST", body })).json()).model_info;
  return facts[`${facts["general.architecture"]}.embedding_length`];
}
