/**
 * Turns of a conversation in which something is unusual, on either version of the AI SDK; prints a
 * line of JSON.
 *
 *     node turns.ts streamed      `AYES_URL` and `AYES_TOKEN` as for the example
 */

import { createHash } from "node:crypto";

import { jsonSchema, simulateReadableStream, stepCountIs, streamText, tool, type ModelMessage } from "ai";
import { MockLanguageModelV3 } from "ai/test";

import { guarding } from "../src/ai.ts";
import { Client, http, Problem, type Transport } from "../src/index.ts";

const usage = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
};
const inputSchema = jsonSchema<{ order: string; amount?: number }>({ type: "object" });
const ran: string[] = [];

const transport = http({ url: process.env["AYES_URL"] ?? "", token: process.env["AYES_TOKEN"] ?? "" });
const about = { thread: "shop/order-17", requester: "ben" };

/** A tool that gives money back; in the turn that is about it, one that yields how far it is. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
type Execute = ({ order }: { order: string }) => any;
const refunds: Execute = async ({ order }) => (ran.push(`refund ${order}`), `${order} is refunded`);
const yields: Execute = async function* ({ order }) {
  yield "begun";
  ran.push(`refund ${order}`);
  yield `${order} is refunded`;
};

function guarded(through: Transport = transport, execute = refunds) {
  const gate = guarding(new Client(through), about);
  const tools = gate.guard({
    refund: tool({ inputSchema, execute }),
    lookup: tool({
      inputSchema,
      execute: async ({ order }: { order: string }): Promise<string> => {
        ran.push(`lookup ${order}`);
        throw new RangeError(`there is no ${order}`);
      },
    }),
  });
  return { gate, tools };
}

/** What the model would read after a call of a tool. */
async function called(
  input: object,
  id: string,
  more: object = {},
  through = transport,
  execution = refunds,
) {
  const { execute } = guarded(through, execution).tools.refund;
  try {
    // eslint-disable-next-line @typescript-eslint/no-explicit-any
    return await execute?.(input as any, { toolCallId: id, messages: [], ...more } as any);
  } catch (problem) {
    return String(problem);
  }
}

const call = (toolCallId: string, toolName: string, order: string) =>
  ({ type: "tool-call", toolCallId, toolName, input: JSON.stringify({ order }) }) as const;

type Streamed = Awaited<ReturnType<MockLanguageModelV3["doStream"]>>["stream"];
type Parts = Streamed extends ReadableStream<infer Part> ? Part[] : never;

/** Streams both calls of one turn, and then says what it has read. */
const streaming = new MockLanguageModelV3({
  doStream: async ({ prompt }) => {
    const last = prompt.at(-1);
    const finish = (unified: "stop" | "tool-calls") =>
      ({ type: "finish", finishReason: { unified, raw: undefined }, usage }) as const;
    const text: Parts = [
      { type: "text-start", id: "1" },
      { type: "text-delta", id: "1", delta: JSON.stringify(last?.content) },
      { type: "text-end", id: "1" },
      finish("stop"),
    ];
    const calls: Parts = [
      call("call_1", "refund", "A-17"),
      call("call_2", "lookup", "A-18"),
      finish("tool-calls"),
    ];
    return { stream: simulateReadableStream({ chunks: last?.role === "tool" ? text : calls }) };
  },
});

const turns: Record<string, () => Promise<unknown>> = {
  async streamed() {
    const { tools } = guarded(transport, yields);
    const said = streamText({
      model: streaming,
      tools,
      prompt: "Refund A-17.",
      stopWhen: stepCountIs(3),
    });
    return said.text;
  },

  /** The second call of the conversation has the id of the first, which has ended. */
  async repeated() {
    const asked = (order: string, approvalId: string) => ({
      role: "assistant",
      content: [
        { type: "tool-call", toolCallId: "call_1", toolName: "refund", input: { order } },
        { type: "tool-approval-request", approvalId, toolCallId: "call_1" },
      ],
    });
    const output = { type: "text", value: "A-17 is refunded" };
    const ended = { type: "tool-result", toolCallId: "call_1", toolName: "refund", output };
    const before = [asked("A-17", "1"), { role: "tool", content: [ended] }];
    const messages = [...before, asked("A-18", "2")] as ModelMessage[];
    const { gate } = guarded();
    await called({ order: "A-17" }, "call_1");
    const found = await gate.resume(messages);
    return { waiting: found.waiting, last: found.messages.at(-1)?.content };
  },

  /** A result names another tool than its call, which is guarded. */
  async renamed() {
    const call = { type: "tool-call", toolCallId: "call_1", toolName: "refund", input: { order: "A-17" } };
    const output = { type: "text", value: "A-17 is refunded" };
    const named = { type: "tool-result", toolCallId: "call_1", toolName: "find", output };
    const messages = [
      { role: "assistant", content: [call] },
      { role: "tool", content: [named] },
    ] as ModelMessage[];
    return (await guarded().gate.resume(messages)).messages.at(-1)?.content;
  },

  /** Each is a call of its own but the last: a database has returned its fields in another order. */
  async ids() {
    const odd = createHash("sha256").update("a b").digest("hex").slice(0, 40);
    const ids = ["call_1", "call_1", "call_1-2", "a b", `id-${odd}`];
    for (const [place, id] of ids.entries()) {
      await called({ order: `${Math.min(place, 1)}`, amount: 1 }, id);
    }
    return called({ amount: 1, order: "0" }, "call_1");
  },

  async aborted() {
    return called({ order: "A-17" }, "call_1", { abortSignal: AbortSignal.abort(new Error("it left")) });
  },

  /** The abort comes while the claim is recorded. */
  async aborted_late() {
    const abort = new AbortController();
    const aborting: Transport = {
      ...transport,
      async ask(endpoint, fields, signal) {
        const answer = await transport.ask(endpoint, fields, signal);
        if (endpoint === "claim") abort.abort(new Error("it left"));
        return answer;
      },
    };
    return called({ order: "A-17" }, "call_1", { abortSignal: abort.signal }, aborting);
  },

  /** What tools return: a text that looks like JSON, a number, and a list; the first and the last
   * once more. */
  async values() {
    const text = async () => (ran.push("text"), '{"order": "A-17"}');
    const list = async () => (ran.push("list"), [{ part: "text", text: "A-19" }]);
    const texts = () => called({ order: "A-17" }, "call_1", {}, transport, text);
    const lists = () => called({ order: "A-19" }, "call_3", {}, transport, list);
    const number = () => called({ order: "A-18" }, "call_2", {}, transport, async () => 480);
    return [await texts(), await number(), await lists(), await texts(), await lists()];
  },

  /** The result of a tool that ran is refused. */
  async unrecorded() {
    const refusing: Transport = {
      ...transport,
      async ask(endpoint, fields, signal) {
        if (endpoint === "finish") throw new Problem("NotAllowed", 403, "It may not.");
        return transport.ask(endpoint, fields, signal);
      },
    };
    return called({ order: "A-17" }, "call_1", {}, refusing);
  },
};

const said = await turns[process.argv[2] ?? ""]?.();
console.log(JSON.stringify({ ran, said }));
