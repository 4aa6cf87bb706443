/**
 * An agent of the Vercel AI SDK (6 or 7) that asks before it gives money back.
 *
 *     node agent.ts ask       it wants to refund an order; people are asked, and it ends
 *     node agent.ts resume    once they have decided, in another process: it goes on
 *
 * The messages are kept in messages.json, as a server would keep them. `AYES_URL` is the address of
 * the console, `AYES_TOKEN` a token of the role `service`. The model is scripted: no key is needed.
 */

import { appendFileSync, readFileSync, writeFileSync } from "node:fs";

import { generateText, jsonSchema, stepCountIs, tool, type ModelMessage } from "ai";

import { guarding } from "../src/ai.ts";
import { Client, http } from "../src/index.ts";
import { scripted } from "./scripted_model.ts";

const ayes = new Client(
  http({ url: process.env["AYES_URL"] ?? "", token: process.env["AYES_TOKEN"] ?? "" }),
);
const gate = guarding(ayes, { thread: "shop/order-17", requester: "ben", agent: "desk" });

const tools = gate.guard({
  refund: tool({
    description: "Give money back for an order.",
    inputSchema: jsonSchema<{ order: string; amount: number }>({
      type: "object",
      properties: { order: { type: "string" }, amount: { type: "number" } },
      required: ["order"],
    }),
    execute: async ({ order, amount }) => {
      appendFileSync("ran.txt", `${order} ${amount}\n`);
      return `${amount} given back for order ${order}`;
    },
  }),
});

async function answer(messages: ModelMessage[]): Promise<ModelMessage[]> {
  const said = await generateText({ model: scripted, tools, messages, stopWhen: stepCountIs(5) });
  const all = [...messages, ...said.response.messages];
  writeFileSync("messages.json", JSON.stringify(all));
  console.log(said.text || "It waits for people.");
  return all;
}

if (process.argv[2] === "ask") {
  await answer([{ role: "user", content: "Refund order A-17." }]);
} else if (process.argv[2] === "trusting") {
  // What an unwary server does: it hands the SDK whatever the browser sent. Nothing runs by that.
  await answer(JSON.parse(readFileSync("messages.json", "utf8")) as ModelMessage[]);
} else {
  const kept = JSON.parse(readFileSync("messages.json", "utf8")) as ModelMessage[];
  const { messages, waiting } = await gate.resume(kept);
  if (waiting.length > 0) console.log("It still waits for people.");
  else await answer(messages);
}
