// Vercel's AI SDK, by its providers for OpenAI and by ollama-ai-provider-v2 for Ollama.
import { join } from "node:path";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { equal, tryAll, url, width } from "./features.mjs";

const { resolve } = createRequire(join(process.env.NODE_PATH, "of.js"));
const load = async (name) => import(pathToFileURL(resolve(name)));
const { embed, generateText, Output, stepCountIs, streamText, tool } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createOllama } = await load("ollama-ai-provider-v2");
const { z } = await load("zod");

globalThis.AI_SDK_LOG_WARNINGS = false;
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const ollama = createOllama({ baseURL: `${url}/api` });
const models = { chat: openai.chat, responses: openai.responses, ollama };
const providerOptions = { ollama: { think: false } };
const execute = async ({ city }) => `${city}: 3`;
const weather = tool({ description: "tells", inputSchema: z.object({ city: z.string() }), execute });
const fixed = { prompt: "Hi", temperature: 0, maxRetries: 0, providerOptions };

async function each(ask) {
  for (const [name, model] of Object.entries(models)) {
    try {
      await ask(model);
    } catch (error) {
      throw new Error(`${name}: ${error.message} ${error.responseBody ?? ""}`);
    }
  }
}

await tryAll({
  chat: () => each(async (model) => {
    const found = await generateText({ model: model("actor"), ...fixed });
    equal([found.text, found.finishReason, found.usage.outputTokens], ["Hello there now.", "stop", 3]);
  }),
  stream: () => each(async (model) => {
    const found = streamText({ model: model("actor"), ...fixed, onError: ({ error }) => { throw error; } });
    let text = "";
    for await (const piece of found.textStream) text += piece;
    equal(text, "Hello there now.");
  }),
  tools: () => each(async (model) => {
    const asked = { model: model("actor"), tools: { weather }, stopWhen: stepCountIs(3), ...fixed };
    const { steps, text } = await generateText(asked);
    equal([steps.length, steps[0].toolResults[0].output, text], [2, "Oslo: 3", "It is cold."]);
    const streamed = streamText({ ...asked, onError: ({ error }) => { throw error; } });
    equal(await streamed.text, "It is cold.");
  }),
  async thinking() {
    const asked = { effort: "low", summary: "auto" };
    const openai = { forceReasoning: true, reasoningEffort: "low", reasoningSummary: "auto" };
    for (const [name, given] of Object.entries({ responses: { openai }, ollama: { ollama: { think: true } } })) {
      const { reasoningText, text } = await generateText({ model: models[name]("actor"), ...fixed, providerOptions: given });
      equal([reasoningText, text], ["hm", "Yes"]);
    }
  },
  schema: () => each(async (model) => {
    const output = Output.object({ schema: z.object({ warm: z.boolean() }) });
    const found = await generateText({ model: model("tale"), output, ...fixed });
    equal(typeof found.output.warm, "boolean");
  }),
  async embed() {
    for (const model of [openai.embedding("tale"), ollama.embedding("tale")]) {
      equal((await embed({ model, value: "a fox", maxRetries: 0 })).embedding.length, await width());
    }
  },
});
