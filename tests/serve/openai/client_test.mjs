// The official client, unchanged, against a running dofla serve: node client_test.mjs URL
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: process.argv[3], maxRetries: 0 });
const prompt = "Once upon a time";
const greedy = { model: "stories", prompt, temperature: 0, max_tokens: 12 };

test("models are listed and described", async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert.deepEqual(ids, ["stories"]);
  assert.equal((await client.models.retrieve("stories")).owned_by, "dofla");
});

test("a completion, whole and streamed", async () => {
  const whole = await client.completions.create(greedy);
  assert.equal(whole.object, "text_completion");
  assert.equal(whole.choices[0].finish_reason, "length");
  assert.equal(whole.usage.completion_tokens, 12);
  let text = "", usage = null;
  const stream = await client.completions.create(
    { ...greedy, stream: true, stream_options: { include_usage: true } });
  for await (const event of stream) {
    text += event.choices[0]?.text ?? "";
    usage = event.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].text);
  assert.equal(usage.total_tokens, whole.usage.total_tokens);
});

test("a conversation, whole, streamed and by the client's helper", async () => {
  const body = { model: "stories", messages: [{ role: "system", content: "Be brief." },
    { role: "user", content: "Hello" }], temperature: 0, max_completion_tokens: 10 };
  const whole = await client.chat.completions.create(body);
  const answer = whole.choices[0].message;
  assert.equal(answer.role, "assistant");
  let text = "";
  for await (const event of await client.chat.completions.create({ ...body, stream: true }))
    text += event.choices[0].delta.content ?? "";
  assert.equal(text, answer.content);
  assert.equal(await client.chat.completions.stream(body).finalContent(), answer.content);
});

test("log-probabilities of completions and conversations", async () => {
  const scores = (await client.completions.create({ ...greedy, logprobs: 3 })).choices[0].logprobs;
  assert.equal(scores.tokens.length, 12);
  scores.tokens.forEach((token, i) => {
    assert.equal(Object.keys(scores.top_logprobs[i]).length, 3);
    assert.equal(scores.token_logprobs[i], Math.max(...Object.values(scores.top_logprobs[i])));
  });
  const chat = await client.chat.completions.create({ model: "stories", max_tokens: 5, logprobs: true,
    top_logprobs: 2, messages: [{ role: "user", content: "Hello" }] });
  for (const token of chat.choices[0].logprobs.content) {
    assert.equal(token.top_logprobs.length, 2);
    assert.ok(token.logprob <= 0);
  }
});

test("echo scores the prompt", async () => {
  const choice = (await client.completions.create(
    { ...greedy, max_tokens: 0, echo: true, logprobs: 1 })).choices[0];
  assert.equal(choice.text, prompt);
  assert.equal(choice.logprobs.token_logprobs[0], null);
  assert.ok(choice.logprobs.token_logprobs.slice(1).every((value) => value < 0));
});

test("several answers, and the same seed again", async () => {
  const body = { model: "stories", prompt, n: 3, seed: 4, max_tokens: 40 };
  const texts = async () => (await client.completions.create(body)).choices.map((choice) => choice.text);
  const once = await texts();
  assert.equal(new Set(once).size, 3);
  assert.deepEqual(await texts(), once);
});

test("stop strings", async () => {
  const whole = (await client.completions.create({ ...greedy, max_tokens: 40 })).choices[0].text;
  const stop = whole.slice(15, 20);
  const choice = (await client.completions.create({ ...greedy, max_tokens: 40, stop: [stop] })).choices[0];
  assert.equal(choice.text, whole.slice(0, whole.indexOf(stop)));
  assert.equal(choice.finish_reason, "stop");
});

test("errors have their classes", async () => {
  const refused = async (body, kind, status, param) => {
    await assert.rejects(client.completions.create({ ...greedy, ...body }), (error) => {
      assert.ok(error instanceof kind, String(error));
      assert.deepEqual([error.status, error.param], [status, param]);
      return true;
    });
  };
  await refused({ max_tokens: -1 }, OpenAI.BadRequestError, 400, "max_tokens");
  await refused({ logit_bias: { 5: 1 } }, OpenAI.BadRequestError, 400, "logit_bias");
  await refused({ model: "other" }, OpenAI.NotFoundError, 404, "model");
  const stranger = new OpenAI({ baseURL: client.baseURL, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
});

test("an answer that is aborted ends, and the server goes on", async () => {
  const stream = await client.completions.create(
    { ...greedy, max_tokens: 400, stream: true, ignore_eos: true });
  for await (const event of stream) {
    assert.ok(event.id);
    stream.controller.abort();
    break;
  }
  const aborter = new AbortController();
  setTimeout(() => aborter.abort(), 5);
  await assert.rejects(client.completions.create({ ...greedy, n: 8, max_tokens: 400, ignore_eos: true },
    { signal: aborter.signal }), OpenAI.APIUserAbortError);
  assert.equal((await client.completions.create(greedy)).choices.length, 1);
});
