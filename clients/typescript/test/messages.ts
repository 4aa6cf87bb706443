/**
 * A conversation that a browser keeps, as `useChat` does: UI messages, in messages.json. In its one
 * step the model calls a guarded tool, a guarded dynamic tool that shows a picture, as those of MCP
 * are, and a tool that is not guarded. Prints a line of JSON: what ran, and what the model read.
 *
 *     node messages.ts ask         `AYES_URL` and `AYES_TOKEN` as for the example
 *     node messages.ts resume      with the messages as the browser has sent them
 */

import { readFileSync, writeFileSync } from "node:fs";

import {
  convertToModelMessages,
  dynamicTool,
  jsonSchema,
  readUIMessageStream,
  simulateReadableStream,
  stepCountIs,
  streamText,
  tool,
  type ModelMessage,
  type UIMessage,
} from "ai";
import { MockLanguageModelV3 } from "ai/test";

import { guarding } from "../src/ai.ts";
import { Client, http } from "../src/index.ts";

const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
};
const inputSchema = jsonSchema<{ order: string }>({ type: "object" });
const ran: string[] = [];
const read: Record<string, unknown> = {};

const transport = http({ url: process.env["AYES_URL"] ?? "", token: process.env["AYES_TOKEN"] ?? "" });
const gate = guarding(new Client(transport), { thread: "shop/order-17", requester: "ben" });

/** The result of a tool of MCP. */
type Shown = { content: { type: "image"; data: string; mimeType: string }[] };

const tools = {
  ...gate.guard({
    refund: tool({
      inputSchema,
      execute: async ({ order }) => (ran.push("refund"), `${order} is refunded`),
      toModelOutput: ({ output }) => {
        return { type: "text", value: output.endsWith(" is refunded") ? output : "No refund." };
      },
    }),
    show: dynamicTool({
      inputSchema,
      execute: async (): Promise<Shown> => {
        ran.push("show");
        return { content: [{ type: "image", data: "iVBORw0KGgo=", mimeType: "image/png" }] };
      },
      toModelOutput: ({ output }) => ({
        type: "content",
        value: (output as Shown).content.map(({ data, mimeType }) => ({
          type: "image-data",
          data,
          mediaType: mimeType,
        })),
      }),
    }),
  }),
  find: tool({ inputSchema, execute: async () => (ran.push("find"), "nothing found") }),
};

const call = (toolCallId: string, toolName: string) =>
  ({ type: "tool-call", toolCallId, toolName, input: '{"order":"A-17"}' }) as const;

type Streamed = Awaited<ReturnType<MockLanguageModelV3["doStream"]>>["stream"];
type Parts = Streamed extends ReadableStream<infer Part> ? Part[] : never;

const model = new MockLanguageModelV3({
  doStream: async ({ prompt }) => {
    const results = prompt.flatMap((one) => (one.role === "tool" ? one.content : []));
    for (const one of results) if (one.type === "tool-result") read[one.toolCallId] = one.output;
    const finish = (unified: "stop" | "tool-calls") =>
      ({ type: "finish", finishReason: { unified, raw: undefined }, usage }) as const;
    const calls: Parts = [call("call_1", "refund"), call("call_2", "show"), call("call_3", "find")];
    const chunks: Parts =
      results.length > 0 ? [finish("stop")] : [...calls, finish("tool-calls")];
    return { stream: simulateReadableStream({ chunks }) };
  },
});

function onError({ error }: { error: unknown }): void {
  console.error(error);
  process.exitCode = 1;
}

function streamed(messages: ModelMessage[]) {
  return streamText({ model, tools, messages, stopWhen: stepCountIs(3), onError });
}

const user: UIMessage = { id: "1", role: "user", parts: [{ type: "text", text: "Refund A-17." }] };
if (process.argv[2] === "ask") {
  const stream = streamed(await convertToModelMessages([user])).toUIMessageStream();
  let message: UIMessage | undefined;
  for await (const one of readUIMessageStream({ stream })) message = one;
  writeFileSync("messages.json", JSON.stringify([user, message]));
  console.log(JSON.stringify({ ran, read }));
} else {
  const sent = JSON.parse(readFileSync("messages.json", "utf8")) as UIMessage[];
  const { messages, waiting } = await gate.resume(await convertToModelMessages(sent, { tools }));
  if (waiting.length === 0) await streamed(messages).consumeStream();
  console.log(JSON.stringify({ ran, read, waiting }));
}
