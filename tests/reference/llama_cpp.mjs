// Greedy answers of llama.cpp by node-llama-cpp: `node llama_cpp.mjs MODEL.gguf TOKENS < prompts.json > answers.json`.
// A prompt is `{text, tokens}`; llama.cpp's own tokens of the text must be the same ones. NODE_LLAMA_CPP is the package's
// folder.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const { getLlama } = await import(pathToFileURL(join(process.env.NODE_LLAMA_CPP, "dist/index.js")));
const [modelPath, most] = process.argv.slice(2);
const llama = await getLlama({ gpu: false, build: "never", logLevel: "error" });
const model = await llama.loadModel({ modelPath });
// Keys and values as f32, as the others hold them: with llama.cpp's f16 the likeliest token may be another one.
const context = await model.createContext({
  contextSize: 1024,
  threads: 1, // several would spin while they wait for one another, which a busy machine pays dearly
  flashAttention: false,
  experimentalKvCacheKeyType: "F32",
  experimentalKvCacheValueType: "F32",
});

async function answer({ text, tokens }) {
  const prompt = model.tokenize(text, true);
  if (JSON.stringify(prompt) !== JSON.stringify(tokens)) throw new Error(`other tokens for ${text}: ${prompt}`);
  const sequence = context.getSequence();
  const sampled = [];
  for await (const token of sequence.evaluate(prompt, { temperature: 0 })) {
    if (model.isEogToken(token) || sampled.push(token) >= Number(most)) break;
  }
  sequence.dispose();
  return model.detokenize(sampled);
}

const answers = [];
for (const prompt of JSON.parse(readFileSync(0, "utf8"))) answers.push(await answer(prompt));
console.log(JSON.stringify(answers));
