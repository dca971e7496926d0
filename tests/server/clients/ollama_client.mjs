// Ollama's client for JavaScript.
import { createRequire } from "node:module";
import { encodedPicture, equal, idle, pullName, refused, tryAll, url } from "./features.mjs";

const { Ollama } = createRequire(process.env.NODE_PATH + "/")("ollama");
const client = new Ollama({ host: url });
const options = { temperature: 0, seed: 1, num_predict: 12 };
const messages = [{ role: "user", content: "Hi" }];
const tools = [{ type: "function", function: { name: "weather", description: "tells", parameters: {} } }];

await tryAll({
  async list_() {
    const names = (await client.list()).models.map((model) => model.name);
    equal(["actor:latest", "tale:latest"].every((name) => names.includes(name)), true);
  },
  async pull() {
    let last;
    for await (const part of await client.pull({ model: pullName, insecure: true, stream: true })) last = part;
    equal(last.status, "success");
  },
  async generate() {
    const prompt = "Tell me a story about a fox.";
    const found = await client.generate({ model: "tale", prompt, options });
    equal(found.eval_count, 12);
  },
  async chat() {
    const found = await client.chat({ model: "actor", messages, think: false, options });
    equal(found.message.content, "Hello there now.");
  },
  async stream() {
    let text = "";
    for await (const part of await client.chat({ model: "actor", messages, think: false, options, stream: true }))
      text += part.message.content;
    equal(text, "Hello there now.");
  },
  async tools() {
    const found = await client.chat({ model: "actor", messages, tools, think: false, options });
    equal(found.message.tool_calls[0].function.arguments, { city: "Oslo" });
  },
  async schema() {
    const format = { type: "object", properties: { animal: { enum: ["fox", "bear"] } }, required: ["animal"] };
    format.additionalProperties = false;
    const found = await client.chat({ model: "tale", messages, format, options: { temperature: 0 } });
    equal(["fox", "bear"].includes(JSON.parse(found.message.content).animal), true);
  },
  async thinking() {
    const found = await client.chat({ model: "actor", messages, think: true, options });
    equal(found.message.thinking, "hm");
  },
  async embed() {
    equal((await client.embed({ model: "tale", input: ["a", "b"] })).embeddings.length, 2);
  },
  async pictures() {
    const said = { role: "user", content: "Which colour?" };
    for (const [colour, wanted] of [["red", "Red."], ["blue", "Blue."]]) {
      const image = encodedPicture(colour);
      // In base64, and as bytes, which the client encodes.
      for (const given of [image, new Uint8Array(Buffer.from(image, "base64"))]) {
        const found = await client.chat({ model: "eyes", messages: [{ ...said, images: [given] }], options });
        equal(found.message.content, wanted);
      }
    }
    await refused(() => client.chat({ model: "tale", messages: [{ ...said, images: [encodedPicture("red")] }] }), 400);
  },
  async cancel() {
    const parts = await client.generate({ model: "tale", prompt: "A fox", stream: true });
    for await (const _ of parts) break;
    parts.abort();
    await idle();
  },
  async errors() {
    await refused(() => client.chat({ model: "no", messages }), 404);
  },
});
