// Anthropic's client for JavaScript.
import { createRequire } from "node:module";
import { encodedPicture, equal, idle, refused, tryAll, url } from "./features.mjs";

const Anthropic = createRequire(process.env.NODE_PATH + "/")("@anthropic-ai/sdk").default;
const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Hi" }];
const asked = { model: "actor", messages, temperature: 0, max_tokens: 50 };
const tools = [{ name: "weather", input_schema: { type: "object" } }];

await tryAll({
  async chat() {
    equal((await client.messages.create(asked)).content[0].text, "Hello there now.");
  },
  async stream() {
    equal(await client.messages.stream(asked).finalText(), "Hello there now.");
  },
  async tools() {
    const found = await client.messages.create({ ...asked, tools });
    equal([found.content[0].input, found.stop_reason], [{ city: "Oslo" }, "tool_use"]);
  },
  async streamed_tools() {
    const found = await client.messages.stream({ ...asked, tools }).finalMessage();
    equal(found.content[0].input, { city: "Oslo" });
  },
  async thinking() {
    const thinking = { type: "enabled", budget_tokens: 1024 };
    const found = await client.messages.create({ ...asked, thinking });
    equal(found.content[0].thinking, "hm");
  },
  async count_tokens() {
    const found = await client.messages.countTokens({ model: "actor", messages });
    equal(found.input_tokens > 0, true);
  },
  async pictures() {
    const source = { type: "base64", media_type: "image/png", data: encodedPicture("red") };
    const content = [{ type: "image", source }, { type: "text", text: "Which colour?" }];
    const looked = { ...asked, model: "eyes", messages: [{ role: "user", content }] };
    equal((await client.messages.create(looked)).content[0].text, "Red.");
    equal(await client.messages.stream(looked).finalText(), "Red.");
    await refused(() => client.messages.create({ ...looked, model: "tale" }), 400);
  },
  async models() {
    const listed = [];
    for await (const model of client.models.list()) listed.push([model.type, model.id]);
    equal(listed.some(([type, id]) => type === "model" && id === "tale:latest"), true);
    equal((await client.models.retrieve("tale")).type, "model");
  },
  async cancel() {
    const events = client.messages.stream({ ...asked, model: "tale", max_tokens: 400 });
    for await (const _ of events) break;
    events.abort();
    await idle();
  },
  async errors() {
    await refused(() => client.messages.create({ ...asked, model: "no" }), 404);
  },
});
