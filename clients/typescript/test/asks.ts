/**
 * Asks for one call of a guarded tool, on either version of the AI SDK; prints a line of JSON.
 *
 *     node asks.ts '{"about": {…}, "tool": "refund", "input": {…}, "id": "call_0", "messages": []}'
 */

import { jsonSchema, tool } from "ai";

import { guarding } from "../src/ai.ts";
import { Client, http } from "../src/index.ts";

const transport = http({ url: process.env["AYES_URL"] ?? "", token: process.env["AYES_TOKEN"] ?? "" });
const { about, tool: name, input, id, messages } = JSON.parse(process.argv[2] ?? "");
let ran = 0;

const tools = guarding(new Client(transport), about).guard({
  [name]: tool({
    inputSchema: jsonSchema<{ amount: number }>({ type: "object" }),
    execute: async ({ amount }) => (ran++, `${amount} were paid back.`),
  }),
});

let read: unknown;
try {
  read = await tools[name]?.execute?.(input, { toolCallId: id, messages } as never);
} catch (problem) {
  read = String(problem);
}
console.log(JSON.stringify({ ran, read }));
