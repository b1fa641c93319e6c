// The page of dofla serve. Texts go into the document as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
let models = [];
let stopper = null; // of what is under way
let conversation = []; // messages, with one answer for each model: {role, content} or {role, contents}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function complain(message) {
  $("problem").textContent = message;
  $("problem").hidden = !message;
}

async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if ($("key").value) headers.Authorization = "Bearer " + $("key").value;
  const reply = await fetch(path, body
    ? { method: "POST", headers, body: JSON.stringify(body), signal } : { headers, signal });
  if (reply.ok) return reply;
  if (reply.status === 401) $("key-row").hidden = false;
  const error = (await reply.json().catch(() => ({}))).error;
  throw new Error(error ? error.message : "HTTP " + reply.status);
}

const bytes = (count) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit + 1 < units.length) { count /= 1000; unit += 1; }
  return (unit && count < 100 ? count.toFixed(1) : Math.round(count)) + " " + units[unit];
};
const memoryOf = (model, tokens) => model.dofla.state_bytes + model.dofla.bytes_per_token * tokens;

async function loadModels() {
  models = (await (await ask("/v1/models")).json()).data;
  for (const [id, extra] of [["model-a", []], ["model-b", ["none"]]]) {
    $(id).replaceChildren(...[...models.map((model) => model.id), ...extra].map((name) => {
      const option = element("option", "", name);
      option.value = name === "none" && extra.length ? "" : name;
      return option;
    }));
  }
  $("model-b").value = models.length > 1 ? models[1].id : "";
  complain("");
}

const chosen = () => [...new Set([$("model-a").value, $("model-b").value])]
  .map((id) => models.find((model) => model.id === id)).filter(Boolean);
const chatting = () => $("chat-mode").checked;

function sampling() {
  const out = {};
  for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"])
    out[name] = Number($(name).value);
  return out;
}

// A box for a model's answer, with the functions that fill it.
function box(model) {
  const root = element("section", "answer");
  const text = element("div", "text");
  const facts = element("p", "facts");
  root.append(element("h2", "", model.id + " (" + model.dofla.kind + ")"), text, facts);
  $("answers").append(root);
  return { model, root, text, facts, answer: "", ids: [], promptTokens: 0 };
}

async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    unread += value;
    for (let end; (end = unread.indexOf("\n\n")) >= 0; unread = unread.slice(end + 2)) {
      const data = unread.slice(0, end).replace(/^data: /, "");
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

function messagesFor(index) {
  return conversation.map((message) => ({
    role: message.role, content: message.contents ? message.contents[index] : message.content,
  }));
}

function showFacts(target, usage, start, first) {
  const seconds = (performance.now() - first) / 1000;
  const count = usage.completion_tokens;
  target.promptTokens = usage.prompt_tokens;
  target.tokens = usage.total_tokens;
  target.facts.textContent = count + " tokens, " +
    (seconds > 0 ? (Math.max(0, count - 1) / seconds).toFixed(1) : "0") + " tokens/s, first after " +
    Math.round(first - start) + " ms; memory " + bytes(memoryOf(target.model, target.tokens));
}

async function answer(target, targets, signal) {
  const body = { model: target.model.id, stream: true, ...sampling(),
                 stream_options: { include_usage: true, continuous_usage_stats: true } };
  if (chatting()) body.messages = messagesFor(target.index); else body.prompt = $("prompt").value;
  if (!chatting()) target.text.append(element("span", "said", body.prompt));
  const written = document.createTextNode("");
  target.text.append(written);
  const start = performance.now();
  let first = 0;
  const reply = await ask(chatting() ? "/v1/chat/completions" : "/v1/completions", body, signal);
  for await (const event of events(reply)) {
    if (event.error) throw new Error(event.error.message);
    first = first || performance.now();
    showFacts(target, event.usage, start, first);
    drawMemory(targets);
    for (const choice of event.choices) {
      const piece = choice.delta ? choice.delta.content || "" : choice.text;
      target.answer += piece;
      written.appendData(piece);
    }
  }
}

async function idsOf(target, signal) {
  const tokenize = async (what) =>
    (await (await ask("/tokenize", { model: target.model.id, ...what }, signal)).json()).tokens;
  if (!chatting()) {
    const ids = await tokenize({ prompt: $("prompt").value + target.answer });
    return [ids, Math.min(target.promptTokens, ids.length)];
  }
  const asked = await tokenize({ messages: messagesFor(target.index) });
  const said = await tokenize({ prompt: target.answer, add_special_tokens: false });
  return [[...asked, ...said], asked.length];
}

// How two models see the same tokens.
async function compare(target, pair, signal) {
  const [ids, begin] = await idsOf(target, signal);
  if (ids.length < 2) return;
  const choices = await Promise.all(pair.map(async (model) => {
    const body = { model: model.id, prompt: ids, echo: true, logprobs: 5, max_tokens: 0 };
    return (await (await ask("/v1/completions", body, signal)).json()).choices[0];
  }));
  const text = Array.from(choices[0].text); // offsets count characters
  const views = choices.map((choice) => choice.logprobs);
  const offsets = views[0].text_offset;
  target.text.replaceChildren();
  if (!chatting()) target.text.append(element("span", "said", $("prompt").value));
  let apart = 0, count = 0;
  for (let i = begin; i < ids.length; ++i) {
    const [a, b] = views.map((view) => view.token_logprobs[i]);
    const difference = a === null || b === null ? 0 : Math.abs(a - b);
    apart += difference;
    count += 1;
    const shown = text.slice(offsets[i], offsets[i + 1]).join(""); // to the end after the last
    const token = element("span", "token d" + level(difference), shown);
    token.tabIndex = 0;
    token.dataset.difference = difference.toFixed(4);
    const show = () => explain(views[0].tokens[i], pair, views.map((view) => ({
      own: view.token_logprobs[i], top: view.top_logprobs[i] || {} })));
    token.addEventListener("click", show);
    token.addEventListener("focus", show);
    target.text.append(token);
  }
  if (count) target.facts.textContent += "; apart by " + (apart / count).toFixed(2) + " nats a token";
}

const level = (difference) => Math.min(7, Math.floor(difference / 3 * 7 + (difference > 0.05 ? 0.5 : 0)));
const percent = (logprob) => (100 * Math.exp(logprob)).toPrecision(3) + " %";

function explain(token, pair, views) {
  $("detail").textContent = JSON.stringify(token) + ": " + pair.map((model, i) =>
    model.id + " gives " + percent(views[i].own) + ", likeliest " +
    Object.entries(views[i].top).map(([text, value]) => JSON.stringify(text) + " " + percent(value))
      .join(", ")).join("; ");
}

function drawMemory(targets) {
  const svg = $("memory").querySelector("svg");
  const most = Math.max(16, ...targets.map((target) => target.tokens || 0));
  const high = Math.max(1, ...targets.map((target) => memoryOf(target.model, most)));
  const make = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const x = (tokens) => 10 + 300 * tokens / most, y = (size) => 105 - 90 * size / high;
  const parts = [make("line", { class: "axis", x1: 10, x2: 310, y1: 105, y2: 105 }),
                 make("text", { x: 10, y: 120 }, "0"),
                 make("text", { x: 310, y: 120, "text-anchor": "end" }, most + " tokens")];
  targets.forEach((target, i) => {
    const [from, to] = [memoryOf(target.model, 0), memoryOf(target.model, most)];
    parts.push(make("polyline", { class: i ? "curve b" : "curve",
      points: x(0) + "," + y(from) + " " + x(most) + "," + y(to) }));
    parts.push(make("text", { x: 315, y: y(to) + (i ? 10 : 0) }, target.model.id.slice(0, 10) + " " + bytes(to)));
  });
  svg.replaceChildren(...parts);
  $("memory").hidden = false;
}

async function go() {
  const pair = chosen();
  if (!pair.length) return;
  stopper = new AbortController();
  $("go").disabled = true;
  $("stop").disabled = false;
  complain("");
  $("detail").textContent = "";
  $("answers").replaceChildren();
  if (chatting()) conversation.push({ role: "user", content: $("prompt").value });
  const targets = pair.map((model, index) => ({ ...box(model), index }));
  try {
    await Promise.all(targets.map((target) => answer(target, targets, stopper.signal)));
    if (pair.length === 2) {
      await Promise.all(targets.map((target) => compare(target, pair, stopper.signal)));
      $("legend").hidden = false;
    }
  } catch (error) {
    if (error.name !== "AbortError") complain(error.message);
    if (chatting() && targets.every((target) => !target.answer)) conversation.pop();
  }
  if (chatting() && targets.some((target) => target.answer)) {
    conversation.push({ role: "assistant", contents: targets.map((target) => target.answer) });
    $("prompt").value = "";
  }
  stopper = null;
  $("go").disabled = false;
  $("stop").disabled = true;
}

function showMode() {
  $("prompt-label").textContent = chatting() ? "Message" : "Prompt";
  $("forget").hidden = !chatting();
  conversation = [];
}

$("ask").addEventListener("submit", (event) => { event.preventDefault(); go(); });
$("stop").addEventListener("click", () => stopper && stopper.abort());
$("forget").addEventListener("click", () => { conversation = []; $("answers").replaceChildren(); });
$("key").addEventListener("change", () => loadModels().catch((error) => complain(error.message)));
for (const one of document.getElementsByName("mode")) one.addEventListener("change", showMode);
for (const id of ["model-a", "model-b"]) $(id).addEventListener("change", () => { conversation = []; });
loadModels().catch((error) => complain(error.message));
