// The story of sdks.py by OpenAI's SDK for Node: the first turn streamed, the others whole. The story comes as JSON on
// standard input.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const story = JSON.parse(readFileSync(0, "utf8"));
const client = new OpenAI();
const messages = [
  { role: "system", content: story.system },
  { role: "user", content: story.questions[0] },
];
const request = () => ({ model: "m", messages, tools: story.tools });

const stream = client.chat.completions.stream(request());
const first = (await stream.finalChatCompletion()).choices[0].message;
assert.equal(first.content, story.expected[0]);
assert.deepEqual(JSON.parse(first.tool_calls[0].function.arguments), story.arguments);
messages.push(first, { role: "tool", tool_call_id: first.tool_calls[0].id, content: story.result });

const second = (await client.chat.completions.create(request())).choices[0].message;
assert.equal(second.content, story.expected[1]);
messages.push(second, { role: "user", content: story.questions[1] });

const third = await client.chat.completions.create(request());
assert.equal(third.choices[0].message.content, story.expected[2]);

await assert.rejects(
  new OpenAI({ apiKey: "sk-ajet-unknown" }).chat.completions.create(request()),
  OpenAI.AuthenticationError,
);
