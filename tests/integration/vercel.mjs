// The story of sdks.py by the Vercel AI SDK on the Responses API: its tool loop refers to the items of earlier steps.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const story = JSON.parse(readFileSync(0, "utf8"));
const { name, description, parameters } = story.tools[0].function;
const sent = [];
const openai = createOpenAI({
  baseURL: process.env.OPENAI_BASE_URL,
  fetch: (url, request) => {
    sent.push(request.body);
    return fetch(url, request);
  },
});
const execute = (given) => {
  assert.deepEqual(given, story.arguments);
  return story.result;
};
const tools = { [name]: tool({ description, inputSchema: jsonSchema(parameters), execute }) };
const common = { model: openai("m"), system: story.system, tools, stopWhen: stepCountIs(5) };
const messages = [{ role: "user", content: story.questions[0] }];

const loop = await generateText({ ...common, messages });
assert.equal(loop.text, story.expected[1]);
assert.equal(loop.steps[0].text, story.expected[0]);
messages.push(...loop.response.messages, { role: "user", content: story.questions[1] });

let last = "";
for await (const text of streamText({ ...common, messages }).textStream) last += text;
assert.equal(last, story.expected[2]);
assert.ok(sent[1].includes("item_reference"), "it refers to items by default");
