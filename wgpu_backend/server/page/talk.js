// The conversation: what was said, and the answer that is being made.

import { choose, read, write } from "./conversations.js";
import { byId, copier, make } from "./dom.js";
import { markdown } from "./markdown.js";
import { encoded, figure } from "./pictures.js";
import { lines, post } from "./server.js";
import { settings } from "./settings.js";

const TOP = 8; // other tokens that are noted for each

export class Talk {
  constructor(changed, inspect, draws) {
    this.draws = draws; // whether a model makes pictures
    this.messages = read();
    this.changed = changed; // called when an answer begins, goes on or ends
    this.inspect = inspect;
    this.returns = () => {}; // called with the pictures of a message that is edited
    this.stopping = null;
    this.draw();
  }

  get going() { return this.stopping !== null; }

  get last() { return this.messages.findLast((each) => each.role === "assistant"); }

  keep() {
    // Probabilities are many; those of the last answer are enough for another visit. Pictures are large.
    const last = this.last;
    write(this.messages.map((each) => ({ ...each, picture: undefined, tokens: each === last ? each.tokens : undefined })));
  }

  // Opens a conversation that was kept; a new one without an id.
  open(id = null) {
    this.stop();
    choose(id);
    this.messages = read();
    this.draw();
    this.fail(null);
  }

  stop() { this.stopping?.abort(); }

  fail(error) {
    const place = byId("failure");
    place.hidden = !error;
    place.textContent = error?.message ?? "";
  }

  draw() {
    byId("log").replaceChildren(...this.messages.map((message, i) => this.drawn(message, i)));
    byId("log").scrollTop = byId("log").scrollHeight;
  }

  drawn(message, number) {
    const own = message.role === "user";
    const article = make("article", { className: message.role },
      make("h2", {}, own ? "You" : message.model ?? "Model"));
    if (own) article.append(...figure(message), ...(message.content ? [make("div", { className: "text" }, message.content)] : []));
    else fill(article, message, this.going && message === this.last);
    if (this.going && message === this.messages.at(-1)) return article;
    const last = number === this.messages.length - 1;
    const plain = (text, act) => make("button", { type: "button", className: "plain", onclick: act }, text);
    const footer = make("footer", {}, message.content ? copier(message.content) : null);
    if (own) footer.append(plain("Edit", () => this.edit(number)));
    if (last) footer.append(plain("Again", () => this.again()));
    if (message.tokens?.length) footer.append(plain("Inspect", () => this.inspect(message)));
    if (message.figures) footer.append(make("span", {}, message.figures));
    article.append(footer);
    return article;
  }

  edit(number) {
    this.stop();
    const { content, pictures: shown = [] } = this.messages[number];
    byId("prompt").value = content;
    this.returns(shown.filter(({ url }) => url));
    this.messages.length = number;
    this.keep();
    this.draw();
    byId("prompt").focus();
    byId("prompt").dispatchEvent(new Event("input"));
  }

  async again() {
    if (this.messages.at(-1).role === "assistant") this.messages.pop();
    await this.answer(byId("model").value);
  }

  async say(text, model, shown = []) {
    this.messages.push({ role: "user", content: text, ...(shown.length && { pictures: shown }) });
    await this.answer(model);
  }

  body(model) {
    const { system, probabilities, ...rest } = settings();
    const said = this.messages.map(({ role, content, pictures: shown = [] }) => {
      const images = encoded(shown);
      return { role, content, ...(images.length && { images }) };
    });
    const first = system ? [{ role: "system", content: system }] : [];
    return { model, messages: [...first, ...said], ...rest, ...(probabilities && { logprobs: true, top_logprobs: TOP }) };
  }

  async answer(model) {
    const draws = this.draws(model);
    const body = this.body(model);
    const message = { role: "assistant", model, content: "", thinking: "", tokens: [] };
    this.messages.push(message);
    this.stopping = new AbortController();
    this.draw();
    this.fail(null);
    const watch = { begin: performance.now(), first: 0, count: 0, end: null, stopped: false };
    this.changed("begins", watch);
    try {
      if (draws) await this.paint(model, message, watch);
      else for await (const line of lines("/api/chat", body, this.stopping.signal)) this.take(line, message, watch);
    } catch (error) {
      watch.stopped = true;
      if (error.name !== "AbortError") this.fail(error);
    }
    this.stopping = null;
    if (!message.content && !message.thinking && !watch.end) this.messages.pop();
    message.figures = message.picture ? `took ${seconds(watch.first - watch.begin)}` : figures(watch);
    this.keep();
    this.draw();
    this.changed("ends", watch);
  }

  async paint(model, message, watch) {
    const prompt = this.messages.at(-2).content;
    const { seed } = settings().options;
    const body = { model, prompt, response_format: "b64_json", ...(seed >= 0 && { seed }) };
    const { data } = await post("/v1/images/generations", body, this.stopping.signal);
    watch.first = performance.now();
    message.picture = `data:image/png;base64,${data[0].b64_json}`;
    message.content = `A picture of: ${prompt}`;
  }

  take(line, message, watch) {
    const { content = "", thinking = "" } = line.message ?? {};
    if (!watch.first && (content || thinking)) watch.first = performance.now();
    message.content += content;
    message.thinking += thinking;
    message.tokens.push(...(line.logprobs ?? []));
    watch.count += 1;
    if (line.done) watch.end = line;
    if (this.waiting) return;
    this.waiting = true; // drawn once a frame, however fast tokens come
    requestAnimationFrame(() => {
      this.waiting = false;
      if (!this.going) return;
      const log = byId("log");
      const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
      fill(log.lastChild, message, true);
      if (follows) log.scrollTop = log.scrollHeight;
      this.changed("goes on", watch);
    });
  }
}

function fill(article, message, going = false) {
  let thought = article.querySelector("details");
  if (message.thinking && !thought) {
    thought = make("details", { className: "thought" }, make("summary"), make("div"));
    article.querySelector("h2").after(thought);
  }
  if (thought) {
    thought.firstChild.textContent = going && !message.content ? "Thinking …" : "Thoughts";
    thought.lastChild.textContent = message.thinking.trim();
  }
  let text = article.querySelector(".text");
  if (!text) {
    text = make("div", { className: "text" });
    (thought ?? article.querySelector("h2")).after(text);
  }
  text.replaceChildren(...(message.picture
    ? [make("img", { src: message.picture, alt: message.content })]
    : markdown(message.content)));
  const last = text.lastElementChild;
  text.classList.toggle("going", going && last?.tagName !== "P");
  if (going && last?.tagName === "P") last.classList.add("going");
}

const seconds = (ms) => `${(ms / 1000).toFixed(2)} s`;

export function figures({ begin, first, count, end, stopped }) {
  const said = [];
  if (end) {
    said.push(`${end.eval_count} tokens`);
    if (end.eval_duration) said.push(`${(1e9 * end.eval_count / end.eval_duration).toFixed(1)} tokens/s`);
  } else if (first) {
    said.push(`${count} tokens`);
  }
  if (first) said.push(`first token after ${seconds(first - begin)}`);
  if (end?.done_reason === "length") said.push("cut at the limit");
  if (stopped) said.push("stopped");
  return said.join(" · ");
}
