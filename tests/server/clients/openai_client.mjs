// OpenAI's client for JavaScript.
import { createRequire } from "node:module";
import { encodedPicture, equal, idle, refused, tryAll, url, width } from "./features.mjs";

const { OpenAI } = createRequire(process.env.NODE_PATH + "/")("openai");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Hi" }];
const asked = { model: "actor", messages, temperature: 0, max_tokens: 50 };
const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];

await tryAll({
  async list_() {
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    equal(names.includes("tale:latest"), true);
  },
  async generate() {
    const found = await client.completions.create({ model: "tale", prompt: "A fox", max_tokens: 5 });
    equal(found.usage.completion_tokens, 5);
  },
  async chat() {
    const found = await client.chat.completions.create(asked);
    equal(found.choices[0].message.content, "Hello there now.");
  },
  async stream() {
    const found = await client.chat.completions.stream(asked).finalChatCompletion();
    equal(found.choices[0].message.content, "Hello there now.");
  },
  async tools() {
    const found = await client.chat.completions.create({ ...asked, tools });
    equal(found.choices[0].message.tool_calls[0].function.arguments, '{"city": "Oslo"}');
  },
  async streamed_tools() {
    const found = await client.chat.completions.stream({ ...asked, tools }).finalChatCompletion();
    equal(found.choices[0].message.tool_calls[0].function.name, "weather");
  },
  async schema() {
    const schema = { type: "object", properties: { animal: { enum: ["fox", "bear"] } }, required: ["animal"] };
    const json_schema = { name: "one", schema: { ...schema, additionalProperties: false }, strict: true };
    const format = { type: "json_schema", json_schema };
    const found = await client.chat.completions.create({ model: "tale", messages, response_format: format });
    equal(["fox", "bear"].includes(JSON.parse(found.choices[0].message.content).animal), true);
  },
  async responses() {
    const found = await client.responses.create({ model: "actor", input: "Hi" });
    equal(found.output_text, "Hello there now.");
  },
  async streamed_responses() {
    const found = await client.responses.stream({ model: "actor", input: "Hi" }).finalResponse();
    equal(found.output_text, "Hello there now.");
  },
  async embed() {
    const found = await client.embeddings.create({ model: "tale", input: "a fox" });
    equal(found.data[0].embedding.length, await width());
  },
  async logprobs() {
    const found = await client.chat.completions.create({ ...asked, logprobs: true, top_logprobs: 2 });
    equal(found.choices[0].logprobs.content[0].top_logprobs.length, 2);
  },
  async pictures() {
    const url = `data:image/png;base64,${encodedPicture("blue")}`;
    const content = [{ type: "image_url", image_url: { url } }, { type: "text", text: "Which colour?" }];
    const found = await client.chat.completions.create({ ...asked, model: "eyes", messages: [{ role: "user", content }] });
    equal(found.choices[0].message.content, "Blue.");
    const parts = [{ type: "input_image", image_url: url }, { type: "input_text", text: "Which colour?" }];
    const response = await client.responses.create({ model: "eyes", input: [{ role: "user", content: parts }], temperature: 0 });
    equal(response.output_text, "Blue.");
    await refused(() => client.chat.completions.create({ ...asked, model: "tale", messages: [{ role: "user", content }] }), 400);
  },
  async cancel() {
    const events = await client.completions.create({ model: "tale", prompt: "A fox", stream: true });
    for await (const _ of events) break;
    await idle();
  },
  async errors() {
    await refused(() => client.chat.completions.create({ ...asked, model: "no" }), 404);
  },
});
